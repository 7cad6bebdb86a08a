"""Limits of hands on a trajectory of joints: the speed of each tip, and the box that it stays in; and whether
the robot touches itself.

The trajectory is looked at every LOOK_S, and where the joints would come to rest from there: a stop may begin
at any time. A hand that is out of its box already, because others moved it, may only go towards it. A guard
is part of the limits of joints (`guarded`), so whatever keeps these keeps the hand's: chunks, and the ways on
which a controller catches up, joins and goes home. Controllers that share the joints of one hand cannot know
of each other's catching up; neither guards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.collisions import Collisions
from vla_accel_ros.control.kinematics.hand import OUT_M, Hand
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.limits.trajectory_limits import LimitReport, enforce_knots
from vla_accel_ros.control.trajectory import Trajectory, trusted

LOOK_S = 0.005
_BETWEEN = 0.99
"""Share of a speed that may be used, for what is between two looks."""
_BY_LIMITS, _BY_SPEEDS, _MARGIN = 12, 6, 1.02
"""Tries to slow the joints down for a hand, by their limits and then by their speeds, and by how much more
than in proportion."""


def guarded(contract: Any, joints: Sequence[str]) -> JointLimits:
    """The limits of some joints of a contract, with the guard of what they alone move."""
    named = {joint.name: joint for joint in contract.joints}
    limits, layout = JointLimits.of(named[name] for name in joints), contract.layout
    hands = [(h, arm) for h, arm in (layout.hands if layout else ()) if set(arm.joints) <= set(joints)]
    collisions = contract.collisions
    if collisions is not None and not set(collisions.joints) <= set(joints):
        collisions = None
    if not hands and collisions is None:
        return limits
    return replace(limits, together=True, guard=HandGuard(hands, limits, collisions, joints))


class HandGuard:
    """hands: each with its arm. limits: of all joints of the trajectories. collisions: of the robot with
    itself, None if they are not looked at. joints: those of the trajectories."""

    def __init__(
        self,
        hands: Sequence[tuple[Hand, Arm]],
        limits: JointLimits,
        collisions: Collisions | None = None,
        joints: Sequence[str] = (),
    ) -> None:
        self._limits, self._collisions, self._joints = limits, collisions, tuple(joints)
        self._hands = [(h, arm, [list(joints).index(name) for name in arm.joints]) for h, arm in hands]

    def enforce(
        self,
        joints: tuple[str, ...],
        times_ns: np.ndarray,
        positions: np.ndarray,
        velocities: np.ndarray,
        limits: JointLimits,
    ) -> tuple[Trajectory, LimitReport]:
        """As enforce_knots, with the joints so slow that no hand is too fast. Raises ValueError if no slower
        motion keeps the speed of a hand, or the motion leads one out of its box."""
        if not self._hands and self._collisions is None:
            return enforce_knots(joints, times_ns, positions, velocities, limits)
        slowed, excess = limits, self._excess(positions[0], velocities[0])
        # What is too fast as it begins nothing slows in time.
        for number in range(_BY_LIMITS + _BY_SPEEDS if excess <= 1.0 else 0):
            plan, report = enforce_knots(joints, times_ns, positions, velocities, slowed)
            whole = trusted(
                joints,
                np.concatenate([times_ns[:1], plan.times_ns]),
                np.concatenate([positions[:1], plan.positions]),
                np.concatenate([velocities[:1], plan.speeds]),
            )
            excess = self.excess(whole)
            if excess <= 1.0:
                self.check(whole)
                return plan, report
            velocity = slowed.velocity
            if number >= _BY_LIMITS:  # the limits are far above the speeds
                peaks = np.abs(whole.sample(_looks(whole))[1]).max(axis=0)
                velocity = np.where(peaks > 0.0, np.minimum(velocity, peaks), velocity)
            slowed = replace(slowed, velocity=velocity / (_MARGIN * excess))
        raise ValueError(f"a hand would move {excess:.2f} times as fast as it may: give slower actions")

    def slowed(self, path: Trajectory) -> Trajectory:
        """A motion from rest to rest, stretched in time until no hand is too fast."""
        by = self.excess(path)
        if by <= 1.0:
            return path
        times_ns = path.start_ns + np.round((path.times_ns - path.start_ns) * by).astype(np.int64)
        return Trajectory(path.joints, times_ns, path.positions, path.speeds / by)

    def excess(self, plan: Trajectory) -> float:
        """How many times as fast as it may the fastest hand is, turning included."""
        return max(map(self._excess, *plan.sample(_looks(plan))))

    def _excess(self, position: np.ndarray, velocity: np.ndarray) -> float:
        highest = 0.0
        for hand, arm, columns in self._hands:
            twist = arm.jacobian(position[columns]) @ velocity[columns]
            linear, angular = np.linalg.norm(twist[:3]), np.linalg.norm(twist[3:])
            highest = max(highest, float(linear) / hand.linear, float(angular) / hand.angular)
        return highest / _BETWEEN

    def least_s(self, away: np.ndarray, goal: np.ndarray) -> float:
        """How long joints that move evenly to a goal, from anywhere within a distance, float64 [D] each, take
        at least if no hand is to be too fast."""
        ways = [
            arm.way(goal[columns], away[columns]) / (hand.linear, hand.angular)
            for hand, arm, columns in self._hands
        ]
        return float(np.max(ways, initial=0.0)) / _BETWEEN

    def slowed_step(
        self, p: np.ndarray, v: np.ndarray, velocity: np.ndarray, step_s: float, mean: np.ndarray
    ) -> np.ndarray:
        """The velocity after a step from (p, v), float64 [D] each, with which no hand is too fast: that which
        was asked, or one between it and a stop. mean: that which was asked for the step."""
        fast = max(self._excess(p, velocity), self._excess(p, mean))
        if fast <= 1.0:
            return velocity
        stop_s = float((np.abs(v) / self._limits.acceleration).max())
        braked = v * max(0.0, 1.0 - step_s / max(stop_s, step_s))
        slow = self._excess(p, braked)
        share = min(max((1.0 - slow) / max(fast - slow, 1e-9), 0.0), 1.0)
        return braked + share * (velocity - braked)

    def step(
        self, begin: tuple[np.ndarray, np.ndarray], position: np.ndarray, velocity: np.ndarray, step_s: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Where joints that begin at a position and velocity, float64 [D] each, are after a step that would
        make a hand too fast; None if it would not. Raises ValueError if the step or a stop after it leads a
        hand out of its box."""
        p, v = begin
        slowed = self.slowed_step(p, v, velocity, step_s, (position - p) / step_s)
        if slowed is not velocity:
            position = p + step_s * (v + slowed) / 2
        self.check_positions(self._joints, np.stack([p, position, self._rests(position, slowed)]))
        return None if slowed is velocity else (position, slowed)

    def check(self, plan: Trajectory) -> None:
        """Raises ValueError if the plan, or a stop on its way, leads a tip out of its box, or two links of
        the robot into each other."""
        positions, velocities = plan.sample(_looks(plan))
        self.check_positions(plan.joints, np.concatenate([positions, self._rests(positions, velocities)]))

    def _rests(self, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
        stop_s = (np.abs(velocities) / self._limits.acceleration).max(axis=-1)[..., None]
        return np.clip(positions + velocities * stop_s / 2, self._limits.lower, self._limits.upper)

    def check_positions(self, joints: tuple[str, ...], positions: np.ndarray) -> None:
        """`check` of float64 [N, D] positions, of which the first is there already."""
        if self._collisions is not None:
            links = self._collisions.first(positions, joints)[1]
            if links:
                raise ValueError(f"{links} would touch each other: the chunk moves the robot into itself")
        for hand, arm, columns in self._hands:
            if hand.box is None:
                continue
            tips = np.array([arm.pose(row).translation for row in positions[:, columns]])
            beyond = hand.box.beyond(tips)
            out = (beyond > np.maximum(beyond[0], OUT_M)).any(axis=1)
            if out.any():
                tip, worst = tips[out][0], beyond[out][0]
                axis = "xyz"[int(worst.argmax())]
                raise ValueError(
                    f"{hand.name} would leave its box: {hand.tip} at {np.round(tip, 3).tolist()} m is "
                    f"{worst.max():.3f} m beyond it in {axis}"
                )


def _looks(plan: Trajectory) -> np.ndarray:
    """Times to look at, int64 [N], ends and knots included."""
    looks = np.arange(plan.start_ns, plan.end_ns, round(LOOK_S * 1e9))
    return np.union1d(looks, plan.times_ns)
