"""The plan of a Fast-WAM: parameters and floating point operations of the published network, computed by hand
from its architecture."""

from __future__ import annotations

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import kv_bytes
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work

SIZES = MODELS["fastwam"]


def test_the_published_network_has_its_parameters() -> None:
    """In millions: the video without its last layer's end, its head and what makes its modulations, the
    actions, the text encoder, and a third of the VAE's encoder."""
    video = 5000 - (163.7 - 18.9) - 0.6 - (3072 * (256 + 3072 + 6 * 3072) + 8 * 3072) / 1e6
    parts = video + 1021 + 5681 + 51
    assert weight_parts(SIZES)["all"] / 2e6 == pytest.approx(parts, rel=0.002)


def test_stages_have_the_operations_of_the_architecture() -> None:
    """In GFLOP: of words once an instruction, with their keys and values; of a frame, whose last video layer
    is keys and values alone; of 10 steps."""
    ops = operations(SIZES, Work(2, 128))
    flops = {name: total_flops(each) / 1e9 for name, each in ops.items() if each}
    assert flops["text_encode"] == pytest.approx(1192 + 151 + 50, rel=0.02)
    assert flops["encode"] == pytest.approx(163, rel=0.01)
    assert flops["prefill"] == pytest.approx((1005 - 150) * 29 / 30, rel=0.02)
    assert flops["denoise"] == pytest.approx(10 * 55, rel=0.02)


def test_words_are_no_part_of_a_frame() -> None:
    device = load("h100")
    few, many = (make_plan(SIZES, device, Work(2, prompt)) for prompt in (8, 128))
    assert few.fits and few.frame == many.frame and few.action == many.action
    assert few.stages["text_encode"].flops < many.stages["text_encode"].flops / 5
    assert few.action[0] > 2.0 * 1.64e9 * 10 / 3.35e12, "the actions' weights are read in every step"


def test_keys_and_values_of_frames_and_words_are_counted() -> None:
    """36 MB of a frame, 47 MB of an instruction in each transformer."""
    assert kv_bytes(SIZES, 1) == pytest.approx(36.1e6 + 0.4e6 + 45.6e6 + 47.2e6, rel=0.01)


@pytest.mark.parametrize("work", [Work(views=3), Work(prompt=129), Work(precision="fp8")])
def test_what_it_cannot_have_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="fastwam"):
        check_work(SIZES, work)
