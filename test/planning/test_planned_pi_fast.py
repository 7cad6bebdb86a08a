"""The plan of a pi0-FAST: parameters of the published PaliGemma, operations as torch counts them, and the
tokens of a chunk one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vla_accel_ros.models.config import GemmaConfig, VisionConfig
from vla_accel_ros.models.pi_fast.config import PI0_FAST
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import copies, kv_bytes
from vla_accel_ros.planning.networks import network
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import ENGINE_PRECISIONS, Work, check_work

PALIGEMMA, SPARE_WORDS = 2_923_466_480, 64
"""Parameters of google/paligemma-3b-pt-224, whose table has so many more words."""
VISION = VisionConfig(width=24, depth=3, mlp=40, heads=4, image_size=28, patch=7)
PREFIX = GemmaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=1, head_dim=8)
SMALL = replace(PI0_FAST, vision=VISION, prefix=PREFIX, vocab=50)
PROMPT = 16
FRAME = 2 * VISION.tokens + PROMPT


def counted(run: Callable[[], object]) -> int:
    """Floating point operations of the products and attentions of a call."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_the_published_network_is_paligemma_with_a_head_of_its_own() -> None:
    width = PI0_FAST.prefix.width
    total = sum(parameter.numel() for parameter in network(MODELS["pi0_fast"]).parameters())
    assert total == PALIGEMMA - SPARE_WORDS * width + PI0_FAST.vocab * width


def test_stages_have_the_flop_that_torch_counts() -> None:
    model, ops = PiFast(SMALL), operations(SMALL, Work(views=2, prompt=PROMPT))
    assert total_flops(ops["encode"]) == counted(lambda: model.encode(torch.rand(2, 3, 28, 28)))
    layer = 2 * FRAME * 32 * (32 + 32 + 3 * 48) + 2 * 2 * FRAME * FRAME * 4 * 8  # the last, but keys, values
    with torch.no_grad():
        hidden, kv = model.prefix(torch.rand(1, FRAME, 32))
    assert total_flops(ops["prefill"]) + layer == counted(lambda: model.prefix(torch.rand(1, FRAME, 32)))
    token = counted(lambda: model.logits(model.extend(hidden[:, -1:], kv)[0]))
    assert total_flops(ops["decode"]) == token
    assert {name for name, each in ops.items() if each} == {"encode", "prefill", "decode"}


def test_a_chunk_has_as_many_tokens_as_it_may_and_the_memory_room_for_them() -> None:
    device = load("h200")
    plan = make_plan(PI0_FAST, device, Work(views=2, prompt=20))
    short = make_plan(replace(PI0_FAST, max_action_tokens=32), device, Work(views=2, prompt=20))
    assert plan.action[0] / short.action[0] == pytest.approx(255 / 31)
    assert plan.token == pytest.approx(plan.action[0] / 255)
    token = 2 * 18 * 256 * 2  # keys and values of one head in each layer, in bfloat16
    assert kv_bytes(PI0_FAST, 5) == 5 * (3 * 256 + 202) * token
    assert plan.memory.buffers - short.memory.buffers == 5 * (256 - 32) * token
    assert copies(PI0_FAST, Work()) == 0


@pytest.mark.parametrize("precision", ENGINE_PRECISIONS[1:])
def test_precisions_that_the_engine_lacks_are_refused(precision: str) -> None:
    with pytest.raises(ValueError, match=rf"{precision}.*pi0_fast"):
        check_work(PI0_FAST, Work(precision=precision))
