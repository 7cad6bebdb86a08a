"""The plan of a mimic-video: floating point operations that were counted by hand from its architecture."""

from __future__ import annotations

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work

SIZES = MODELS["mimic_video"]


def test_stages_have_the_operations_of_the_architecture() -> None:
    """In TFLOP: 8.26 of five frames, 107 of 20 blocks and 3.87 of the decoder's keys and values, ten steps of
    0.043. The text has 20 rows instead of 512, which saves 1.6."""
    ops = operations(SIZES, Work(5, 20))
    flops = {name: total_flops(ops[name]) / 1e12 for name in ("encode", "prefill", "denoise")}
    assert flops["encode"] == pytest.approx(8.26, rel=0.02)
    assert flops["prefill"] == pytest.approx(107 + 3.87 - 1.6, rel=0.02)
    assert flops["denoise"] == pytest.approx(0.43, rel=0.03)


def test_a_plan_fits_a_gpu_of_80_gb_and_robots_queue() -> None:
    one, two = (make_plan(SIZES, load("h100"), Work(5, batch=batch)) for batch in (1, 2))
    assert one.fits and 0.1 < one.latency[1] < one.latency[2] < 1.5
    assert two.frame[0] == pytest.approx(2 * one.frame[0])


@pytest.mark.parametrize("work", [Work(views=6), Work(prompt=513), Work(precision="fp8")])
def test_what_it_cannot_have_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="mimic_video"):
        check_work(SIZES, work)
