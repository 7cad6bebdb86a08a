"""Measured joints that cannot be right: where no motor could have moved them, or far from their command.

*Leaps*: a faulty encoder or driver reports a position at which the joint is not. Each sample is therefore
compared with the positions that the joint can have reached since the last good one. A sample out of reach
begins a leap. The leap is over when a sample is within reach again; it trips after LEAP_S and at least two
samples. The samples cannot tell what a leap means, so it never becomes a new position here.

*Following errors*: a joint is far from its command for longer than delays explain. Examples: a drive that is
off, an emergency stop, a collision, joint states that are frozen but freshly stamped. The commanded path
would run ahead by any distance, and a drive that comes back would step there. Each joint has a distance and a
time limit; a joint that is meant to be held back, such as a gripper by its object, has none. A joint that
stands still while its command passes over more than that distance does not follow either, however near to it
the command is just now.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits

LEAP_S = 0.02
_OF_RANGE = 0.02
_SHORTEST_S = 1e-3
DELAY_S = 0.15
"""Longest time from command to measurement: transport there, the servo's lag, transport back."""
LEAST = 0.05
LASTING_S = 0.2
# Share of a joint's distance within which its samples differ while it stands still.
_STILL = 0.1


class Leap(NamedTuple):
    """joint: its column. by: how far it is from its last good position."""

    joint: int
    by: float


class LeapWatch:
    """Looks for leaps in the samples of D joints. Time is given. A whole turn of a continuous joint is none.

    Attributes: `good`, the last position within reach, float64 [D], None before the first; `lasting`, whether
    a leap lasts; `short`, how many leaps ended before they tripped; `last`, the last sample out of reach and
    its stamp.
    """

    def __init__(self, limits: JointLimits) -> None:
        self._limits, self._slack = limits, _OF_RANGE * limits.span
        self.short = 0
        self.forget()

    def forget(self) -> None:
        """Take the next sample as good."""
        self.good: np.ndarray | None = None
        self._good_ns = self._since_ns = np.zeros(len(self._slack), np.int64)
        self.lasting = self._tripped = False
        self.last: tuple[Leap, int] | None = None

    def begin(self, position: np.ndarray, stamps_ns: np.ndarray | int) -> None:
        """Take this sample as good, whatever came before."""
        self.good, self._good_ns = position, self._good_ns * 0 + stamps_ns
        self.lasting = self._tripped = False

    def take(self, position: np.ndarray, stamps_ns: np.ndarray | int) -> Leap | None:
        """Take the newest samples, float64 [D], with the stamp of each, int64 [D], or of all. Returns the
        greatest leap, once, when it trips; else None."""
        if self.good is None:
            self.begin(position, stamps_ns)
            return None
        # During a leap the assumed speed is halved, because the reach would grow over the leap.
        elapsed_s = np.maximum((stamps_ns - self._good_ns) * 1e-9, _SHORTEST_S)
        factor = 1.0 if self.lasting else 2.0
        distance = self._limits.near(position, self.good) - self.good
        beyond = np.abs(distance) - (factor * self._limits.velocity * elapsed_s + self._slack)
        if (beyond <= 0.0).all():
            self.short += self.lasting and not self._tripped
            self.begin(position, stamps_ns)
            return None
        joint = int(np.argmax(beyond))
        self.last = Leap(joint, float(distance[joint])), int(np.max(stamps_ns))
        if not self.lasting:
            self.lasting, self._since_ns = True, self._good_ns * 0 + stamps_ns
            return None
        lasts = (stamps_ns - self._since_ns >= LEAP_S * 1e9) & (beyond > 0.0)
        if self._tripped or not lasts.any():
            return None
        self._tripped = True
        joint = int(np.argmax(np.where(lasts, beyond, 0.0)))
        return Leap(joint, float(distance[joint]))


def usual(velocity: np.ndarray) -> np.ndarray:
    """Usual distance [D] that joints with these velocity limits [D] may lag."""
    return np.maximum(DELAY_S * velocity, LEAST)


class FollowingError:
    """Watches D joints. rad: greatest distance (m for prismatic joints), infinite for a joint that is not
    watched; s: how long a greater distance is tolerated. Both float64 [D]. Time is given."""

    def __init__(self, rad: np.ndarray, s: np.ndarray) -> None:
        self.rad, self.s = np.asarray(rad, dtype=np.float64), np.asarray(s, dtype=np.float64)
        self.forget()

    @classmethod
    def of(cls, limits: JointLimits) -> FollowingError:
        """The usual distances and times for joints with these limits."""
        rad = usual(limits.velocity)
        return cls(rad, np.full(rad.shape, LASTING_S))

    def forget(self) -> None:
        """Restart the measurement: the joints are not commanded, or from now on by others."""
        self._since_ns: list[int | None] = [None] * len(self.rad)
        # Where the samples stand still, and the least and greatest command since then.
        self._spot, self._least, self._most = np.full((3, len(self.rad)), np.nan)

    def take(self, commanded: np.ndarray, measured: np.ndarray, stamps_ns: np.ndarray | int) -> int | None:
        """Compare commanded and measured joints, float64 [D] each, at the stamp of each joint's sample, int64
        [D], or of all. Returns the column of a joint that has been too far off, or stood still, for too long,
        else None."""
        stays = np.abs(measured - self._spot) <= _STILL * self.rad
        self._spot = np.where(stays, self._spot, measured)
        self._least = np.where(stays, np.fmin(self._least, commanded), commanded)
        self._most = np.where(stays, np.fmax(self._most, commanded), commanded)
        exceeds = (np.abs(commanded - measured) > self.rad) | (self._most - self._least > self.rad)
        stamps = np.broadcast_to(stamps_ns, exceeds.shape).tolist()
        for joint, (is_over, stamp_ns) in enumerate(zip(exceeds, stamps)):
            since_ns = self._since_ns[joint]
            if not is_over:
                self._since_ns[joint] = None
            elif since_ns is None or since_ns > stamp_ns:
                self._since_ns[joint] = stamp_ns
            elif stamp_ns - since_ns >= self.s[joint] * 1e9:
                return joint
        return None

    def sentence(self, joint: int, name: str, commanded: float, measured: float) -> str:
        """Says of the joint in this column that it does not follow."""
        if abs(commanded - measured) > self.rad[joint]:
            where = f"commanded {commanded:.2f}, measured {measured:.2f} rad"
        else:
            lowest, highest = self._least[joint], self._most[joint]
            where = f"commanded from {lowest:.2f} to {highest:.2f}, it stands still at {measured:.2f} rad"
        return f"{name} does not follow: {where}: is its drive on and its way clear?"
