"""The launches of each family's stages, from traces of its modules, against torch's counts of whole calls;
what a model cannot have is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_policy
from openvla_builders import make_openvla_folder
from smolvla_recording import make_smolvla_folder
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.options import check_options
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi_fast.config import PI0_FAST
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.smolvla.config import SMOLVLA, SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import copies, kv_bytes
from vla_accel_ros.planning.networks import network, weight_parts
from vla_accel_ros.planning.operations import GATED, ROWS, Kind, Op, product, total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import ENGINE_PRECISIONS, Sizes, Work, check_work

VISION = VisionConfig(width=24, depth=3, mlp=40, heads=4, image_size=28, patch=7)
PREFIX = GemmaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=1, head_dim=8)
EXPERT = GemmaConfig(width=16, depth=3, mlp=40, heads=4, kv_heads=1, head_dim=8)
PI = PiConfig("pi05", VISION, PREFIX, EXPERT, 50, 6, 6, 5, 32, ("one", "two"))
LLAMA = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8)
OPENVLA = OpenVLAConfig(VISION, replace(VISION, width=32, depth=2), 4, LLAMA, 64, 56, 16, None, 32)
SMALL_EXPERT = LlamaConfig(width=24, depth=3, mlp=40, heads=4, kv_heads=2, head_dim=8)
SMOL = SmolVLAConfig(VISION, 2, LLAMA, SMALL_EXPERT, 2, 50, 6, 6, 5, 32, ("one", "two"))
PROMPT = 16
FRAME = 2 * VISION.tokens + PROMPT


def counted(run: Callable[[], object]) -> int:
    """Floating point operations of the products and attentions of a call."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def names(ops: Iterable[Op]) -> dict[str, int]:
    """How often each operation is launched."""
    found: dict[str, int] = {}
    for op in ops:
        found[op.name] = found.get(op.name, 0) + op.count
    return found


@torch.no_grad()
def test_pi_stages_have_the_flop_that_torch_counts(kind: str) -> None:
    config = replace(PI, kind=kind)
    model, ops = Pi(config), operations(config, Work(views=2, prompt=PROMPT, steps=3))
    assert total_flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(2, 3, 28, 28)))
    layer = (
        2 * FRAME * 32 * (32 + 32 + 3 * 48) + 2 * 2 * FRAME * FRAME * 4 * 8
    )  # of the last, but keys, values
    embs = torch.rand(1, FRAME, 32)
    assert total_flops(ops["prefill"]) + layer == counted(lambda: model.prefix(embs))
    _, kv = model.prefix(embs)
    step = counted(lambda: model.velocity(torch.rand(1, 5, 6), torch.rand(1), torch.rand(1, 6), kv))
    constant = 2 * 16 * 6 + 2 * 5 * 32 * 16 if kind == "pi0" else 2 * 16 * 16 * 2 + 2 * 7 * 16 * 48
    assert total_flops(ops["denoise"]) == 3 * (
        step - constant
    )  # folding leaves out state, time and modulation


@torch.no_grad()
def test_openvla_and_smolvla_stages_have_the_flop_that_torch_counts() -> None:
    model, ops = OpenVLA(OPENVLA), operations(OPENVLA, Work(prompt=10))
    assert total_flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(1, 6, 28, 28)))
    head, embs = 2 * 7 * LLAMA.width * OPENVLA.vocab, torch.rand(1, 32, 32)  # words and drafts padded to 16
    assert total_flops(ops["prefill"]) - head == counted(lambda: model.prefix(embs))
    smol, stages = SmolVLA(SMOL), operations(SMOL, Work(views=2, prompt=PROMPT, steps=1))
    assert total_flops(stages["encode"]) == counted(lambda: smol.encode(torch.rand(2, 3, 28, 28)))
    rows = 2 * SMOL.image_tokens + PROMPT + 1
    embs, state = torch.rand(1, rows, 32), 2 * 6 * 32
    last = 2 * rows * 32 * (32 + 32 + 3 * 48) + 2 * 2 * rows * rows * 4 * 8  # but keys and values
    crossed = 2 * 2 * rows * 16 * 16  # of the second layer
    made = total_flops(stages["prefill"])
    assert made == counted(lambda: smol.prefix(embs)) + state - last + crossed
    _, kv = smol.prefix(embs)
    step = counted(lambda: smol.velocity(torch.rand(1, 5, 6), torch.rand(1), None, kv))
    assert total_flops(stages["denoise"]) == step - crossed - 2 * 5 * 48 * 24  # and the first of the time's


