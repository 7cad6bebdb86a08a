"""The plan of a GR00T: parameters and floating point operations of the published networks, computed by
hand from their architecture, and what its plain stages promise."""

from __future__ import annotations

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.networks import weight_parts
from vla_accel_ros.planning.operations import total_flops
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Work, check_work


@pytest.mark.parametrize(("kind", "billions"), [("groot_n1_7", 3.14), ("groot_n1_5", 2.40)])
def test_a_published_network_has_its_parameters(kind: str, billions: float) -> None:
    assert weight_parts(MODELS[kind])["all"] / 2e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("kind", "views", "prompt", "encode", "prefill", "denoise"),
    [
        ("groot_n1_7", 1, 27, 175, 148 + 37 + 18, 70),
        ("groot_n1_7", 2, 29, 350, 256 + 64 + 32, 70),
        ("groot_n1_5", 1, 47, 220, 375 + 125 + 31, 42),
        ("groot_n1_5", 2, 54, 440, 715 + 238 + 57, 43),
    ],
)
def test_stages_have_the_operations_of_the_architecture(
    kind: str, views: int, prompt: int, encode: float, prefill: float, denoise: float
) -> None:
    """In GFLOP: encode, then language model, mixer, and keys and values; and one step."""
    ops = operations(MODELS[kind], Work(views, prompt, steps=4))
    found = {name: total_flops(ops[name]) / 1e9 for name in ("encode", "prefill", "denoise")}
    assert found["encode"] == pytest.approx(encode, rel=0.01)
    assert found["prefill"] == pytest.approx(prefill, rel=0.01)
    assert found["denoise"] == pytest.approx(4 * denoise, rel=0.02)
    assert not ops["decode"]


def test_a_plan_fits_a_gpu_and_robots_queue() -> None:
    sizes, device = MODELS["groot_n1_7"], load("h100")
    one, two = (make_plan(sizes, device, Work(1, steps=4, batch=batch)) for batch in (1, 2))
    assert one.fits
    assert one.memory.weights == weight_parts(sizes)["all"]
    assert two.frame[0] == pytest.approx(2 * one.frame[0])
    assert two.action[0] == pytest.approx(2 * one.action[0])


@pytest.mark.parametrize("work", [Work(views=4), Work(prompt=193), Work(precision="fp8")])
def test_what_it_cannot_have_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="groot_n1_7"):
        check_work(MODELS["groot_n1_7"], work)
