"""The newest command of a person: positions of a leader arm, or velocities of joints, checked.

A message that cannot be meant is refused, and does not count as fresh: joints that are missing, numbers that
are none, positions far outside of a joint's range, speeds that no joint has. What is a little beyond a limit
is cut to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.control.chunking.plausibility import BEYOND, MOST_JOINTS, TOO_FAST
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.teleop.hand import TeleopHand


class Deadman(Protocol):
    """The button that a person holds."""

    @property
    def topic(self) -> str: ...
    @property
    def button(self) -> int: ...


class Teleop(Protocol):
    """What a contract says about a person's commands (contract/parts.py)."""

    @property
    def topic(self) -> str: ...
    @property
    def max_age_s(self) -> float: ...
    @property
    def joints(self) -> Mapping[str, str]: ...
    @property
    def type(self) -> str: ...
    @property
    def hand(self) -> TeleopHand | None: ...
    @property
    def deadman(self) -> Deadman | None: ...


class Commands:
    """Those of one topic. joints, limits: of the robot, in its order.

    Attributes: `moves`, the joints that are commanded, bool [D]; `newest`, float64 [D], NaN for the others,
    None before the first; `stamp_ns`, its stamp; `trouble`, empty: joints do as they are told.
    """

    def __init__(self, teleop: Teleop, joints: tuple[str, ...], limits: JointLimits) -> None:
        self._teleop, self._joints, self._limits = teleop, joints, limits
        self.trouble, self.by_velocity = "", teleop.type == "JointJog"
        self.moves = np.array([name in teleop.joints for name in joints], bool)
        self.forget()

    def forget(self) -> None:
        """Start over from the next message."""
        self.newest: np.ndarray | None = None
        self.stamp_ns = 0

    def add(self, names: Sequence[str], numbers: Any, stamp_ns: int) -> None:
        """Take the positions or velocities of a message. Raises ValueError, in one sentence, if they are
        refused."""
        topic = self._teleop.topic
        if len(names) > MOST_JOINTS or len(names) != len(numbers):
            kind = "velocities" if self.by_velocity else "positions"
            raise ValueError(
                f"{topic} has {len(names)} names and {len(numbers)} {kind}: send one of each joint"
            )
        columns = {name: column for column, name in enumerate(names)}
        command = np.full(len(self._joints), np.nan)
        for row, joint in enumerate(self._joints):
            name = self._teleop.joints.get(joint)
            if name is None:
                continue
            if name in columns:
                command[row] = numbers[columns[name]]
            elif self.by_velocity:
                command[row] = 0.0
                continue
            else:
                raise ValueError(
                    f"{topic} has no joint {name!r}: it has {', '.join(map(str, names)) or 'none'}; name the "
                    "joints that it moves in teleop.joints"
                )
            if not np.isfinite(command[row]):
                raise ValueError(f"{topic} has {command[row]} for joint {name!r}: send a finite number")
        self._check(command)
        self.newest, self.stamp_ns = self._cut(command), stamp_ns

    def rows(self, position: np.ndarray, times_s: np.ndarray) -> np.ndarray:
        """Where velocities lead the joints from a position [D], float64 [H, D] at times [H, 1]."""
        assert self.newest is not None
        return position + self.newest * times_s

    def _check(self, command: np.ndarray) -> None:
        limits = self._limits
        if self.by_velocity:
            excess = np.flatnonzero(np.abs(command) > TOO_FAST * limits.velocity)
            bound = "its limit is {2:g} per s: is the unit rad/s?"
        else:
            out = np.maximum(limits.inside(command) - limits.upper, limits.lower - limits.inside(command))
            excess = np.flatnonzero(out > BEYOND * limits.span)
            bound = "its range is {0:g} to {1:g}: is the unit rad?"
        if len(excess):
            j = int(excess[0])
            words = bound.format(limits.lower[j], limits.upper[j], limits.velocity[j])
            raise ValueError(
                f"{self._teleop.topic} commands {command[j]:g} of {self._joints[j]}, and {words}"
            )

    def _cut(self, command: np.ndarray) -> np.ndarray:
        limits = self._limits
        if self.by_velocity:
            return np.clip(command, -limits.velocity, limits.velocity)
        return np.clip(limits.inside(command), limits.lower, limits.upper)
