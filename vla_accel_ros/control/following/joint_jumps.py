"""Measured joints that leap further than any motor could drive them.

An encoder or its driver that glitches tells a position at which the joint is not. Each sample is therefore
compared with where the joint can have come since the last good one. A sample out of reach begins a leap; it
is over when a sample is within reach again, and it trips when it has lasted LEAP_S and two samples. What a
leap means nobody can tell from the samples: it is never taken for a new position here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits

LEAP_S = 0.02
_OF_RANGE = 0.02
_SHORTEST_S = 1e-3


class Leap(NamedTuple):
    """joint: its column. by: how far it is from where it was before."""

    joint: int
    by: float


class LeapWatch:
    """Looks for leaps in the samples of D joints. Time is given.

    Attributes: `good`, the last position within reach, float64 [D], None before the first; `lasting`, whether
    a leap lasts; `short`, how many ended before they tripped.
    """

    def __init__(self, limits: JointLimits) -> None:
        self._speed, self._slack = limits.velocity, _OF_RANGE * (limits.upper - limits.lower)
        self.short = 0
        self.forget()

    def forget(self) -> None:
        """The next sample is good."""
        self.good: np.ndarray | None = None
        self._good_ns = self._since_ns = 0
        self.lasting = self._tripped = False

    def begin(self, position: np.ndarray, stamp_ns: int) -> None:
        """This sample is good, whatever was before."""
        self.good, self._good_ns = position, stamp_ns
        self.lasting = self._tripped = False

    def take(self, position: np.ndarray, stamp_ns: int) -> Leap | None:
        """The next sample, float64 [D]; the greatest leap, once, when it trips."""
        if self.good is None:
            self.begin(position, stamp_ns)
            return None
        # Less is believed of a motor while a leap lasts: the reach would grow over the leap.
        elapsed_s = max((stamp_ns - self._good_ns) * 1e-9, _SHORTEST_S)
        factor = 1.0 if self.lasting else 2.0
        away = position - self.good
        beyond = np.abs(away) - (factor * self._speed * elapsed_s + self._slack)
        if (beyond <= 0.0).all():
            self.short += self.lasting and not self._tripped
            self.begin(position, stamp_ns)
            return None
        if not self.lasting:
            self.lasting, self._since_ns = True, stamp_ns
            return None
        if self._tripped or stamp_ns - self._since_ns < LEAP_S * 1e9:
            return None
        self._tripped = True
        joint = int(np.argmax(beyond))
        return Leap(joint, float(away[joint]))
