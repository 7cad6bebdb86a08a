"""What a controller executes of chunks with horizons: within limits, and at rest when no other comes."""

from __future__ import annotations

import numpy as np
import pytest
from executed import TrajectoryController, judge_path
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_accel_ros.control.chunking.buffer import MODES, TrajectoryBuffer
from vla_accel_ros.control.horizon import Horizons, limited
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
STEP_NS, LATENCY_NS, BEGIN_NS = S // 30, S // 10, 100 * S
TOTAL = 32
JOINTS = ("pan", "lift")
LIMITS = JointLimits(*np.array([[-1.5, -1.5], [1.5, 1.5], [2.0, 2.0], [12.0, 12.0]]))


class Robot:
    """A buffer and the controller of what it sends; chunks come LATENCY_NS after their stamps."""

    def __init__(self, mode: str) -> None:
        self.buffer = TrajectoryBuffer(JOINTS, LIMITS, mode, max_age_s=10.0)
        self.buffer.reset(np.zeros(2))
        self.controller = TrajectoryController(JOINTS, np.zeros(2), from_desired=True)
        self.accepted: list[Chunk] = []

    def take(self, chunk: Chunk) -> None:
        now_ns = chunk.stamp_ns + LATENCY_NS
        sent = self.buffer.update(chunk, now_ns)
        if sent is not None:
            self.accepted.append(chunk)
            assert self.controller.accept(sent, now_ns, TrajectoryPoint(now_ns, np.zeros(2), np.zeros(2)))

    def executed(self, until_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Times [N] and positions [N, D] from before the first chunk on, every 2 ms."""
        times, positions = self.controller.path(until_ns)
        kept = times >= BEGIN_NS - S
        return times[kept], positions[kept]


def make_chunk(number: int, stamp_ns: int, rng: np.random.Generator) -> Chunk:
    """A smooth stroke of up to 1 rad from somewhere, with sizes of updates that grow."""
    t = np.arange(1, TOTAL + 1)[:, None] / TOTAL
    actions = rng.uniform(-0.6, 0.6, 2) + rng.uniform(-1.0, 1.0, 2) * t
    sizes = np.stack([np.ones(TOTAL), np.linspace(0.5, 1.5, TOTAL)]).astype(np.float32)
    return Chunk(
        actions.astype(np.float32), stamp_ns, 1 / 30, number, number, sizes[-1], step_magnitudes=sizes
    )


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(
    words=st.lists(
        st.sampled_from(["all", "static:1", "static:9", "static:17", "update_ratio:0.1+elastic:3"]),
        min_size=1,
        max_size=6,
    ),
    gaps=st.lists(st.integers(1, 40), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_motion_keeps_its_limits_and_ends_at_rest_whatever_horizons_come(mode, words, gaps, seed):
    robot, rng, stamp_ns = Robot(mode), np.random.default_rng(seed), BEGIN_NS
    for number, word in enumerate(words):
        chunk = make_chunk(number, stamp_ns, rng)
        robot.take(limited(chunk, Horizons(word).of(chunk)))
        stamp_ns += gaps[number] * STEP_NS
    end_ns = stamp_ns + 4 * S
    times, positions = robot.executed(end_ns)
    assert judge_path(times, positions, LIMITS, [], []) == []
    np.testing.assert_array_equal(
        positions[-S // (2 * 10**6 * 4) :], np.broadcast_to(positions[-1], (125, 2))
    )
    assert not robot.controller.rejected
    if not robot.accepted:
        np.testing.assert_array_equal(positions[-1], 0.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("actions", [9, 12, 20, 28])
def test_nothing_behind_the_horizon_is_executed_but_the_way_to_rest(mode, actions):
    """A ramp of 0.3 rad/s, caught up with at no more than 1 rad/s, which takes up to v^2 / 2a to brake."""
    t = np.arange(1, TOTAL + 1)[:, None] / 30
    chunk = Chunk((0.3 * t * [1, 1]).astype(np.float32), BEGIN_NS, 1 / 30, 0, 0, np.zeros(TOTAL, np.float32))
    robot = Robot(mode)
    robot.take(limited(chunk, Horizons(f"static:{actions}").of(chunk)))
    _, positions = robot.executed(BEGIN_NS + 5 * S)
    last = chunk.actions[actions - 1]
    assert (positions <= last + 1.0 / (2 * 12.0)).all()
    np.testing.assert_allclose(positions[-1], last, atol=1.0 / (2 * 12.0))
    whole = Robot(mode)
    whole.take(chunk)
    assert (whole.executed(BEGIN_NS + 5 * S)[1][-1] > positions[-1] + 0.01).all()


@pytest.mark.parametrize("mode", ["async", "blend", "rtc"])
def test_while_the_next_chunk_is_late_the_elastic_part_is_executed(mode):
    t = np.arange(1, TOTAL + 1)[:, None] / 30
    ends = []
    for word in ("static:10", "static:10+elastic:8"):
        chunk = Chunk(
            (0.2 * t * [1, 1]).astype(np.float32), BEGIN_NS, 1 / 30, 0, 0, np.zeros(TOTAL, np.float32)
        )
        robot = Robot(mode)
        robot.take(limited(chunk, Horizons(word).of(chunk)))
        ends.append(robot.executed(BEGIN_NS + 5 * S)[1][-1, 0])
    np.testing.assert_allclose(ends, [0.2 * 10 / 30, 0.2 * 18 / 30], atol=0.02)


def test_a_horizon_that_is_past_when_its_chunk_comes_moves_nothing():
    robot = Robot("blend")
    chunk = make_chunk(0, BEGIN_NS, np.random.default_rng(0))
    robot.take(limited(chunk, Horizons("static:3").of(chunk)))
    assert robot.buffer.counts == {"past": 1}
    np.testing.assert_array_equal(robot.executed(BEGIN_NS + 3 * S)[1], 0.0)
