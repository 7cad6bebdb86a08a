"""Fewer bits: who may have them, what stays exact, how near actions stay; references in float32 on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_config, make_model, make_observation, make_policy
from calibrations import calibration
from openvla_builders import make_openvla_folder
from stage_runs import Run, apart

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.packed_forward import FEW_ROWS, PackedForward
from vla_accel_ros.engine.stages.precision import EXACT, PRECISIONS, Small, check
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.pi.folding import fold_prefix

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OF_ANY_SIZE = tuple(precision for precision in PRECISIONS if precision != "nvfp4")


@pytest.mark.parametrize(("precision", "most"), [("fp8", 0.08), ("int8", 0.02), ("int4", 0.2)])
def test_actions_stay_near_but_are_not_the_same(kind: str, precision: str, most: float) -> None:
    model = make_model(make_config(kind), varied=False)
    ours, exact = Run(model, precision), Run(model)
    assert 0 < apart(ours.actions, exact.actions) < most


def test_fp8_is_near_in_every_stage_and_small_weights_leave_prefixes_exact(kind: str) -> None:
    model = make_model(make_config(kind), varied=False)
    runs = {precision: Run(model, precision) for precision in OF_ANY_SIZE}
    exact = runs[EXACT]
    for made in ("tokens", "hidden"):
        assert 0 < apart(getattr(runs["fp8"], made), getattr(exact, made)) < 0.06
    assert 0 < apart(runs["fp8"].kv.k, exact.kv.k) < 0.08
    for precision in ("int8", "int4"):
        assert torch.equal(runs[precision].kv.k, exact.kv.k)
        assert torch.equal(runs[precision].tokens, exact.tokens)


def test_the_plain_model_and_exact_stages_do_not_notice() -> None:
    model = make_model(make_config("pi05"), varied=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = Run(model)
    for precision in OF_ANY_SIZE[1:]:
        Run(model, precision)
    Run(model, "w8a8", Int8(calibration(model)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(Run(model).actions, first.actions)


def test_copies_are_made_once_for_all_stages_and_counted() -> None:
    model = make_model(make_config("pi0"), varied=False)
    assert Run(model).stages.small.nbytes == 0
    ours = Run(model, "fp8").stages
    small, held = ours.small, ours.small.nbytes
    ours.encode(1), ours.prefill(1, 3), ours.denoise(2, 7)
    assert small.nbytes == held
    sizes, vision = model.config.prefix, model.config.vision
    prefix = 2 * (3 * sizes.mlp * sizes.width + 48 * sizes.width)
    encoder = 2 * (3 * vision.width**2 + 2 * vision.width * vision.mlp)
    expert = model.config.expert
    flow = 2 * (3 * expert.mlp * expert.width + 48 * expert.width + 32 * expert.width)
    values = prefix + encoder + flow
    assert values < held < 1.3 * values  # and scales


def test_fp8_may_be_for_prefill_alone() -> None:
    model = make_model(make_config("pi05"), varied=False)
    prefix = fold_prefix(model)
    small = Small("fp8", model, prefix, prefill_only=True)
    assert small.vision is None and small.expert(prefix.layers) is None
    assert small.prefix is not None and small.nbytes == sum(layer.nbytes for layer in small.prefix)
    assert Small("int8", model, prefix, prefill_only=True).expert(prefix.layers) is not None


def test_nvfp4_is_in_prefill_alone_and_near(kind: str) -> None:
    prefix = GemmaConfig(width=128, depth=2, mlp=256, heads=1, kv_heads=1, head_dim=128)
    expert = GemmaConfig(width=48, depth=2, mlp=96, heads=1, kv_heads=1, head_dim=128)
    model = make_model(make_config(kind, prefix=prefix, expert=expert), varied=False)
    ours, exact = Run(model, "nvfp4"), Run(model)
    assert torch.equal(ours.tokens, exact.tokens)
    assert 0.02 < apart(ours.kv.k, exact.kv.k) < 0.25
    assert 0 < apart(ours.actions, exact.actions) < 0.25
    small = ours.stages.small
    assert small.vision is None and small.expert(ours.stages.prefix.layers) is None
    matrices = 2 * (384 * 128 + 3 * 256 * 128)
    assert small.nbytes == matrices * (0.5 + 1 / 16) + 4 * 2 * (384 + 512 + 128)


def test_nvfp4_needs_whole_groups() -> None:
    prefix, expert = (
        GemmaConfig(width=width, depth=2, mlp=80, heads=1, kv_heads=1, head_dim=24) for width in (72, 48)
    )
    model = make_model(make_config("pi05", prefix=prefix, expert=expert), varied=False)
    with pytest.raises(ValueError, match="72, 80;"):
        Run(model, "nvfp4")


def test_exact_is_never_refused() -> None:
    for fast in (False, True):
        check(EXACT, fast, torch.device("cuda"), torch.float32)


@pytest.mark.gpu
def test_fp8_on_a_gpu_needs_bfloat16_and_whole_sizes() -> None:
    with pytest.raises(ValueError, match="fp8"):
        check("fp8", True, CUDA, torch.float32)
    model = make_model(make_config("pi05"), varied=False).to(CUDA).set_precision(torch.bfloat16)
    with pytest.raises(ValueError, match="multiples of 16"):
        Small("fp8", model, fold_prefix(model))


@pytest.mark.gpu
@pytest.mark.parametrize("prefill_only", [False, True])
@torch.inference_mode()
def test_captured_fp8_stages_are_near_exact_ones_repeat_and_allocate_nothing(prefill_only: bool) -> None:
    vision = VisionConfig(width=64, depth=2, mlp=128, heads=4, image_size=28, patch=14)
    prefix = GemmaConfig(width=64, depth=2, mlp=128, heads=4, kv_heads=1, head_dim=16)
    expert = GemmaConfig(width=48, depth=2, mlp=96, heads=4, kv_heads=1, head_dim=16)
    config = make_config("pi0", vision=vision, prefix=prefix, expert=expert)
    model = make_model(config, varied=False).to(CUDA).set_precision(torch.bfloat16)
    g, made = torch.Generator(CUDA).manual_seed(1), dict[Any, Any]()
    images = torch.randint(256, (2, 28, 28, 3), generator=g, device=CUDA).byte().cpu().numpy()
    prompt = torch.randint(4, config.vocab, (7,), generator=g, device=CUDA)
    noise = torch.randn(1, config.horizon, config.action_dim, generator=g, device=CUDA)
    state = torch.randn(1, config.state_dim, generator=g, device=CUDA)
    for precision in ("fp8", EXACT):
        pool = KVPool(config.prefix, 2, config.max_tokens, CUDA, torch.bfloat16)
        stages = Stages(model, pool, precision=precision)
        stages.small = Small(precision, model, stages.prefix, prefill_only)
        for _ in range(2):  # the second time from the captured graphs
            (length,) = stages.observe([images], [prompt], [1])
            found = pool.view(1, length).k.float(), stages.act(noise, state, [1], [length], 3).actions
            before = made.setdefault(precision, found)
            assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))
        torch.cuda.synchronize()
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
        for stage in (stages.encode(2), stages.prefill(2, 7), stages.denoise(1, 3)):
            assert stage.captured
            stage.run()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    for ours, exact in zip(made["fp8"], made[EXACT], strict=True):
        assert 0 < apart(ours, exact) < 0.15


@torch.inference_mode()
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_only_forwards_of_few_rows_have_small_weights(weights: str) -> None:
    model, g = make_model(make_config("pi05"), varied=False), torch.Generator().manual_seed(5)
    sizes = model.config.prefix
    forwards = [PackedForward(model.language_model, sizes, 64, weights=kind) for kind in (weights, None)]
    past = KV(*(torch.randn(sizes.depth, 1, sizes.kv_heads, 9, sizes.head_dim, generator=g) for _ in "kv"))
    words = [Segment(torch.randn(1, 1, sizes.width, generator=g), (past,)) for _ in range(3)]
    prompt = Segment(torch.randn(1, FEW_ROWS + 1, sizes.width, generator=g), causal=True)
    few = [torch.cat(forward(words)).clone() for forward in forwards]
    many = [forward([prompt])[0].clone() for forward in forwards]
    assert 0 < apart(*few) < (0.02 if weights == "int8" else 0.25)
    assert torch.equal(*many)
    assert forwards[0].copied_bytes > 0 == forwards[1].copied_bytes


def test_an_engine_acts_and_answers_with_small_weights() -> None:
    policy = make_policy("pi0")
    engines = [Engine(policy, fast=True, precision=precision) for precision in (EXACT, "int8")]
    chunks, texts = [], []
    for engine in engines:
        with engine.observe(make_observation()) as prefix:
            chunks.append(torch.from_numpy(engine.act(prefix).actions))
            texts.append(list(engine.ask(prefix, max_tokens=4)))
    assert 0 < apart(chunks[1], chunks[0]) < 0.02
    assert all(texts)
    assert engines[0].runner.copied_bytes == 0 < engines[1].runner.copied_bytes


@pytest.mark.parametrize(
    ("precision", "mode", "why"),
    [
        ("fp8", "sequential", "openvla has no stages in it; use w8a8, int8 or int4"),
        ("int8", "pipelined", "token_mode 'pipelined', but only forwards of few rows have small weights"),
    ],
)
def test_a_policy_that_acts_by_tokens_has_small_weights_in_sequence_alone(
    tmp_path: Path, precision: str, mode: str, why: str
) -> None:
    policy = load_policy(make_openvla_folder(tmp_path))
    with pytest.raises(ValueError, match=why):
        Engine(policy, fast=True, precision=precision, token_mode=mode)
    assert Engine(policy, fast=True, precision="int8").runner.copied_bytes > 0
