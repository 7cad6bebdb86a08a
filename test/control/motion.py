"""Builders and measures that the control tests share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
JOINTS = ("a", "b", "c")
LIMITS = JointLimits(*np.array([[-1.0, -2.0, -0.5], [1.0, 2.0, 0.5], [3.0, 1.5, 2.0], [20.0, 10.0, 40.0]]))


def make_chunk(actions, stamp_ns: int = 0, step_dt_s: float = 0.1, request_id: int = 0, **more) -> Chunk:
    actions, unsettled = np.asarray(actions, dtype=np.float32), np.zeros(len(actions), np.float32)
    return Chunk(actions, stamp_ns, step_dt_s, request_id, request_id, unsettled, **more)


def make_ramp(speed, horizon: int = 10, step_dt_s: float = 0.1, start=(0.0, 0.0, 0.0), **chunk) -> Chunk:
    """Actions that move every joint with a constant speed from `start` at the chunk's stamp."""
    t = np.arange(1, horizon + 1)[:, None] * step_dt_s
    return make_chunk(np.asarray(start) + t * np.asarray(speed), step_dt_s=step_dt_s, **chunk)


@st.composite
def safe_states(draw, limits: JointLimits = LIMITS) -> TrajectoryPoint:
    """A state inside the limits from which braking stays inside them: where enforced motion always is."""
    share = draw(arrays(np.float64, len(limits.lower), elements=st.floats(0.0, 1.0)))
    position = limits.lower + share * (limits.upper - limits.lower)
    speed = draw(arrays(np.float64, len(limits.lower), elements=st.floats(-1.0, 1.0))) * limits.velocity
    room_up = np.sqrt(2 * limits.acceleration * np.maximum(limits.upper - position, 0))
    room_down = np.sqrt(2 * limits.acceleration * np.maximum(position - limits.lower, 0))
    return TrajectoryPoint(0, position, np.clip(speed, -room_down, room_up))


def assert_within_limits(
    trajectory: Trajectory, limits: JointLimits = LIMITS, start: TrajectoryPoint | None = None
) -> None:
    """Sampled at 500 Hz as a controller would: position, velocity and acceleration keep their limits."""
    begin = trajectory.start_ns if start is None else start.stamp_ns
    t = np.arange(begin, trajectory.end_ns + S // 10, S // 500)
    position, velocity = trajectory.sample(t, start)
    acceleration = np.diff(velocity, axis=0) * 500
    assert (position <= limits.upper + 1e-8).all() and (position >= limits.lower - 1e-8).all()
    assert (np.abs(velocity) <= limits.velocity * 1.0001).all()
    assert (np.abs(acceleration) <= limits.acceleration * 1.001).all()
    np.testing.assert_array_equal(velocity[-1], 0.0)
