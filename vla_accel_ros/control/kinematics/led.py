"""A hand that is led by velocities: rows of poses become twists, and no joint has a target of ours.

MoveIt Servo moves the joints. So the hand's limits are all that there are: its speeds, the ramp of the buffer
of twists, and its box. A row's twist leads from the pose of the row before to its own; what the hand is away
from that way is made up for in PULL_S. Where the hand is by what it was sent is counted on from where it
stood; a pose is sent as this, a twist is pulled by where the hand is measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.kinematics.hand import OUT_M, Box, Hand
from vla_accel_ros.control.kinematics.rotations import numbers, pinocchio
from vla_accel_ros.types import Chunk

PULL_S = 0.25
_STANDS_NS = 200_000_000
_REMEMBERED = 512


class Tip:
    """Where a hand is by what it was sent. box: where its tip may be; None: anywhere. goes_on: where it
    stands it is still where it was sent, not where it is measured. Attribute `free`: nothing is sent, so it
    is where it is measured."""

    def __init__(self, box: Box | None, goes_on: bool) -> None:
        self.box, self._goes_on, self.free = box, goes_on, False
        self.forget()

    def forget(self) -> None:
        """It is where it is measured next."""
        self.pose: Any = None
        self._measured: Any = None
        self._way = deque[tuple[int, Any]](maxlen=_REMEMBERED)
        self._moved_ns = 0

    def measured(self, pose: Any, now_ns: int) -> None:
        """Take the measured pose (SE3)."""
        self._measured = pose
        stands = not self._goes_on and abs(now_ns - self._moved_ns) > _STANDS_NS
        if self.pose is None or self.free or stands:
            self.pose = pose

    def advance(self, velocity: np.ndarray, passed_s: float, now_ns: int) -> None:
        """It was sent this velocity, float64 [6], for so long."""
        if self.pose is None:
            return
        if velocity.any():
            self.pose, self._moved_ns = _moved(pinocchio(), self.pose, velocity, passed_s), now_ns
        self._way.append((now_ns, self.pose))

    def at(self, t_ns: int) -> Any:
        """The pose by what was sent until then; as far back as that is known."""
        return next((pose for sent_ns, pose in reversed(self._way) if sent_ns <= t_ns), self.pose)

    def here(self) -> Any:
        """The pose from which it goes on."""
        return self.pose if self._goes_on or self._measured is None else self._measured

    def numbers(self) -> np.ndarray:
        """The pose as position and quaternion, float64 [7]."""
        return np.concatenate([self.pose.translation, numbers(self.pose.rotation, "quat_xyzw")])

    def bounded(
        self, velocity: np.ndarray, wanted: np.ndarray, acceleration: float, step_s: float, ahead_s: float
    ) -> np.ndarray:
        """The wanted velocity, float64 [6], such that the tip can brake within its box, counted from where it
        was sent and from where it is measured; within twice the acceleration [m/s^2] of the one before."""
        if self.box is None or self.pose is None:
            return wanted
        places = np.array([pose.translation for pose in (self.pose, self._measured or self.pose)])
        lower, upper = np.array(self.box.lower), np.array(self.box.upper)
        room = np.maximum([places.min(axis=0) - lower, upper - places.max(axis=0)], 0.0)
        step = acceleration * ahead_s
        down, up = np.sqrt(step**2 + 2.0 * acceleration * room) - step
        change = np.clip(wanted[:3], -down, up) - velocity[:3]
        most = 2.0 * acceleration * step_s
        change *= min(1.0, most / max(float(np.linalg.norm(change)), 1e-12))
        return np.concatenate([velocity[:3] + change, wanted[3:]])


class LedHand:
    """Makes twists of a hand's rows. arm: for where it is."""

    def __init__(self, hand: Hand, arm: Arm, tip: Tip) -> None:
        self.hand, self._arm, self._tip = hand, arm, tip

    def measured(self, positions: np.ndarray, now_ns: int) -> None:
        """Take the newest joints of the robot."""
        self._tip.measured(self._arm.pose(positions[self._arm.columns]), now_ns)

    def twists(
        self, rows: np.ndarray, chunk: Chunk, observed: np.ndarray, late_s: float
    ) -> tuple[np.ndarray, str]:
        """Velocities, float64 [h, 6], of rows, float64 [H, 3 + r], and why there are fewer, if so. observed:
        the robot's joints at the observation; late_s: how long ago the first row began. Raises ValueError if
        a rotation is none, or the hand is not known."""
        if self._tip.pose is None:
            raise ValueError("a chunk came before the hand was measured, so nothing is known to start from")
        pin, step_s = pinocchio(), chunk.step_dt_s
        begin = self._arm.pose(observed[self._arm.columns])
        if self.hand.relative_to == "commanded":
            begin = self._tip.at(chunk.stamp_ns)
        poses = [begin, *self.hand.poses(rows, begin)]
        first = min(int(late_s / step_s), len(rows))
        speeds = np.array([_away(pin, *pair) for pair in pairwise(poses)]) / step_s
        count, reason = self._inside(poses[1:], first), ""
        if count < len(rows):
            reason = f"{np.round(poses[count + 1].translation, 3).tolist()} m is out of its box"
        hand, passed_s = self._tip.here(), late_s - first * step_s
        for row in range(first, count):
            way = _moved(pin, poses[row], speeds[row], passed_s)
            speeds[row] += _away(pin, hand, way) / max(PULL_S, step_s)
            hand, passed_s = _moved(pin, hand, self._limited(speeds[row]), step_s - passed_s), 0.0
        return speeds[:count], reason

    def _inside(self, poses: Sequence[Any], first: int) -> int:
        """How many rows there are before one that is further out of the box than the hand."""
        box = self.hand.box
        if box is None:
            return len(poses)
        allowed = np.maximum(box.beyond(self._tip.pose.translation), OUT_M)
        out = (box.beyond(np.array([pose.translation for pose in poses])) > allowed).any(axis=1)
        out[:first] = False
        return int(out.argmax()) if out.any() else len(poses)

    def _limited(self, velocity: np.ndarray) -> np.ndarray:
        sizes = np.linalg.norm(velocity.reshape(2, 3), axis=1)
        shares = np.minimum(1.0, np.array([self.hand.linear, self.hand.angular]) / np.maximum(sizes, 1e-9))
        return velocity * np.repeat(shares, 3)


def _moved(pin: Any, pose: Any, velocity: np.ndarray, seconds: float) -> Any:
    """The pose after it has moved, by the axes of the base."""
    turned = np.asarray(pin.exp3(velocity[3:] * seconds)) @ pose.rotation
    return pin.SE3(turned, pose.translation + velocity[:3] * seconds)


def _away(pin: Any, begin: Any, end: Any) -> np.ndarray:
    """The way from one pose to another, float64 [6], by the axes of the base."""
    turn = np.asarray(pin.log3(end.rotation @ begin.rotation.T))
    return np.concatenate([end.translation - begin.translation, turn])
