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

from vla_accel_ros.models.flow.noise import coherent, fresh
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


STEP_NS = 100_000_000
STAMPS = st.integers(0, 10**12).map(lambda step: step * STEP_NS)
H, A = 10, 6


@given(stamp_ns=STAMPS, passed=st.integers(0, 9), columns=st.integers(1, 33), seed=st.integers(0, 2**63))
def test_chunks_that_overlap_begin_alike_where_they_speak_of_the_same_time(stamp_ns, passed, columns, seed):
    first = coherent(seed, stamp_ns, 0.1, (10, columns))
    later = coherent(seed, stamp_ns + passed * STEP_NS, 0.1, (10, columns))
    np.testing.assert_array_equal(first[passed:], later[: 10 - passed])
    assert not np.isin(later[10 - passed :], first).any()


@given(
    stamp_ns=st.integers(0, 2 * 10**18),
    later_ns=st.integers(0, 12 * STEP_NS),
    step_dt_s=st.sampled_from([0.02, 1 / 30, 0.05, 0.1]),
)
def test_frames_between_two_steps_take_the_noise_of_the_nearest(stamp_ns, later_ns, step_dt_s):
    """Each row is wholly that of one time, at most half a step from its own; so chunks share whole rows."""
    step_ns = step_dt_s * 1e9
    first, later = (coherent(3, at, step_dt_s, (H, A)) for at in (stamp_ns, stamp_ns + later_ns))
    same = [(i, j) for i in range(H) for j in range(H) if (first[i] == later[j]).all()]
    shared = {i - j for i, j in same}
    passed = round((stamp_ns + later_ns) / step_ns) - round(stamp_ns / step_ns)
    assert shared == ({passed} if passed < H else set()) and len(same) == max(0, H - passed)
    assert abs(passed * step_ns - later_ns) <= step_ns * (1 + 1e-4), "what is shared is due within a step"


@given(step=st.integers(0, 5 * 10**10), phase=st.floats(-0.49, 0.49), early=st.floats(-0.49, 0.49))
def test_a_stamp_that_is_less_than_half_a_step_off_changes_nothing(step, phase, early):
    step_ns = 1e9 / 30
    exact, off = (coherent(0, round((step + part) * step_ns), 1 / 30, (H, A)) for part in (phase, early))
    np.testing.assert_array_equal(exact, off)


def test_a_chunk_is_normal_and_none_of_its_numbers_knows_of_another():
    """Mean 0 and covariance 1 of all H x A numbers of one chunk, over chunks that share nothing,
    whether of one seed at times far apart or of many seeds at one time; stamps are not of whole steps."""
    count = 20_000
    of_times = [coherent(5, 1_234_567 + k * 17 * STEP_NS, 0.1, (H, A)) for k in range(count)]
    of_seeds = [coherent(seed, 1_234_567, 0.1, (H, A)) for seed in range(count)]
    for chunks in (of_times, of_seeds):
        flat = np.reshape(chunks, (count, H * A)).astype(np.float64)
        np.testing.assert_allclose(flat.mean(axis=0), 0.0, atol=5 / count**0.5)
        np.testing.assert_allclose(np.cov(flat.T), np.eye(H * A), atol=5 * (2 / count) ** 0.5)
        for moment, normal, spread in ((3, 0.0, 15.0), (4, 3.0, 96.0)):
            limit = 5 * (spread / count) ** 0.5
            np.testing.assert_allclose((flat**moment).mean(axis=0), normal, atol=limit)
        assert np.abs(np.corrcoef((flat**2).T) - np.eye(H * A)).max() < 5 / count**0.5


def test_another_seed_another_request_and_another_time_give_other_noise():
    made = [
        coherent(0, 0, 0.1, (8, 6)),
        coherent(1, 0, 0.1, (8, 6)),
        coherent(0, 80 * STEP_NS, 0.1, (8, 6)),
        fresh(0, 0, (8, 6)),
        fresh(0, 1, (8, 6)),
        fresh(1, 0, (8, 6)),
    ]
    for place, one in enumerate(made):
        assert all(not np.isclose(one, other).any() for other in made[:place])
    np.testing.assert_array_equal(made[0], coherent(0, 0, 0.1, (8, 6)))
    np.testing.assert_array_equal(made[3], fresh(0, 0, (8, 6)))
