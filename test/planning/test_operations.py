"""The operations of each family against the modules that they describe: arithmetic, bytes, launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from launches import Launches
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.checkpoint import empty_openvla
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import empty_pi
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.planning.families.find import operations, weight_bytes
from vla_accel_ros.planning.families.stacks import decoder_layers, narrow_layers
from vla_accel_ros.planning.families.work import Work
from vla_accel_ros.planning.operations import Kind, Op, attention, product, total_flops, total_launches

VISION = VisionConfig(width=24, depth=3, mlp=40, heads=4, image_size=28, patch=7)
PREFIX = GemmaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=1, head_dim=8)
EXPERT = GemmaConfig(width=16, depth=3, mlp=40, heads=4, kv_heads=1, head_dim=8)
PI = PiConfig("pi05", VISION, PREFIX, EXPERT, 50, 6, 6, 5, 32, ("one", "two"))
LLAMA = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8)
OPENVLA = OpenVLAConfig(VISION, replace(VISION, width=32, depth=2), 4, LLAMA, 64, 56, 16, None, 32)
SMOL = SmolVLAConfig(
    VISION,
    2,
    LLAMA,
    LlamaConfig(width=24, depth=3, mlp=40, heads=4, kv_heads=2, head_dim=8),
    2,
    50,
    6,
    6,
    5,
    32,
    ("one", "two"),
)
PROMPT = 16


def counted(run: Callable[[], object]) -> int:
    """Floating point operations of the products and attentions of a call."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def flops(ops: Iterable[Op]) -> float:
    return total_flops(ops)


def rows(config: Any, views: int = 2) -> int:
    return views * config.vision.tokens + PROMPT


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_pi_encodes_and_prefills_what_is_counted(kind: str) -> None:
    config = replace(PI, kind=kind)
    model, ops = Pi(config), operations(config, Work(views=2, prompt=PROMPT))
    images, embs = torch.rand(2, 3, 28, 28), torch.rand(1, rows(config), 32)
    assert flops(ops["encode"]) == counted(lambda: model.encode(images))
    g, kv = config.prefix, 2 * config.prefix.kv_heads * config.prefix.head_dim
    last = flops(decoder_layers(g, 1, rows(config), rows(config))) - 2 * rows(config) * g.width * kv
    assert flops(ops["prefill"]) + last == counted(lambda: model.prefix(embs))


@torch.no_grad()
def test_the_layers_of_the_expert_are_those_of_a_step() -> None:
    config, model = PI, Pi(PI)
    _, kv = model.prefix(torch.rand(1, rows(PI), 32))
    x, old = torch.rand(1, 5, 16), rows(PI)
    condition = torch.rand(1, 16)
    positions = torch.arange(old, old + 5)[None]
    made = counted(lambda: model.expert(x, positions, None, (kv,), condition))
    modulation = 2 * (2 * config.expert.depth + 1) * 16 * 48
    assert made - modulation == flops(narrow_layers(EXPERT, 3, 5, old + 5))
    step = operations(PI, Work(views=2, prompt=PROMPT, steps=1))["denoise"]
    assert flops(step) == flops(narrow_layers(EXPERT, 3, 5, old + 5)) + 2 * (2 * 5 * 6 * 16)
    steps = operations(PI, Work(views=2, prompt=PROMPT, steps=7))["denoise"]
    assert flops(steps) == 7 * flops(step)


def test_openvla_is_what_is_counted() -> None:
    model, prompt = OpenVLA(OPENVLA), 10
    ops = operations(OPENVLA, Work(prompt=prompt))
    assert flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(1, 6, 28, 28)))
    embs = torch.rand(1, 16 + 16, 32)  # 16 image tokens, and words and drafts padded to 16
    head = 2 * 7 * LLAMA.width * OPENVLA.vocab
    assert flops(ops["prefill"]) - head == counted(lambda: model.prefix(embs))


@torch.no_grad()
def test_smolvla_is_what_is_counted() -> None:
    model, prompt, views = SmolVLA(SMOL), 9, 2
    ops = operations(SMOL, Work(views=views, prompt=prompt, steps=1))
    assert flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(views, 3, 28, 28)))
    embs = torch.rand(1, views * SMOL.image_tokens + prompt + 1, 32)
    assert flops(ops["prefill"]) == counted(lambda: model.prefix(embs))
    _, kv = model.prefix(embs)
    x, t = torch.rand(1, 5, 6), torch.rand(1)
    assert flops(ops["denoise"]) == counted(lambda: model.velocity(x, t, None, kv))


JOINED, MOVED = 5, 8
"""Launches before the prefix, and of a step that the stage has beside the network's."""