def test_fused_stages_have_one_pass_between_products_that_need_one() -> None:
    ops = operations(PI, Work(prompt=PROMPT, steps=1))
    assert names(ops["prefill"]) == {
        "norm": 5, "qkv": 2, "place": 3, "attention": 2, "o": 2,
        "gate and up": 2, "activation": 2, "down": 2, "last k, v": 1,
    }  # fmt: skip
    assert names(ops["denoise"]) == {
        "action_in_proj": 1, "action_out_proj": 1,
        "qkv": 3, "attention": 3, "o": 3, "gate and up": 3, "down": 3,
    }  # fmt: skip
    assert {op.kind for op in ops["denoise"]} == {Kind.NARROW, Kind.ATTENTION}
    assert names(ops["decode"])["join"] == 3  # keys of a single row are split


def test_what_smolvlas_cross_layers_read_is_made_with_the_prefix() -> None:
    ops = operations(SMOL, Work(views=2, prompt=9, steps=1))
    assert names(ops["prefill"]) == {
        "state_proj": 1, "norm": 5, "qkv": 2, "place": 3, "attention": 2, "o": 2,
        "gate and up": 2, "activation": 2, "down": 2, "last k, v": 1, "crossed k, v": 2,
    }  # fmt: skip
    assert names(ops["denoise"]) == {
        "action_in_proj": 1, "action_time_mlp_out": 1, "action_out_proj": 1,
        "qkv": 3, "attention": 3, "o": 3, "gate and up": 3, "down": 3,
    }  # fmt: skip
    assert {op.kind for op in ops["denoise"]} == {Kind.NARROW, Kind.ATTENTION}


@pytest.mark.parametrize(
    "sizes", [PI0, PI05, OPENVLA_7B, SMOLVLA, PI, replace(PI, kind="pi0"), OPENVLA, SMOL]
)
def test_weights_are_those_of_the_parameters(sizes: Sizes) -> None:
    parts = weight_parts(sizes)
    assert sum(parts.values()) == sum(parameter.nbytes for parameter in network(sizes).parameters())
    if sizes is PI05:
        sizes_gb = [
            round(parts[name] / 1e9, 2) for name in ("words", "encoder", "prefix", "expert", "modulation")
        ]
        assert sizes_gb == [1.05, 0.83, 3.96, 0.62, 0.47]


def test_products_of_a_stage_read_its_matrices() -> None:
    ops = operations(PI05, Work(steps=1))["denoise"]
    read = sum(op.count * op.weight_bytes for op in ops if op.kind is Kind.NARROW and op.weights == "bf16")
    layer = 1024 * (2048 + 512) + 2048 * 1024 + 3 * 4096 * 1024
    assert read == 2 * 18 * layer


def test_an_attention_reads_keys_and_values_once_and_a_product_its_weights() -> None:
    (op,) = (op for op in operations(PI05, Work(batch=5, steps=1))["prefill"] if op.kind is Kind.ATTENTION)
    assert op.weight_bytes == 5 * 2 * 544 * 256 * 2  # batch, keys and values, keys, numbers, bytes
    assert op.moved_bytes == 5 * 2 * 544 * 8 * 256 * 2 and op.heads == 8
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


def test_8_bit_rows_are_where_stages_have_them() -> None:
    ops = operations(PI05, Work(precision="w8a8"))
    for name in ("encode", "prefill", "denoise", "decode"):
        products = {op.name: op for op in ops[name] if op.compute == "int8"}
        last = {"last k, v"} if name == "prefill" else set[str]()
        matrices = {"fc1", "fc2"} if name == "encode" else {"gate and up", "down"}
        assert products.keys() == {"qkv", "o"} | matrices | last
        assert all(op.by == (GATED if op.name == "gate and up" else ROWS) for op in products.values())
        rounded = {op.moved_bytes / op.rows for op in ops[name] if op.name == "round"}
        inner = {products[each].inner for each in products if each in ("o", "fc2", "down")}
        assert rounded == {3.0 * width for width in inner}
    several = operations(PI05, Work(precision="w8a8", batch=8))
    assert not any(op.compute == "int8" for op in several["denoise"])
    openvla = operations(OPENVLA_7B, Work(precision="w8a8"))
    assert not any(op.compute == "int8" for op in openvla["encode"])
    assert sum(op.compute == "int8" for op in openvla["prefill"]) == 4


