"""Euler integration, on flow fields whose answer is known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vla_accel_ros.models.flow.sampling import flow_times, sample


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


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_straight_flow_is_followed_exactly(steps: int) -> None:
    """With v = noise - target everywhere, any number of steps ends at the target."""
    target = torch.tensor([[[0.5, -2.0]]])
    noise = torch.tensor([[[1.0, 3.0]]])
    flow = sample(lambda x, t: noise - target, noise, steps)
    torch.testing.assert_close(flow.actions, target)
    torch.testing.assert_close(flow.update, (target - noise) / steps)


def test_the_state_stays_float32() -> None:
    def velocity(x: Tensor, t: float) -> Tensor:
        assert x.dtype == torch.float32
        return torch.full_like(x, 2.0**-12)  # lost if x were bfloat16

    flow = sample(velocity, torch.ones(1, 1, 1, dtype=torch.bfloat16), 16)
    assert flow.actions.item() == 1.0 - 2.0**-12


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="steps is 0"):
        flow_times(0)
    with pytest.raises(ValueError, match="time_rule is 'euler'"):
        flow_times(1, "euler")