@torch.no_grad()
def test_the_launches_of_smolvla_are_those_of_plain_torch() -> None:
    model = SmolVLA(SMOL).set_precision(torch.bfloat16)
    embs = torch.rand(1, 2 * SMOL.image_tokens + 10, 32).bfloat16()
    with Launches() as seen:
        _, kv = model.prefix(embs)
    planned = operations(SMOL, Work(views=2, prompt=9, steps=1))
    assert total_launches(planned["prefill"]) == pytest.approx(seen.count + JOINED, rel=0.02)
    with Launches() as seen:
        model.velocity(torch.rand(1, 5, 6), torch.rand(1), None, kv)
    assert total_launches(planned["denoise"]) == pytest.approx(seen.count + MOVED, rel=0.02)


@torch.no_grad()
@pytest.mark.parametrize("config", [SMOL, OPENVLA])
def test_the_launches_of_image_towers_are_those_of_plain_torch(config: Any) -> None:
    smol = config is SMOL
    model = (SmolVLA(config) if smol else OpenVLA(config)).bfloat16()
    images = torch.rand(2, 3, 28, 28) if smol else torch.rand(1, 6, 28, 28)
    with Launches() as seen:
        model.encode(images.bfloat16())
    cut = 1 if smol else 2  # by the convolution of patches, which on a GPU is a copy and a product
    planned = total_launches(operations(config, Work(views=2))["encode"])
    assert planned == pytest.approx(seen.count + cut, abs=1)


@pytest.mark.parametrize("config", [PI0, PI05, PI, replace(PI, kind="pi0")])
def test_the_weights_of_pi_are_those_of_its_parameters(config: PiConfig) -> None:
    assert weight_bytes(config) == of(empty_pi(config, torch.bfloat16))


@pytest.mark.parametrize("config", [OPENVLA_7B, OPENVLA])
def test_the_weights_of_openvla_are_those_of_its_parameters(config: OpenVLAConfig) -> None:
    assert weight_bytes(config) == of(empty_openvla(config, torch.bfloat16))


@pytest.mark.parametrize("config", [SMOLVLA, SMOL])
def test_the_weights_of_smolvla_are_those_of_its_parameters(config: SmolVLAConfig) -> None:
    with torch.device("meta"):
        model = SmolVLA(config).set_precision(torch.bfloat16)
    assert weight_bytes(config) == of(model)


def of(model: torch.nn.Module) -> int:
    """Each parameter once: a tied head is the embedding."""
    return sum(parameter.nbytes for parameter in model.parameters())


def test_the_products_of_a_stage_read_its_matrices() -> None:
    ops = operations(PI05, Work(steps=1))["denoise"]
    read = sum(op.count * op.weight_bytes for op in ops if op.kind is Kind.NARROW and op.weights == "bf16")
    layer = 1024 * (2048 + 512) + 2048 * 1024 + 3 * 4096 * 1024
    assert read == 2 * 18 * layer


def test_an_attention_reads_keys_and_values_once_and_a_product_its_weights() -> None:
    one = attention("a", 1, rows=3, keys=7, heads=4, kv_heads=2, head=8, batch=5)
    assert one.weight_bytes == 5 * 2 * 7 * 2 * 8 * 2  # batch, keys and values, keys, heads, numbers, bytes
    assert one.moved_bytes == 5 * 2 * 3 * 4 * 8 * 2
    made = product("p", 1, 3, 5, 7, "int8", "bf16")
    assert (made.weight_bytes, made.moved_bytes) == (35, 2 * (21 + 15))


def test_more_chunks_than_narrow_launches_take_go_by_products() -> None:
    few, many = (operations(PI05, Work(batch=batch))["denoise"] for batch in (2, 3))
    assert any(op.kind is Kind.NARROW for op in few) and not any(op.kind is Kind.NARROW for op in many)


def test_fp8_is_for_prefill_alone_where_memory_is_fast() -> None:
    slow = operations(PI05, Work(precision="fp8"))
    fast = operations(PI05, Work(precision="fp8", fast_memory=True))
    for stage, ops in (("encode", slow), ("denoise", slow)):
        assert "fp8" in {op.weights for op in ops[stage]}
    assert {op.weights for op in (*fast["encode"], *fast["denoise"])} <= {"bf16", "fp32"}
    assert "fp8" in {op.compute for op in fast["prefill"]}


@pytest.mark.parametrize("wrong", [{"views": 0}, {"steps": 0}, {"chunk": 0}, {"precision": "int2"}])
def test_work_that_no_stage_computes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Work(**wrong)
