"""The fastest motion along a chunk's path within the limits of velocity and acceleration, by toppra.

A policy's targets err by some milliradians from one to the next. At its own speed the limits swallow that; at
twice the speed it would be four times the acceleration. So the path is a smooth curve near the targets: a
cubic spline with a node every NODE_S, by least squares. The rate along it is bounded too (MOST, and
MOST_CHANGE_PER_S), or the robot would skip the parts in which the policy waits, such as for a gripper to
close. What is asked is a little within the limits; `enforce` sees to the rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits

MOST, MOST_CHANGE_PER_S = 4.0, 40.0
NODE_S = 0.15
_LOOK_S = 0.025
_POINT_S = 0.02
_LEAST_TARGETS, _MOST_POINTS = 5, 128
_VELOCITY, _ACCELERATION = 0.98, 0.9
"""Shares of the limits, for what is between two looks, and for the crossing from the motion before."""


class Fastest:
    """Of joints with these limits. Raises ValueError if toppra is not installed."""

    def __init__(self, limits: JointLimits) -> None:
        try:
            from scipy.interpolate import make_lsq_spline
            from toppra.algorithm import TOPPRA
            from toppra.constraint import JointAccelerationConstraint, JointVelocityConstraint
        except ImportError as error:
            raise ValueError(
                f"speed fast needs toppra, and {error}: pip install 'vla_accel_ros[fast]', or give speed 1"
            ) from None
        velocity = np.append(_VELOCITY * limits.velocity, MOST)
        acceleration = np.append(_ACCELERATION * limits.acceleration, MOST_CHANGE_PER_S)
        self._limits = [
            JointVelocityConstraint(np.stack([-velocity, velocity], axis=1)),
            JointAccelerationConstraint(np.stack([-acceleration, acceleration], axis=1)),
        ]
        self._spline, self._solver = make_lsq_spline, TOPPRA

    def path(
        self, ways_s: np.ndarray, targets: np.ndarray, begin_s: float, rate: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Times from begin_s on, ways from there and positions, float64 [N], [N] and [N, D], of the fastest
        motion to the last of the targets, [H, D] at ways [H] in chunk time. It begins as fast along the path
        as the motion before, at `rate`, or at the policy's own speed. None for too few targets."""
        begin_s, end_s = max(begin_s, float(ways_s[0])), float(ways_s[-1])
        count = min(int((end_s - begin_s) / _LOOK_S), _MOST_POINTS)
        if len(ways_s) < _LEAST_TARGETS or count < 2:
            return None
        looks_s = np.linspace(begin_s, end_s, count + 1)
        path = _Path(self._curve(ways_s, targets), looks_s)
        solver = self._solver(self._limits, path, looks_s, "seidel", "ParametrizeConstAccel")
        most = math.sqrt(max(solver.compute_controllable_sets(0.0, 0.0)[0, 1], 0.0))
        _, rates, _ = solver.compute_parameterization(0.99 * min(max(rate, 1.0), most), 0.0)
        if rates is None or not np.isfinite(rates).all():
            return None
        steps_s = 2.0 * np.diff(looks_s) / np.maximum(rates[1:] + rates[:-1], 1e-3)
        reached_s = np.append(0.0, np.cumsum(steps_s))
        points = min(max(int(reached_s[-1] / _POINT_S), 2), _MOST_POINTS)
        times_s = np.linspace(0.0, reached_s[-1], points + 1)[1:]
        look = np.minimum(reached_s.searchsorted(times_s, side="right") - 1, count - 1)
        after_s = times_s - reached_s[look]
        change = (rates[look + 1] - rates[look]) / steps_s[look]
        driven_s = np.minimum(looks_s[look] + after_s * (rates[look] + change * after_s / 2.0), end_s)
        return times_s, driven_s - begin_s, path(driven_s)[:, :-1]

    def _curve(self, ways_s: np.ndarray, targets: np.ndarray) -> Any:
        """The smooth curve near the targets, with the way itself as its last column."""
        first_s, end_s = ways_s[0], ways_s[-1]
        nodes = min(max(round((end_s - first_s) / NODE_S), 1), len(ways_s) - 3)
        knots_s = np.linspace(first_s, end_s, nodes + 1)
        knots_s = np.concatenate([[first_s] * 3, knots_s, [end_s] * 3])
        return self._spline(ways_s, np.column_stack([targets, ways_s]), knots_s)


class _Path:
    """A curve as toppra reads it."""

    def __init__(self, curve: Any, looks_s: np.ndarray) -> None:
        self._curves = curve, curve.derivative(), curve.derivative(2)
        self.path_interval, self.dof = looks_s[[0, -1]], curve.c.shape[1]

    def __call__(self, way_s: np.ndarray, order: int = 0) -> np.ndarray:
        """Positions or their derivatives, float64 [N, D + 1]."""
        return self._curves[order](way_s)
