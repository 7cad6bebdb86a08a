"""The knots that cross from motion that goes on to new targets, and end at rest."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_from
from vla_accel_ros.control.trajectory import Trajectory, hardest, knot_velocities

Knots = tuple[np.ndarray, np.ndarray, np.ndarray]
"""int64 [N] times, float64 [N, D] positions and velocities."""


def crossing(
    old: Trajectory,
    state: tuple[np.ndarray, np.ndarray],
    commit_ns: int,
    blend_ns: int,
    times_ns: np.ndarray,
    actions: np.ndarray,
    limits: JointLimits,
) -> Knots:
    """Knots that cross from the old motion to the actions, float64 [H, D] at times [H], within blend_ns; the
    first knot is the state, position and velocity [D], at commit_ns. They are not limited yet."""
    blend_ns = min(blend_ns, int(times_ns[-1]) - commit_ns)
    positions = np.concatenate([state[0][None], actions])
    count = int(times_ns.searchsorted(commit_ns + blend_ns))
    if count:
        old_positions, _ = old.sample(times_ns[:count])
        s = (times_ns[:count] - commit_ns) / blend_ns
        weight = (s * s * (3.0 - 2.0 * s))[:, None]
        crossed = old_positions + weight * (actions[:count] - old_positions)
        positions[1 : count + 1] = np.where(weight < 1.0, crossed, actions[:count])
    times = np.concatenate([[commit_ns], times_ns])
    slope = (positions[-1] - positions[-2]) / ((times[-1] - times[-2]) * 1e-9)
    velocities = knot_velocities(times, positions, first=state[1], last=slope)
    return _end_at_rest(old.joints, times, positions, velocities, limits)


def _end_at_rest(
    joints: tuple[str, ...],
    times: np.ndarray,
    positions: np.ndarray,
    velocities: np.ndarray,
    limits: JointLimits,
) -> Knots:
    """Rest at the last action where a joint can brake on the way to it; otherwise brake after it."""
    v, h = velocities[-2], (times[-1] - times[-2]) * 1e-9
    needed = hardest(positions[-2], v, positions[-1], np.zeros_like(v), h)
    fastest = np.minimum(np.maximum(velocities[-1], -limits.velocity), limits.velocity)
    velocities[-1] = np.where(needed <= limits.acceleration, 0.0, fastest)
    if not velocities[-1].any():
        return times, positions, velocities
    end = brake_from(joints, int(times[-1]), positions[-1], velocities[-1], limits)
    return (
        np.concatenate([times[:-1], end.times_ns]),
        np.concatenate([positions[:-1], end.positions]),
        np.concatenate([velocities[:-1], end.speeds]),
    )
