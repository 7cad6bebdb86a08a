"""Whole stages on the Triton kernels: interpreted without a GPU, captured graphs with one."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_config, make_model
from drawing import CUDA, DEVICE
from seated import Seated, flow_of
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import Ops, TritonOps
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import Guidance, Inpainting
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.conventions import to_unit
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.smolvla.policy import PIXELS
from vla_accel_ros.tools.bench.subjects import random_smolvla
from vla_accel_ros.tools.bench.tiny import TINY_SMOLVLA

KINDS = ("pi0", "pi05")
RUNS = 2 if CUDA else 1
"""On a GPU the second is of captured graphs."""
ROWS = {None: "stages", False: "few rows", True: "many rows"}
"""Guided chunks in stages of their own, or in seats by the one or the other products."""
GUIDED = list(product(KINDS, ROWS)) if CUDA else [("pi0", False), ("pi05", None), ("pi05", True)]


def inputs(model: Pi | SmolVLA, views: int = 2, words: int = 7) -> tuple[np.ndarray, Tensor, Tensor, Tensor]:
    """images uint8 [V, S, S, 3] on the host, prompt, noise, state"""
    config, g = model.config, torch.Generator().manual_seed(2)
    size = config.vision.image_size
    images = torch.randint(256, (views, size, size, 3), generator=g).byte().numpy()
    prompt = torch.randint(4, config.vocab, (words,), generator=g)
    noise = torch.randn(1, config.horizon, config.action_dim, generator=g)
    state = torch.randn(1, config.state_dim, generator=g)
    return images, prompt.to(DEVICE), noise.to(DEVICE), state.to(DEVICE)


@torch.no_grad()
def plain(
    model: Pi, images: np.ndarray, prompt: Tensor, noise: Tensor, state: Tensor
) -> tuple[KV, Tensor, Tensor]:
    unit = to_unit(torch.from_numpy(images)).to(DEVICE)
    embs = torch.cat((model.encode(unit).flatten(0, 1), model.embed_tokens(prompt)))[None]
    hidden, kv = model.prefix(embs)
    flow = sample(lambda x, t: model.velocity(x, torch.full((1,), t), state, kv), noise, 2)
    return kv, hidden[0, -1], flow.actions


def fast(
    model: Pi, images: np.ndarray, prompt: Tensor, noise: Tensor, state: Tensor
) -> tuple[KV, Tensor, Tensor]:
    pool = KVPool(model.config.prefix, 2, model.config.max_tokens, DEVICE, model.language_model.dtype)
    stages = Stages(model, pool, ops=lambda: TritonOps(DEVICE, Table(Gpu(4))))
    for _ in range(RUNS):
        (length,) = stages.observe([images], [prompt], [1])
    stages.act(noise + 1, state, [1], [length], 2)
    flow = stages.act(noise, state, [1], [length], 2)
    return pool.view(1, length), stages.last_hidden(1, length), flow.actions


def test_stages_on_kernels_are_the_plain_model(kind: str) -> None:
    model = make_model(make_config(kind)).to(DEVICE)
    given = inputs(model)
    results: Any = zip(fast(model, *given), plain(model, *given), strict=True)
    for ours, theirs in results:
        pairs = zip(ours, theirs) if isinstance(ours, tuple) else ((ours, theirs),)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-5)


def test_int8_stages_on_kernels_are_those_on_references(kind: str) -> None:
    """Where a number lies between two, kernels may round it the other way."""
    model, found = make_model(make_config(kind), varied=False).to(DEVICE), []
    images, prompt, noise, state = inputs(model)
    for make in (lambda: TritonOps(DEVICE, Table(Gpu(4))), Ops):
        pool = KVPool(model.config.prefix, 2, model.config.max_tokens, DEVICE, model.language_model.dtype)
        stages = Stages(model, pool, ops=make, precision="w8a8")
        for _ in range(RUNS):
            (length,) = stages.observe([images], [prompt], [1])
            actions = stages.act(noise, state, [1], [length], 2).actions
        found.append((pool.view(1, length).k.clone(), stages.last_hidden(1, length), actions))
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("wide", [False, True], ids=["few rows", "many rows"])
def test_smolvlas_stages_on_kernels_are_those_on_references(wide: bool) -> None:
    model, found = random_smolvla(TINY_SMOLVLA, DEVICE), []
    images, prompt, noise, state = inputs(model)
    for make in (lambda: TritonOps(DEVICE, Table(Gpu(4))), Ops):
        pool = KVPool(TINY_SMOLVLA.prefix, 2, TINY_SMOLVLA.max_tokens, DEVICE, torch.float32)
        stages = Stages(model, pool, ops=make, rule=PIXELS)
        for _ in range(RUNS):
            (length,) = stages.observe([images], [prompt], [1], states=[state[0].cpu()])
        seats = CapturedSeats(stages, 2, 2, wide, make())
        batch = Seated(seats)
        for number in range(2):
            batch.begin(number, noise + number, None, pool.span(1, 0, length))
            batch.step()
        batch.step()
        chunks = [batch.flows[number].actions for number in range(2)]
        found.append((*pool.view(1, length), *chunks))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("wide", [False, True], ids=["few rows", "many rows"])
def test_staggered_steps_on_kernels_are_the_plain_model(kind: str, wide: bool) -> None:
    model = make_model(make_config(kind)).to(DEVICE)
    images, prompt, noise, state = inputs(model)
    kv, _, _ = plain(model, images, prompt, noise, state)
    pool = KVPool(model.config.prefix, 2, model.config.max_tokens, DEVICE, model.language_model.dtype)
    stages, length = Stages(model, pool), kv.k.shape[3]
    with torch.inference_mode():
        for ours, theirs in zip(pool.view(1, length), kv, strict=True):
            ours.copy_(theirs)
        seats = CapturedSeats(stages, 2, 2, wide, TritonOps(DEVICE, Table(Gpu(4))))
        batch = Seated(seats)
        for number in range(3):
            batch.begin(number, noise + number, state if kind == "pi0" else None, pool.span(1, 0, length))
            batch.step()
        batch.step()
    for number, flow in batch.flows.items():
        _, _, want = plain(model, images, prompt, noise + number, state)
        torch.testing.assert_close(flow.actions, want, rtol=1e-4, atol=5e-5)
    assert sorted(batch.flows) == [0, 1, 2]


@pytest.mark.parametrize(("kind", "wide"), GUIDED, ids=[f"{kind}-{ROWS[wide]}" for kind, wide in GUIDED])
def test_guided_and_committed_chunks_on_kernels_are_the_plain_model(kind: str, wide: bool | None) -> None:
    """A free, a guided and a committed one, each to the bit what it is alone."""
    model = make_model(make_config(kind)).to(DEVICE)
    images, prompt, noise, state = inputs(model)
    kv, _, _ = plain(model, images, prompt, noise, state)
    pool = KVPool(model.config.prefix, 2, model.config.max_tokens, DEVICE, model.language_model.dtype)
    ops = partial(TritonOps, DEVICE, Table(Gpu(4)))
    stages, length = Stages(model, pool, ops=ops), kv.k.shape[3]
    previous = torch.randn(noise.shape[1:], generator=torch.Generator().manual_seed(8)).to(DEVICE)
    given = (None, Guidance(previous[:6], 1, 4, max_weight=2.0), Committed(previous[:3]))
    guides = [None if one is None else Inpainting.of(one, *noise.shape[1:]) for one in given]
    with torch.inference_mode():
        for ours, theirs in zip(pool.view(1, length), kv, strict=True):
            ours.copy_(theirs)
        if wide is None:
            draws = torch.cat([noise + number for number in range(3)])
            flow = stages.act(draws, state.expand(3, -1), [1] * 3, [length] * 3, 2, guides)
            made = list(flow.actions.split(1))
            free = stages.act(draws, state.expand(3, -1), [1] * 3, [length] * 3, 2)
            assert torch.equal(free.actions[0], flow.actions[0])
        else:
            seats = CapturedSeats(stages, 3, 2, wide, ops())
            batch = Seated(seats)
            spans, own = pool.span(1, 0, length), state if kind == "pi0" else None
            for number, guide in enumerate(guides):
                batch.begin(number, noise + number, own, spans, guide)
                batch.step()
            batch.step()
            made = [batch.flows[number].actions for number in range(3)]
            for number, guide in enumerate(guides):
                # In the seat that it had: the interpreter's products round by the row of a tile.
                seat = number % 2
                seats.take(seat, ChunkStart(noise + number, own, spans, guide))
                for _ in range(2):
                    seats.step([seat])
                assert torch.equal(flow_of(seats, seat).actions, made[number])

        def at(x: Tensor, t: Tensor) -> Tensor:
            return model.velocity(x, t, state, kv)

        for number, (one, actions) in enumerate(zip(given, made, strict=True)):
            start, field = noise + number, lambda x, t: at(x, torch.full((1,), t))
            if isinstance(one, Guidance):
                field = one.guide(field, start)
            elif isinstance(one, Committed):
                start, field = one.begin(start), one.hold(at)
                assert torch.equal(actions[0, :3], previous[:3])
            torch.testing.assert_close(actions, sample(field, start, 2).actions, rtol=1e-4, atol=5e-5)


@pytest.mark.gpu
def test_bfloat16_is_no_farther_from_float32_than_plain_torch_is(kind: str) -> None:
    exact = make_model(make_config(kind), varied=False).to(DEVICE)
    given = inputs(exact)
    _, _, reference = plain(exact, *given)
    half = make_model(make_config(kind), varied=False).to(DEVICE).set_precision(torch.bfloat16)
    ours, theirs = (run(half, *given)[2] for run in (fast, plain))
    assert (ours - reference).norm() <= 1.5 * (theirs - reference).norm()


@pytest.mark.gpu
def test_captured_is_eager_to_the_bit_and_allocates_nothing(kind: str) -> None:
    model = make_model(make_config(kind), varied=False).to(DEVICE).set_precision(torch.bfloat16)
    images, prompt, noise, state = inputs(model)
    pool = KVPool(model.config.prefix, 2, model.config.max_tokens, DEVICE, torch.bfloat16)
    stages = Stages(model, pool)
    lengths = stages.observe([images], [prompt], [0])
    first = stages.act(noise, state, [0], lengths, 3)
    denoise = stages.denoise(1, 3)
    assert denoise.captured
    with torch.inference_mode():
        denoise.set(noise, state if denoise.alone else None, [0], lengths)
        denoise.body()
        assert torch.equal(denoise.x, first.actions)
        denoise.set(noise, state if denoise.alone else None, [0], lengths)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        denoise.run()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert torch.equal(denoise.x, first.actions)
