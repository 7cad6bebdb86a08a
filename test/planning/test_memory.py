"""What a plan says of memory, and what is counted while models are loaded and stages built on a CPU."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.peak import LiveBytes, holding
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.dropping import drop, dropping
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.streaming import empty, fill
from vla_accel_ros.models.config import GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.layers.gemma import Gemma
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import finished
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import QUANTISING, Memory, copies, memory, parts
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import Work
from vla_accel_ros.tools.bench.subjects import random_model

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SLOW = replace(load("rtx-4090"), fast_memory=False)
"""A device on which fp8 is for encode and denoise, too, as stages on a CPU have it."""
SIZES = PiConfig(
    "pi05",
    VisionConfig(width=576, depth=3, mlp=2304, heads=8, image_size=112, patch=14),
    GemmaConfig(width=1024, depth=3, mlp=8192, heads=8, kv_heads=1, head_dim=128),
    GemmaConfig(width=512, depth=3, mlp=2048, heads=8, kv_heads=1, head_dim=128),
    32000, 50, 32, 48, 32, ("one", "two"),
)  # fmt: skip
NORMS = ("input_layernorm", "post_attention_layernorm")
LAYER = 2 * 1024 * (10 * 128 + 8 * 128 + 3 * 8192)
"""Bytes of a layer of the prefix stack."""
PRECISIONS = ("exact", "fp8", "nvfp4", "int8", "int4", "w8a8", "w8a8-int4")


def plan(kind: str, precision: str, keep_exact: bool = True) -> Memory:
    work = Work(views=2, precision=precision)
    return memory(replace(SIZES, kind=kind), work, SLOW, slots=2, keep_exact=keep_exact)


def tensors(planned: Memory) -> int:
    """Of a plan's bytes those that are tensors of ours, in the end."""
    return planned.allocated - planned.workspace - planned.building


def build(model: object, precision: str) -> Stages:
    config = model.config  # type: ignore[attr-defined]
    pool = KVPool(config.prefix, 2, config.max_tokens, CPU, BF16)
    stages = Stages(model, pool, precision=precision)  # type: ignore[arg-type]
    stages.encode(2), stages.prefill(2, 20), stages.denoise(1, 10)
    return stages


@pytest.mark.parametrize("precision", PRECISIONS)
def test_building_never_holds_more_than_the_end_and_a_layer_and_the_plan_says_both(
    kind: str, precision: str
) -> None:
    with LiveBytes() as counted:
        model = random_model(replace(SIZES, kind=kind), CPU, dtype=BF16)
        assert counted.held.present == pytest.approx(sum(weight_parts(model.config).values()), rel=1e-3)
        gc.collect()
        counted.reset_peak()
        stages = build(model, precision)
        gc.collect()
        final, peak = counted.held.present, counted.held.peak
    assert peak <= final + LAYER
    planned = plan(kind, precision)
    assert tensors(planned) == pytest.approx(final, rel=0.05)
    assert planned.allocated - planned.workspace == pytest.approx(peak, rel=0.05)
    del stages


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("precision", ["exact", "fp8", "nvfp4", "w8a8", "w8a8-int4"])
def test_loading_never_holds_more_than_the_end_and_a_layer(precision: str, stored: torch.dtype) -> None:
    exact, model = precision == "exact", empty(Pi, SIZES, BF16)
    parameters = dict(model.named_parameters())
    layer = None if exact else dropping(precision, CPU)
    with LiveBytes() as counted:
        zeros = ((name, torch.zeros((), dtype=stored).expand(p.shape)) for name, p in parameters.items())
        fill(model, zeros, CPU, 1, "zeros", None, fused_parts(model), layer)
        finished(model)
        gc.collect()
        loaded, most = counted.held.present, counted.held.peak
        assert most <= loaded + LAYER
        counted.reset_peak()
        stages = build(model, precision)
        gc.collect()
        final, peak = counted.held.present, counted.held.peak
    assert peak <= final + LAYER
    assert tensors(plan("pi05", precision, keep_exact=exact)) == pytest.approx(final, rel=0.05)
    assert max(most, peak) < 1.05 * (plan("pi05", precision, keep_exact=exact).allocated)
    del stages


