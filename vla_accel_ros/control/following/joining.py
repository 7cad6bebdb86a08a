"""Where motion continues from: the measured position, the position at the last hold, and the way between
them.

Motion continues from the commanded position unless the joints are elsewhere: at the beginning, after a fault,
and where others moved them during a hold. Then the robot waits until the joints stand still, and *joins*: one
slow segment to the measured position, from rest to rest. It is within limits wherever the controller's
setpoint is: at the commanded position, or reset to the measured joints (by drives that were off and on). No
chunk is followed before.

Joints that are measured outside their range are led into it. What is measured further out than a range and a
turn is no position, but a broken encoder or another unit: the robot waits until that is over.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.following.joint_faults import usual
from vla_accel_ros.control.following.watchdog import (
    ANYTHING,
    HOMING,
    JOINT_STATES,
    RELEASED,
    MotionState,
    Safety,
)
from vla_accel_ros.control.limits.joint_limits import SAG
from vla_accel_ros.control.trajectory import Trajectory

MOVING = "the joints are moving, but not by this node"
BEGINNING = "beginning anew from where the joints are"
JOINING = "going to where the joints are"
WAITING = "waiting for the controllers to report their setpoints"
_MOVED_OF_RANGE = 0.05
_STILL_OF_RANGE = 0.01
# A joint stands still if it is also slower than this share of its greatest speed, or moves by less [rad, m].
_STILL_OF_SPEED, _STILL = 0.1, 0.002
_TURN = 2.0 * math.pi
_LEFT_NS = 50_000_000
_STAND_NS = 200_000_000


class Joining:
    """The joints of a trajectory buffer, and the join before motion continues. Time is given.

    counts: joins are counted there.

    Attributes: `measured`, the newest believed joints, float64 [D], None before the first, and `stamp_ns`, of
    the newest sample; `begun`, whether anything was commanded from here, and `rest_ns`, when it ends at rest;
    `ready`, whether anything can be commanded; `until_ns`, when the last join ends; `waits`, set by the
    sender: controllers are about to report their setpoint, and nothing begins before.
    """

    def __init__(self, buffer: TrajectoryBuffer, safety: Safety, counts: Counter[str]) -> None:
        self._buffer, self._safety, self._counts = buffer, safety, counts
        self._range = buffer.limits.span
        slow = np.maximum(_STILL_OF_SPEED * buffer.limits.velocity * _STAND_NS * 1e-9, _STILL)
        self._still = np.minimum(_STILL_OF_RANGE * self._range, slow)
        self.usual, self.waits = usual(buffer.limits.velocity), False
        self.forget()

    def forget(self) -> None:
        """Start over from the next joint state."""
        self.measured: np.ndarray | None = None
        self.stamp_ns = 0
        self.begun = self.ready = self._joined = False
        self.rest_ns = self.until_ns = self._others_until_ns = 0
        # where the joints stand still, and since which stamp and time
        self._spot: tuple[np.ndarray, int, int] | None = None
        self._came_ns = 0  # when the newest joints arrived
        self._left: np.ndarray | None = None  # where the joints were when the hold began
        self._elsewhere = np.zeros(len(self._range), bool)  # joints to join wherever they are measured
        self._stayed = _MOVED_OF_RANGE
        # Where controllers come to rest on what was sent before; NaN where unknown.
        self._setpoint = np.full(len(self._range), np.nan)
        self._setpoint_if: np.ndarray | None = None  # valid only while the joints are measured here
        self._told = np.full(len(self._range), np.nan)
        self._nowhere = ""  # the reason of the last hold for joints that are far outside

    def begin_after(self, last: Trajectory) -> None:
        """Controllers execute this trajectory, of all joints or some: begin at its end, after it has
        ended."""
        self._others_until_ns, self._setpoint_if = max(self._others_until_ns, last.end_ns), None
        for name, position in zip(last.joints, last.positions[-1]):
            if name in self._buffer.joints:
                self._setpoint[self._buffer.joints.index(name)] = position

    def rests(self, until_ns: int) -> None:
        """Controllers come to rest at until_ns, because a message was sent later than it was decided; 0 if
        all were in time. A join that lasts until rest_ns is extended to it."""
        if self.begun and until_ns > self.rest_ns:
            self.until_ns = until_ns if self.until_ns == self.rest_ns else self.until_ns
            self.rest_ns = until_ns

    def begin_at(self, setpoint: np.ndarray) -> None:
        """Controllers rest here, float64 [D]; NaN where unknown."""
        self._setpoint[:] = setpoint

    def told(self, setpoint: np.ndarray) -> None:
        """Where controllers report to be commanded now, float64 [D]; NaN where they report nothing. It counts
        until something is commanded from here, and is clipped to the joints' range: a join to a reported 10^9
        rad would never end."""
        limits = self._buffer.limits
        if self.measured is not None:
            setpoint = limits.near(setpoint, self.measured)
        self._told = np.clip(np.where(np.isfinite(setpoint), setpoint, np.nan), limits.lower, limits.upper)

    def begin_anew(self) -> None:
        """Start over from the next joint state; others may have moved the robot."""
        setpoint, measured = self.setpoint, self.measured
        self.forget()
        if measured is not None:
            self._setpoint[:], self._setpoint_if = setpoint, measured

    @property
    def setpoint(self) -> np.ndarray:
        """Where controllers rest, or come to rest on what they were sent, float64 [D]; NaN where unknown."""
        if self.begun:
            return self._buffer.reference(self.rest_ns)[0]
        setpoint = self._setpoint
        if self._setpoint_if is not None and self.measured is not None:
            moved = np.abs(self.measured - self._setpoint_if) > _STILL_OF_RANGE * self._range
            setpoint = np.where(moved, np.nan, setpoint)
        return np.where(np.isfinite(self._told), self._told, setpoint)

    @property
    def outside(self) -> str:
        """The sentence of a joint that is measured so far outside its range that it cannot be there; empty if
        none is."""
        if self.measured is None:
            return ""
        limits = self._buffer.limits
        out = np.maximum(self.measured - limits.upper, limits.lower - self.measured)
        far = np.flatnonzero(out > self._range + _TURN)
        if not len(far):
            return ""
        j = int(far[0])
        return (
            f"{self._buffer.joints[j]} is measured far outside its range of {limits.lower[j]:g} to "
            f"{limits.upper[j]:g}: look at its encoder, and at its driver's unit"
        )

    @property
    def at_rest(self) -> bool:
        """Whether the measured joints have stood still for 0.2 s."""
        if self._spot is None:
            return False
        # Both clocks count: stamps may be wrong, and samples may arrive all at once.
        _, stamp_ns, came_ns = self._spot
        return min(self.stamp_ns - stamp_ns, self._came_ns - came_ns) >= _STAND_NS

    @property
    def approach_ns(self) -> int:
        """Duration of a join from the commanded to the measured position, or to the end of the range that is
        nearest to it; the distance is at least the usual one."""
        distance, goal = SAG * self.usual, np.zeros_like(self.usual)
        if self.measured is not None:
            limits = self._buffer.limits
            position = np.clip(
                self.measured, limits.lower - self._range - _TURN, limits.upper + self._range + _TURN
            )
            goal = np.clip(position, limits.lower, limits.upper)
            farthest = np.fmax(np.abs(goal - position), np.abs(goal - self.setpoint))
            distance = farthest + distance
        return self._buffer.rest_to_rest_ns(distance, goal, self.usual)

    def came(self, position: np.ndarray, stamp_ns: int, now_ns: int) -> None:
        """Joints were measured, believed or not."""
        self._came_ns = now_ns
        if self._spot is None or (np.abs(position - self._spot[0]) > self._still).any():
            self._spot = (position, stamp_ns, now_ns)

    def settle(self, position: np.ndarray, stamp_ns: int) -> None:
        """Begin with these joints. If something was commanded before, only remember them."""
        self.measured, self.stamp_ns = position, stamp_ns
        if not self.begun:
            self._buffer.reset(position)
            # Controllers execute what was sent before until a stop or the next trajectory replaces it.
            self.rest_ns, self.ready = max(self.rest_ns, stamp_ns), True

    def leave(self) -> None:
        """A hold begins. If the joint states ended before the joints were to be at rest, their position is
        unknown."""
        is_known = self.stamp_ns >= self.rest_ns - _LEFT_NS
        self._left, self._stayed = self.measured if is_known else None, _MOVED_OF_RANGE
        self._joined = False

    def unwatched(self) -> None:
        """The joint states are late: nobody saw whether the joints moved meanwhile."""
        self._stayed = _STILL_OF_RANGE

    def mistrust(self, joint: int | slice) -> None:
        """This joint, or all, must be joined, wherever it is measured."""
        self._elsewhere[joint] = True

    def lasts(self, now_ns: int) -> bool:
        """Whether a join is in progress."""
        return now_ns < self.until_ns

    def step(self, now_ns: int, leaping: bool) -> Trajectory | None:
        """Returns the join to send now, if any; holds or pauses the robot while one is needed.

        leaping: whether the measured joints are not believed at present.
        """
        for reason in (BEGINNING, MOVING, self._nowhere):
            self._safety.resume(reason)
        if self.lasts(now_ns):
            self._safety.pause = JOINING
            return None
        self._safety.pause = ""
        if now_ns < self._others_until_ns:
            self._safety.hold(MOVING, (RELEASED, HOMING))
            return None
        if self._safety.state is not MotionState.HOLDING or not self.ready or self.measured is None:
            if not self.begun:
                self._safety.hold(BEGINNING, ANYTHING)
            return None
        moved = self._moved(self.measured)
        if self._joined and not moved.any():
            return None
        self._safety.pause = WAITING if self.waits else JOINING
        if self.waits:
            return None
        if self._safety.watchdog.is_late(JOINT_STATES, now_ns):
            return None
        if outside := self.outside:
            self._nowhere = outside
            self._safety.hold(outside)
            return None
        if leaping or (moved.any() and not self.at_rest):
            self._safety.hold(MOVING, (RELEASED, HOMING))
            return None
        return self._join(self.measured, moved, now_ns) if self._safety.clear(now_ns) else None

    def _join(self, measured: np.ndarray, moved: np.ndarray, now_ns: int) -> Trajectory | None:
        commanded, _ = self._buffer.reference(self.rest_ns)
        limits = self._buffer.limits
        goal = np.clip(np.where(moved, measured, commanded), limits.lower, limits.upper)
        distance = np.maximum(np.abs(goal - commanded), np.abs(goal - measured))
        if not self.begun:
            distance = np.fmax(distance, np.abs(goal - self.setpoint))
        distance += np.minimum(SAG * self.usual, distance / 10.0)
        join = self._buffer.go_to(goal, distance, now_ns, np.where(moved, self.usual, 0.0))
        self._counts["joins"] += bool(moved.any())
        self.rest_ns = self.until_ns = join.end_ns
        self.begun = self._joined = True
        self._setpoint[:] = np.nan
        position = measured if self._left is None else self._left
        self._left, self._stayed = np.where(moved, measured, position), _MOVED_OF_RANGE
        self._elsewhere[:] = False
        return join if len(goal) else None

    def _moved(self, measured: np.ndarray) -> np.ndarray:
        """Which joints are not where the hold began, bool [D]: all at the beginning, and if that position is
        unknown.

        The comparison is with the measured position when the hold began: a gripper around a block never is
        where it is commanded to be, and must not be opened for that. If joint states were late during the
        hold, a smaller difference counts as moved.
        """
        if not self.begun or self._left is None:
            return np.ones(len(self._range), bool)
        return self._elsewhere | (np.abs(measured - self._left) > self._stayed * self._range)