@pytest.mark.parametrize("wrong", [{"views": 0}, {"steps": 0}, {"chunk": 0}, {"precision": "int2"}])
def test_work_that_no_stage_computes_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Work(**wrong)


def _refused(check: Callable[[str], None]) -> list[str]:
    refused = []
    for precision in ENGINE_PRECISIONS:
        try:
            check(precision)
        except ValueError as error:
            assert f"precision is {precision}" in str(error)
            refused.append(precision)
    return refused


@pytest.mark.parametrize("family", ["pi0", "pi05", "openvla", "smolvla"])
def test_precisions_are_those_of_the_engine(family: str, tmp_path: Path) -> None:
    policy: AnyPolicy
    if family == "openvla":
        policy = load_policy(make_openvla_folder(tmp_path))
    elif family == "smolvla":
        policy = load_policy(make_smolvla_folder(tmp_path / "folder"))
    else:
        policy = make_policy(family)

    def run(precision: str) -> None:
        check_options(policy, EngineConfig(fast=True, precision=precision))

    def plan(precision: str) -> None:
        check_work(policy.config, Work(1, 1, precision=precision))

    assert _refused(plan) == _refused(run)
    plan("all-int8")


def test_cameras_and_words_are_those_of_the_model() -> None:
    check_work(PI0, Work(views=3, prompt=48))
    check_work(OPENVLA_7B, Work(views=3))  # it takes one image of however many cameras
    for work in (Work(views=4), Work(prompt=49)):
        with pytest.raises(ValueError, match="this pi0"):
            check_work(PI0, work)
    with pytest.raises(ValueError, match="has 1 cameras"):
        check_work(replace(PI0, image_names=("one",)), Work())


PALIGEMMA, SPARE_WORDS = 2_923_466_480, 64
"""Parameters of google/paligemma-3b-pt-224, whose table has so many more words."""
SMALL_FAST = replace(PI0_FAST, vision=VISION, prefix=PREFIX, vocab=50)


def test_the_published_pi_fast_is_paligemma_with_a_head_of_its_own() -> None:
    width = PI0_FAST.prefix.width
    total = sum(parameter.numel() for parameter in network(MODELS["pi0_fast"]).parameters())
    assert total == PALIGEMMA - SPARE_WORDS * width + PI0_FAST.vocab * width


def test_pi_fast_stages_have_the_flop_that_torch_counts() -> None:
    model, ops = PiFast(SMALL_FAST), operations(SMALL_FAST, Work(views=2, prompt=PROMPT))
    assert total_flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(2, 3, 28, 28)))
    layer = 2 * FRAME * 32 * (32 + 32 + 3 * 48) + 2 * 2 * FRAME * FRAME * 4 * 8  # the last, but keys, values
    with torch.no_grad():
        hidden, kv = model.prefix(torch.rand(1, FRAME, 32))
    assert total_flops(ops["prefill"]) + layer == counted(lambda: model.prefix(torch.rand(1, FRAME, 32)))
    token = counted(lambda: model.logits(model.extend(hidden[:, -1:], kv)[0]))
    assert total_flops(ops["decode"]) == token
    assert {name for name, each in ops.items() if each} == {"encode", "prefill", "decode"}


def test_a_chunk_of_pi_fast_has_as_many_tokens_as_it_may_and_the_memory_room_for_them() -> None:
    device = load("h200")
    plan = make_plan(PI0_FAST, device, Work(views=2, prompt=20))
    short = make_plan(replace(PI0_FAST, max_action_tokens=32), device, Work(views=2, prompt=20))
    assert plan.action[0] / short.action[0] == pytest.approx(255 / 31)
    token = 2 * 18 * 256 * 2  # keys and values of one head in each layer, in bfloat16
    assert kv_bytes(PI0_FAST, 5) == 5 * (3 * 256 + 202) * token
    assert plan.memory.buffers - short.memory.buffers == 5 * (256 - 32) * token
    assert copies(PI0_FAST, Work()) == 0


@pytest.mark.parametrize("precision", ENGINE_PRECISIONS[1:])
def test_precisions_that_an_engine_of_pi_fast_lacks_are_refused(precision: str) -> None:
    with pytest.raises(ValueError, match=rf"{precision}.*pi0_fast"):
        check_work(PI0_FAST, Work(precision=precision))