def test_an_openvla_in_four_bits_is_loaded_without_more_than_a_layer_of_exact_weights() -> None:
    tower = VisionConfig(width=64, depth=2, mlp=64, heads=4, image_size=112, patch=14)
    llama = LlamaConfig(width=1024, depth=4, mlp=2752, heads=8, kv_heads=8, head_dim=128)
    config = replace(
        OPENVLA_7B, dino=tower, siglip=tower, prefix=llama, vocab=2048, action_vocab=2000, space_token=None
    )
    layer, work = 2 * 1024 * (4 * 1024 + 3 * 2752), Work(views=1, precision="int4")
    model = empty(OpenVLA, config, BF16)
    parameters = dict(model.named_parameters())
    with LiveBytes() as counted:
        zeros = ((name, torch.zeros((), dtype=BF16).expand(p.shape)) for name, p in parameters.items())
        fill(model, zeros, CPU, 1, "zeros", None, fused_parts(model), dropping("int4", CPU))
        forward = PackedForward(model.stack, config.prefix, config.max_tokens, weights="int4")
        gc.collect()
        assert counted.held.peak <= counted.held.present + layer + QUANTISING["int4"]
    assert forward.copied_bytes == copies(config, work)
    planned = memory(config, work, SLOW, slots=2, keep_exact=False)
    assert planned.weights + planned.copies + planned.given_up == pytest.approx(
        counted.held.present, rel=0.02
    )


def test_eight_bits_of_pi05_fit_into_6_gb_and_four_of_openvla_into_7() -> None:
    fp8 = Work(views=2, precision="fp8")
    assert memory(MODELS["pi05"], fp8, SLOW, keep_exact=False).total < 6e9
    assert memory(MODELS["pi05"], fp8, SLOW).total > 8e9
    for precision in ("w8a8", "w8a8-int4"):
        rows = Work(views=2, precision=precision)
        assert memory(MODELS["pi05"], rows, SLOW, keep_exact=False, text=True).total < 5.2e9
    int4 = Work(views=1, precision="int4")
    assert memory(MODELS["openvla"], int4, SLOW, slots=3, keep_exact=False).total < 7e9
    assert memory(MODELS["openvla"], int4, SLOW, slots=3).total > 18e9


def test_answers_in_fewer_bits_have_copies_of_the_prefix_stack() -> None:
    work = Work(precision="int8")
    more = copies(MODELS["pi05"], work, text=True) - copies(MODELS["pi05"], work)
    assert more == pytest.approx(0.5 * 18 * LAYER * 4 * 1.01, rel=0.02)


@pytest.mark.parametrize("precision", [*PRECISIONS[1:], "exact"])
def test_parts_of_the_weights_are_those_of_the_tensors(kind: str, precision: str) -> None:
    exact = precision == "exact"
    model = random_model(replace(SIZES, kind=kind), CPU, dtype=BF16)
    if not exact:
        drop(model, precision, CPU)
    whole = model.paligemma_with_expert.paligemma.model
    stack, expert, tower = whole.language_model, model.expert, whole.vision_tower
    planned = parts(model.config, Work(precision=precision), keep_exact=exact)
    of = {name: sum(found) for name, found in planned.items()}
    if kind == "pi0" and precision in ("exact", "nvfp4"):  # without what the steps of the expert have folded
        of["expert"] = planned["expert"][0]
    modulating = [
        norm.get_submodule("dense") for norm in expert.modules() if getattr(norm, "modulated", False)
    ]
    assert of["words"] == bytes_of(stack.embed_tokens)
    assert of["encoder"] == bytes_of(tower, whole.multi_modal_projector)
    assert of.get("modulation", 0) == bytes_of(*modulating)
    norms = [layer.get_submodule(name) for layer in layers_of(stack) for name in NORMS]
    assert of["prefix"] == bytes_of(stack) - of["words"] - bytes_of(stack.norm, *norms)
    left = (
        [] if kind == "pi05" else [layer.get_submodule(name) for layer in layers_of(expert) for name in NORMS]
    )
    assert of["expert"] == bytes_of(expert) - bytes_of(*modulating, *left, *([expert.norm] if left else []))
    assert sum(of.values()) == bytes_of(model)


def layers_of(stack: Gemma) -> list[torch.nn.Module]:
    return list(stack.layers)


def bytes_of(*modules: torch.nn.Module) -> int:
    """Of what is there of them, exact or in fewer bits."""
    exact = {p.data_ptr(): p.nbytes for one in modules for p in one.parameters() if not p.is_meta}
    return sum(exact.values()) + sum(
        m.nbytes for one in modules for n in one.modules() for m in given(n).values()
    )


def test_what_is_freed_is_not_counted_any_longer(tmp_path: Path) -> None:
    with holding(CPU) as held:
        kept = torch.zeros(1000)
        torch.zeros(5000).sum()
    assert held.present == kept.nbytes == 4000 and 24000 <= held.peak < 25000
