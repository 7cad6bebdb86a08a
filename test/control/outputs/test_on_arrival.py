"""A controller with another clock: whenever messages arrive, what it executes keeps the whole limits."""

from __future__ import annotations

import numpy as np
import pytest
from executed import TrajectoryController, judge_path

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.hand_over import HandOver
from vla_accel_ros.control.outputs.on_arrival import ahead, approached, eased
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
JOINTS = ("a", "b", "c")
MODES = ("block", "async", "blend", "rtc")


def play(
    seed: int, as_it_was: bool = False, restless: bool = False, lead_s: float | None = None
) -> dict[str, float]:
    """Some seconds of chunks and stops, each message a random part of its lead under way; what was broken,
    by how much. as_it_was: messages that begin with the present, by the whole limits. restless: decisions
    change several times during an approach, by jumps and stops, of joints that take long to brake."""
    rng = np.random.default_rng(seed)
    lower = rng.uniform(-3.0, 0.0, 3)
    limits = JointLimits(
        lower,
        lower + rng.uniform(1.0, 5.0, 3),
        rng.uniform(0.5, 4.0, 3),
        rng.uniform(5.0, 15.0 if restless else 40.0, 3),
    )
    own_limits = limits if as_it_was else eased(limits)
    lead_s = rng.choice((0.01, 0.03, 0.1)) if lead_s is None else lead_s
    hz = rng.choice((30, 50, 100) if restless else (5, 10, 30))
    horizon, step_s = rng.choice((8, 16, 32)), rng.choice((0.033, 0.05, 0.1))
    speed, phase, noise = rng.uniform(0.5, 5.0, 3), rng.uniform(0.0, 6.0, 3), rng.choice((0.0, 0.002, 0.02))
    mode = MODES[rng.integers(4)] if restless else "blend"
    jumps, stops = (0.15, 0.08) if restless else (0.05, 0.03)
    executes = HandOver(own_limits)
    buffer = TrajectoryBuffer(JOINTS, own_limits, mode, lead_s=lead_s, max_age_s=0.8)
    middle, half = (limits.upper + limits.lower) / 2, (limits.upper - limits.lower) / 2
    buffer.reset(middle)
    controller, arrives_ns, now_ns = TrajectoryController(JOINTS, middle, True), 0, S
    for k in range((4 if restless else 8) * hz):
        now_ns, stamp_ns = S + k * S // hz, S + k * S // hz - S // 12
        t = (stamp_ns - S) * 1e-9 + np.arange(1, horizon + 1)[:, None] * step_s
        actions = middle + 0.9 * half * np.sin(t * speed + phase) + noise * rng.normal(size=3)
        actions += rng.uniform(-1.0, 1.0, 3) * (rng.random() < jumps)
        chunk = Chunk(
            actions.astype(np.float32), stamp_ns, step_s, k + 1, k + 1, np.zeros(horizon, np.float32)
        )
        path = buffer.update(chunk, now_ns) if rng.random() >= stops else buffer.stop(now_ns)
        if path is None:
            continue
        arrives_ns = max(arrives_ns + 1, now_ns + round(rng.uniform(0.0, lead_s) * S))
        sent = path if as_it_was else approached(path, own_limits, lead_s, now_ns, executes.state)
        executes.sent(sent, sent, now_ns)
        arriving = sent.later(arrives_ns - now_ns)
        kept_ns = max(arrives_ns + S, arriving.end_ns + 1)
        end = np.array([kept_ns]), arriving.positions[-1:], np.zeros((1, 3))
        arriving = arriving.then(Trajectory(JOINTS, *end))
        assert controller.accept(arriving, arrives_ns, TrajectoryPoint(arrives_ns, middle))
    times, positions = controller.path(now_ns)
    broken = judge_path(times[times >= S], positions[times >= S], limits, [], [])
    return {limit.what: limit.by for limit in broken}


@pytest.mark.parametrize("seed", range(16))
def test_whenever_messages_arrive_the_limits_are_kept(seed):
    broken = play(seed)
    assert broken.pop("position", 1.0) <= 1.01, "of the range"
    assert not broken


@pytest.mark.parametrize("lead_s", [0.0, 0.01])
@pytest.mark.parametrize("seed", [59, 126])
def test_decisions_that_change_while_it_approaches_break_no_limit(seed, lead_s):
    """With lead_s 0 these took 1.02 and 1.08 times the acceleration that is allowed."""
    broken = play(seed, restless=True, lead_s=lead_s)
    assert broken.pop("position", 1.0) <= 1.01, "of the range"
    assert not broken


@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("room", [0.01, 0.1])
def test_a_long_approach_carries_no_joint_out_of_its_range(room, late_s):
    """The time of an approach is that of the joint which brakes slowest: here of the second, which rests."""
    limits = JointLimits(*np.array([[-room, -2.5], [1.2, 1.5], [3.9, 2.4], [7.8, 2.0]]))
    standstill, now_ns = np.zeros((2, 2)), S + S // 3
    before = Trajectory(JOINTS[:2], np.array([S, 2 * S]), np.array([[0.8, 0.0], [0.0, 0.0]]), standstill)
    controller = TrajectoryController(JOINTS[:2], before.positions[0], True)
    controller.accept(before, S, TrajectoryPoint(S, before.positions[0]))
    sent = approached(before.since(2 * S), eased(limits), 0.3, now_ns, before.sample)
    late_ns = round(late_s * S)
    controller.accept(sent.later(late_ns), now_ns + late_ns, TrajectoryPoint(S, before.positions[0]))
    times, positions = controller.path(8 * S)
    broken = {limit.what: limit.by for limit in judge_path(times, positions, limits, [], [])}
    assert broken.pop("position", 1.0) <= 1.01, "of the range"
    assert not broken
    np.testing.assert_allclose(positions[-1], 0.0, atol=1e-9)


def test_messages_that_begin_with_the_present_would_step():
    assert min(play(seed, as_it_was=True)["acceleration"] for seed in range(4)) > 50.0


def test_what_ends_before_the_controller_could_be_there_is_its_end():
    path = Trajectory(("a",), *map(np.array, ([S, S + 50_000_000], [[0.0], [0.1]], [[1.0], [0.0]])))
    end = ahead(path, S + 200_000_000)
    assert end.start_ns == end.end_ns == S + 200_000_000 and end.positions[-1, 0] == 0.1
    np.testing.assert_array_equal(ahead(path, S + 20_000_000).times_ns, [S + 20_000_000, S + 50_000_000])
