"""The newest command of a person who moves the hand: its velocity, as a twist of its tip.

MoveIt Servo executes it if the policy commands twists, too. Else the joints' velocities are those that come
nearest to it (damped least squares: Wampler, 1986), all slowed down together where one joint would be too
fast, so that the hand keeps its direction. Near a singularity the damping grows, and the hand slows down. At
the end of a joint's range it stops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.control.chunking.twist import TOO_FAST
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.hand import TOOL
from vla_accel_ros.control.limits.joint_limits import JointLimits

_SINGULAR, _DAMPING = 0.05, 0.05
"""Least singular value of the Jacobian [m or rad per rad] below which steps are damped, and by how much."""
_AXES = 6


class Speeds(Protocol):
    """The greatest speeds of a hand [m/s], [rad/s]."""

    @property
    def linear(self) -> float: ...
    @property
    def angular(self) -> float: ...


class TeleopHand(Speeds, Protocol):
    """The hand of a contract's teleop (contract/parts.py)."""

    @property
    def arm(self) -> Arm: ...
    @property
    def axes(self) -> str: ...


class TwistCommands:
    """As Commands (commands.py), of a hand. topic: names it. joints: how many chunks give targets; they stay.
    frame: of the twists, empty for any.

    Attribute `trouble`: why the hand does not do what it is told, empty if it does.
    """

    by_velocity = True

    def __init__(self, topic: str, speeds: Speeds, joints: int, frame: str = "") -> None:
        self._topic, self._speeds, self._frame, self.trouble = topic, speeds, frame, ""
        self.moves = np.zeros(joints, bool)
        self.forget()

    def forget(self) -> None:
        """Start over from the next message."""
        self.newest: np.ndarray | None = None
        self.stamp_ns = 0

    def add(self, names: Sequence[str], numbers: Any, stamp_ns: int) -> None:
        """Take a twist, [6], of the frame names[0]. Raises ValueError, in one sentence, if it is refused."""
        twist, speeds = np.asarray(numbers, np.float64), self._speeds
        if twist.shape != (_AXES,) or not np.isfinite(twist).all():
            raise ValueError(f"{self._topic} has {np.round(twist, 3).tolist()}: send six finite numbers")
        if self._frame and names and names[0] not in ("", self._frame):
            raise ValueError(f"{self._topic} has frame {names[0]!r}: send twists of frame {self._frame!r}")
        halves = []
        for half, limit, unit in ((twist[:3], speeds.linear, "m/s"), (twist[3:], speeds.angular, "rad/s")):
            size = math.hypot(*half)
            if size > TOO_FAST * limit:
                raise ValueError(
                    f"{self._topic} commands {size:g}, and the hand goes {limit:g} {unit}: is that the unit?"
                )
            halves.append(half * min(1.0, limit / max(size, 1e-12)))
        self.newest, self.stamp_ns = np.concatenate(halves), stamp_ns

    def rows(self, position: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        """Where the joints are to be, float64 [H, D], at times [H, 1] after they are at a position [D]."""
        return np.tile(position, (len(times_s), 1))


class HandCommands(TwistCommands):
    """Of a hand that joints move. limits: of the robot's joints."""

    def __init__(self, topic: str, hand: TeleopHand, limits: JointLimits) -> None:
        super().__init__(topic, hand, len(limits.lower))
        self._hand, self._limits = hand, limits
        self.moves[hand.arm.columns] = True

    def rows(self, position: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        assert self.newest is not None
        rows, columns, self.trouble = np.tile(position, (len(times_s), 1)), self._hand.arm.columns, ""
        joints, limits = position[columns], self._hand.arm.limits
        for row, step_s in enumerate(np.diff(times_s[:, 0], prepend=0.0)):
            moved = joints + self._velocity(joints) * step_s
            out = (moved < limits.lower) | (moved > limits.upper)
            if out.any():
                name = self._hand.arm.joints[int(out.argmax())]
                self.trouble = f"the hand stops, because {name} is at the end of its range"
                moved = joints
            rows[row, columns] = joints = moved
        return rows

    def _velocity(self, joints: np.ndarray) -> np.ndarray:
        """The joints' velocities, float64 [J]."""
        arm, twist = self._hand.arm, self.newest
        assert twist is not None
        jacobian = arm.jacobian(joints)
        if self._hand.axes != TOOL:
            turned = arm.pose(joints).rotation.T
            twist = np.concatenate([turned @ twist[:3], turned @ twist[3:]])
        sizes = np.linalg.svd(jacobian, compute_uv=False)
        near = max(0.0, 1.0 - float(sizes[min(_AXES, len(joints)) - 1]) / _SINGULAR)
        damping = (_DAMPING * near) ** 2 + 1e-9
        velocity = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + damping * np.eye(_AXES), twist)
        if np.linalg.norm(jacobian @ velocity - twist) > 0.5 * np.linalg.norm(twist) and twist.any():
            self.trouble = "the hand slows down: the arm is stretched out or folded there (singular)"
        excess = float((np.abs(velocity) / arm.limits.velocity).max())
        return np.asarray(velocity / max(excess, 1.0))
