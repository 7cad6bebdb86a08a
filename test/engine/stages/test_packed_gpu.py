"""On a GPU captured forwards of several requests are the plain ones of each, to what bfloat16 rounds.

The measure is float32: packed together, replayed from a graph, a result may be as far from it as the plain
bfloat16 one is, and half as much again, which leaves room for products that round otherwise with other
numbers of rows. In float32 tokens are equal, on other lengths than those a graph was captured with, too.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from alternating import assert_answers_say_what_they_say_alone, assert_frames_say_what_they_say_alone
from builders import make_config, make_model
from openvla_builders import make_openvla, make_openvla_config, make_openvla_folder
from seated import Seated
from torch import Tensor

from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import Words
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import GemmaConfig, LlamaConfig
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.layers.packed import Segment, forward
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi

pytestmark = pytest.mark.gpu
MORE = 1.5
CUDA = torch.device("cuda")


def llama(head_dim: int, dtype: torch.dtype) -> OpenVLA:
    sizes = LlamaConfig(256, 4, 512, heads=4, kv_heads=2, head_dim=head_dim, norm_eps=1e-5)
    return make_openvla(make_openvla_config(prefix=sizes), varied=False).to(CUDA, dtype)


def gemma(dtype: torch.dtype, kind: str = "pi05") -> Pi:
    sizes = GemmaConfig(256, 4, 512, heads=4, kv_heads=1, head_dim=64)
    config = make_config(kind, prefix=sizes, expert=replace(sizes, width=128))
    return make_model(config, varied=False).to(CUDA).set_precision(dtype)


def drawn(made: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=made).to(CUDA)


def error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("head_dim", [64, 72, 128, 256])
@torch.inference_mode()
def test_a_prefill_with_riders_is_as_exact_as_each_alone(head_dim: int) -> None:
    exact = llama(head_dim, torch.float32)
    model = copy.deepcopy(exact).bfloat16()
    sizes, made = model.config.prefix, torch.Generator().manual_seed(0)
    fused = PackedForward(model.language_model.model, sizes, positions=512)
    pools = [KVPool(sizes, 9, 320, CUDA, dtype) for dtype in (torch.float32, torch.bfloat16, torch.bfloat16)]
    prompts = [drawn(made, 1, 276 - 9 * index, sizes.width) for index in range(8)]
    words = [drawn(made, 1, 1, sizes.width) for _ in range(6)]
    for step in range(2):  # the second is a replay on other lengths
        packed = []
        for pool in pools:
            for index, prompt in enumerate(prompts[1:7]):
                model_of = exact if pool is pools[0] else model
                tokens = prompt.shape[1] - step
                model_of.prefix(prompt[:, :tokens].to(pool.k.dtype), out=pool.view(index, tokens))
            segments = [
                Segment(prompts[7 * step], causal=True, out=pool.span(8, 0, prompts[7 * step].shape[1]))
            ]
            for index, x in enumerate(words):
                length = prompts[1 + index].shape[1] - step
                out = pool.span(index, length, length + 1)
                segments.append(Segment(x, (pool.span(index, 0, length),), out=out))
            if pool is pools[2]:
                packed.append([rows.clone() for rows in fused(segments)])
            else:
                stack = (exact if pool is pools[0] else model).language_model.model
                packed.append(forward(stack, segments, together=False))
        for want, plain, got in zip(*packed, strict=True):
            assert error(got, want) <= MORE * error(plain, want) + 1e-4
        assert error(pools[2].k, pools[0].k) <= MORE * error(pools[1].k, pools[0].k) + 1e-4
        assert error(pools[2].v, pools[0].v) <= MORE * error(pools[1].v, pools[0].v) + 1e-4


def test_frames_in_a_pipeline_say_what_they_say_alone(tmp_path: Path) -> None:
    sizes = LlamaConfig(256, 4, 512, heads=4, kv_heads=2, head_dim=64, norm_eps=1e-5)
    folder = make_openvla_folder(tmp_path, make_openvla_config(prefix=sizes), seed=1)
    policy: Any = load_policy(folder, "cuda", torch.float32)
    assert_frames_say_what_they_say_alone(policy, count=16)


def test_answers_in_slots_and_pages_say_what_they_say_alone() -> None:
    model = gemma(torch.float32)
    sizes = model.config.prefix
    pool, pages = KVPool(sizes, 8, 48, CUDA, torch.float32), PagePool(sizes, 64, 3, CUDA, torch.float32)
    forward = PackedForward(model.language_model, sizes, positions=64)
    assert_answers_say_what_they_say_alone(model, pool, pages, forward, (5, 40, 17, 33, 8, 29), 11)


@pytest.mark.parametrize("kind", ["gemma", "llama"])
@pytest.mark.parametrize("layers", [(4,), (1, 2, 1)])
@torch.inference_mode()
def test_the_head_of_captured_tokens_has_the_bits_of_the_plain_one(kind: str, layers: tuple[int]) -> None:
    """Of the same hidden states, and the ids come from where another forward has put them."""
    dtype = torch.bfloat16
    model = gemma(dtype) if kind == "gemma" else llama(64, dtype)
    sizes, made = model.config.prefix, torch.Generator().manual_seed(4)
    pool = KVPool(sizes, 4, 48, CUDA, dtype)
    pool.k.copy_(drawn(made, *pool.k.shape))
    pool.v.copy_(drawn(made, *pool.v.shape))
    fused = PackedForward(model.stack, sizes, 64, words=Words(model.embed_tokens, model.logits))
    blank = pool.k.new_zeros(1, 1, sizes.width)
    for count in (1, 2, 4):
        ids = list(torch.arange(3, 3 + count, device=CUDA))
        for step in range(3):
            places = [20 + 3 * slot + step for slot in range(count)]
            given = [
                Segment(blank, (pool.span(slot, 0, at),), out=pool.span(slot, at, at + 1))
                for slot, at in enumerate(places)
            ]
            embedded = [one._replace(x=model.embed_tokens(id[None, None])) for one, id in zip(given, ids)]
            want = [rows.clone() for rows in fused(embedded)]
            *_, found = fused.next_words(ids, given, layers)
            assert found is not None
            for got, row in zip(found.hidden, want, strict=True):
                assert torch.equal(got, row)
            scores = model.logits(torch.stack([rows[0, -1] for rows in found.hidden]))
            assert torch.equal(found.scores, scores)
            assert torch.equal(found.likeliest, scores.argmax(dim=-1))
            ids = list(found.likeliest.clone())


@pytest.mark.parametrize("wide", [False, True], ids=["few rows", "many rows"])
@torch.inference_mode()
def test_staggered_chunks_are_as_exact_as_each_alone(kind: str, wide: bool) -> None:
    exact = gemma(torch.float32, kind)
    model = copy.deepcopy(exact).set_precision(torch.bfloat16)
    config, made, steps = model.config, torch.Generator().manual_seed(3), 5
    pool = KVPool(config.prefix, 4, 64, CUDA, torch.bfloat16)
    seats = CapturedSeats(Stages(model, pool), steps, steps, wide)
    batch = Seated(seats)
    prefixes = [drawn(made, 1, 20 + 11 * slot, config.prefix.width) for slot in range(4)]
    noise = drawn(made, 12, 1, config.horizon, config.action_dim)
    states = drawn(made, 12, 1, config.state_dim)
    for slot, prefix in enumerate(prefixes):
        model.prefix(prefix.bfloat16(), out=pool.view(slot, prefix.shape[1]))

    def begin(number: int) -> None:
        state = states[number] if kind == "pi0" else None
        batch.begin(number, noise[number], state, pool.span(number % 4, 0, prefixes[number % 4].shape[1]))

    for number in range(12):
        begin(number)
        batch.step()
    batch.run()
    for number, flow in list(batch.flows.items()):
        begin(number)
        batch.run()
        assert torch.equal(batch.flows[number].actions, flow.actions)
        made_by = []
        for one in (exact, model):
            _, kv = one.prefix(prefixes[number % 4].to(one.language_model.dtype))

            def velocity(x: Tensor, t: float, one: Pi = one, kv=kv, number=number) -> Tensor:
                return one.velocity(x, torch.full((1,), t, device=CUDA), states[number], kv)

            made_by.append(sample(velocity, noise[number], steps).actions)
        want, plain = made_by
        assert error(flow.actions, want) <= MORE * error(plain, want) + 1e-4
