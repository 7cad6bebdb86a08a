"""Real-time chunking: the weights by hand, and what guidance does to a chunk."""

from __future__ import annotations

import math

import pytest
import torch
from guiding import kept
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.models.flow.rtc import (
    MAX_WEIGHT,
    SCHEDULES,
    Guidance,
    guidance_weight,
    prefix_weights,
)
from vla_accel_ros.models.flow.sampling import sample


def test_weights_by_hand() -> None:
    assert prefix_weights("LINEAR", 2, 5, 7).tolist() == pytest.approx([1, 1, 0.75, 0.5, 0.25, 0, 0])
    assert prefix_weights("ONES", 2, 5, 7).tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert prefix_weights("ZEROS", 2, 5, 7).tolist() == [1, 1, 0, 0, 0, 0, 0]
    expected = [w * math.expm1(w) / (math.e - 1) for w in (0.75, 0.5, 0.25)]
    assert prefix_weights("EXP", 2, 5, 7).tolist() == pytest.approx([1, 1, *expected, 0, 0])


@given(
    schedule=st.sampled_from(SCHEDULES),
    delay=st.integers(0, 20),
    execution=st.integers(0, 20),
    horizon=st.integers(1, 20),
)
def test_weights_fall_from_one_to_zero(schedule: str, delay: int, execution: int, horizon: int) -> None:
    weights = prefix_weights(schedule, delay, execution, horizon)
    assert weights.shape == (horizon,)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights.diff() <= 0).all()
    assert (weights[: min(delay, execution)] == 1).all()
    assert (weights[execution:] == 0).all()


def test_strength_is_bounded_and_finite() -> None:
    assert guidance_weight(1.0) == MAX_WEIGHT
    assert guidance_weight(0.0) == MAX_WEIGHT
    assert guidance_weight(0.5) == pytest.approx(2.0)
    assert guidance_weight(0.9) == pytest.approx((0.9 / 0.1) * (0.81 + 0.01) / 0.81, rel=1e-6)
    assert guidance_weight(0.3) == pytest.approx((0.3 / 0.7) * (0.09 + 0.49) / 0.09, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_every_step_of_guidance_closes_its_part_of_the_difference(steps: int) -> None:
    """A straight flow to zero: what guidance leaves of a previous chunk of ones is known in closed form."""
    noise = torch.randn(1, 6, 1, generator=torch.Generator().manual_seed(0))
    guidance = Guidance(torch.ones(6, 1), 1, 6, max_weight=float(steps))
    actions = sample(guidance.guide(lambda x, t: noise, noise), noise, steps).actions[0, :, 0]
    weights = prefix_weights("LINEAR", 1, 6, 6)
    assert actions.tolist() == pytest.approx([kept(float(w), steps) for w in weights], abs=1e-5)
    assert actions[0] == pytest.approx(1.0, abs=1e-5)


def test_a_small_weight_keeps_most_of_the_old_plan() -> None:
    """Why the mask ends soon after the delay: the weights say less than the steps that repeat them."""
    assert kept(0.3, 5) == pytest.approx(0.71, abs=0.01)
    assert kept(0.3, 10) == pytest.approx(0.81, abs=0.01)
    assert kept(0.5, 5, most=10.0) == pytest.approx(1.0), "twice as strong as the steps allow"


def test_the_exact_form_needs_no_gradients_around_it() -> None:
    noise = torch.randn(1, 3, 1, generator=torch.Generator().manual_seed(0))
    guided = Guidance(torch.zeros(3, 1), 1, 3, jacobian="exact").guide(lambda x, t: x.sin() / t, noise)
    with torch.no_grad():
        out = guided(noise, 0.7)
    assert not out.requires_grad
    slope = 1 - 0.7 * noise.cos() / 0.7
    clean = noise - noise.sin()
    weights = prefix_weights("LINEAR", 1, 3, 3)[:, None]
    expected = noise.sin() / 0.7 - guidance_weight(0.7) * slope * (0 - clean) * weights
    torch.testing.assert_close(out, expected)


def test_mistakes_are_named() -> None:
    previous = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"guidance\.schedule is 'COS'"):
        Guidance(previous, 1, 2, schedule="COS")
    with pytest.raises(ValueError, match=r"guidance\.jacobian is 'half'"):
        Guidance(previous, 1, 2, jacobian="half")
    with pytest.raises(ValueError, match=r"guidance\.previous has shape \[3\]"):
        Guidance(torch.zeros(3), 1, 2)
    with pytest.raises(ValueError, match="delay -1 "):
        Guidance(previous, -1, 2)
    with pytest.raises(ValueError, match=r"guidance\.max_weight is 0"):
        Guidance(previous, 1, 2, max_weight=0)
    for noise in (torch.zeros(1, 2, 2), torch.zeros(1, 4, 3)):
        with pytest.raises(ValueError, match=r"guidance\.previous has shape \[3, 2\]"):
            Guidance(previous, 1, 2).guide(lambda x, t: x, noise)
