"""Flow matching: integration, on flow fields whose answer is known, and noise that is a function of what it
is for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from guiding import kept
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.models.flow.rtc import SCHEDULES, Guidance
from vla_accel_ros.models.flow.sampling import flow_times, sample
from vla_accel_ros.models.flow.solver import SOLVERS


@pytest.mark.parametrize("rule", ["openpi", "lerobot"])
@given(steps=st.integers(1, 64))
def test_times_fall_evenly_from_one(rule: str, steps: int) -> None:
    times = flow_times(steps, rule)
    assert len(times) == steps
    assert times[0] == 1.0
    assert times == pytest.approx([1 - i / steps for i in range(steps)], abs=2e-6)


def test_openpi_accumulates_in_float32() -> None:
    assert flow_times(10, "openpi")[-1] == pytest.approx(0.09999993, abs=5e-9)
    assert flow_times(10, "lerobot")[-1] == pytest.approx(0.1, abs=1e-15)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_straight_flow_is_followed_exactly(steps: int, solver: str) -> None:
    """With v = noise - target everywhere, any number of steps ends at the target."""
    target = torch.tensor([[[0.5, -2.0]]])
    noise = torch.tensor([[[1.0, 3.0]]])
    flow = sample(lambda x, t: noise - target, noise, steps, solver=solver)
    torch.testing.assert_close(flow.actions, target)
    torch.testing.assert_close(flow.update, (target - noise) / steps)


def test_the_state_stays_float32() -> None:
    def velocity(x: Tensor, t: float) -> Tensor:
        assert x.dtype == torch.float32
        return torch.full_like(x, 2.0**-12)  # lost if x were bfloat16

    flow = sample(velocity, torch.ones(1, 1, 1, dtype=torch.bfloat16), 16)
    assert flow.actions.item() == 1.0 - 2.0**-12


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("ab2", 2)])
def test_half_the_step_is_a_half_or_a_quarter_of_the_error(solver: str, order: int) -> None:
    """dx/dt = cos(3 t) x from t = 1 to 0."""
    exact = math.exp(-math.sin(3.0) / 3.0)
    start = torch.ones(1, 1, 1, dtype=torch.float64)

    def error(steps: int) -> float:
        flow = sample(lambda x, t: math.cos(3.0 * t) * x, start, steps, "lerobot", solver)
        return abs(flow.actions.item() - exact)

    assert error(64) / error(128) == pytest.approx(2.0**order, rel=0.05)


def test_a_step_of_ab2_extrapolates_from_the_last() -> None:
    velocities, updates = iter((8.0, 4.0, 1.0)), list[float]()
    sample(
        lambda x, t: torch.full_like(x, next(velocities)),
        torch.zeros(1, 1, 1),
        3,
        solver="ab2",
        told=lambda update: updates.append(update.item()),
    )
    assert [-3.0 * update for update in updates] == pytest.approx([8.0, 6.0 - 4.0, 1.5 - 2.0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_guidance_closes_as_much_whatever_the_solver(solver: str, schedule: str) -> None:
    """And does not swing: on a straight flow what is left of a difference is what models.flow.rtc says."""
    steps, noise = 5, torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(1))
    guidance = Guidance(noise[0] + 1.0, 2, 6, schedule, max_weight=steps)
    free = sample(lambda x, t: noise, noise, steps, solver=solver).actions
    flow = sample(
        lambda x, t: noise, noise, steps, "openpi", solver, lambda field: guidance.guide(field, noise)
    )
    target, weights = guidance.target(noise.shape)
    part = torch.tensor([kept(float(weight), steps) for weight in weights])
    torch.testing.assert_close(flow.actions, free + part[:, None] * (target - free), atol=1e-5, rtol=1e-5)


def test_with_euler_a_velocity_may_be_guided_before() -> None:
    noise = torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(2))
    guidance = Guidance(noise[0].flip(0), 2, 6)

    def velocity(x: Tensor, t: float) -> Tensor:
        return torch.sin(3.0 * x) + t

    before = sample(guidance.guide(velocity, noise), noise, 4)
    inside = sample(velocity, noise, 4, guide=lambda field: guidance.guide(field, noise))
    assert torch.equal(before.actions, inside.actions) and torch.equal(before.update, inside.update)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="solver is 'heun'"):
        sample(lambda x, t: x, torch.zeros(1, 1, 1), solver="heun")
    with pytest.raises(ValueError, match="steps is 0"):
        flow_times(0)
    with pytest.raises(ValueError, match="time_rule is 'euler'"):
        flow_times(1, "euler")


def test_another_seed_and_another_request_give_other_noise():
    made = [fresh(0, 0, (8, 6)), fresh(0, 1, (8, 6)), fresh(1, 0, (8, 6))]
    for place, one in enumerate(made):
        assert all(not np.isclose(one, other).any() for other in made[:place])
    np.testing.assert_array_equal(made[0], fresh(0, 0, (8, 6)))
