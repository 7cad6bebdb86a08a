"""The plan of an X-VLA: parameters and floating point operations of the published network, computed by hand
from its architecture."""

from __future__ import annotations

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work

SIZES = MODELS["xvla"]


def test_the_published_network_has_its_parameters() -> None:
    assert weight_parts(SIZES)["all"] / 2 == pytest.approx(879e6, rel=0.002)


def test_stages_have_the_operations_of_the_architecture() -> None:
    """In GFLOP at three views: 162 a view, 35 of the prompt, and 2.27 TFLOP of 10 steps together, 3 % less
    because the last block computes the actions' rows alone."""
    ops = operations(SIZES, Work(3, 20))
    flops = {name: total_flops(ops[name]) / 1e9 for name in ("encode", "prefill", "denoise")}
    assert flops["encode"] == pytest.approx(3 * 162, rel=0.02)
    assert flops["prefill"] == pytest.approx(35.1 + 0.45, rel=0.02)
    assert 0.95 * 1746 < flops["denoise"] < 1746
    assert not ops["decode"]


def test_a_plan_fits_a_gpu_and_robots_queue() -> None:
    one, two = (make_plan(SIZES, load("h100"), Work(2, batch=batch)) for batch in (1, 2))
    assert one.fits
    assert one.memory.weights == weight_parts(SIZES)["all"]
    assert two.action[0] == pytest.approx(2 * one.action[0])


@pytest.mark.parametrize("work", [Work(views=4), Work(prompt=65), Work(precision="fp8")])
def test_what_it_cannot_have_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="xvla"):
        check_work(SIZES, work)
