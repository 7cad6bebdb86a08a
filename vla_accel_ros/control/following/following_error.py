"""Joints that are not where they are commanded to be, for longer than delays explain.

A drive that is off, an emergency stop, a collision, joint states that are frozen but freshly stamped: the
commanded path would run ahead by any distance, and a drive that comes back would step there. Each joint has a
distance and a time; what is meant to be held back, as a gripper is by what it grips, has none.
"""

from __future__ import annotations

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits

DELAY_S = 0.15
"""Command to measurement, at most: transport, the servo's lag, the way back."""
LEAST = 0.05
LASTING_S = 0.2


def usual(velocity: np.ndarray) -> np.ndarray:
    """The distance [D] that a joint of this greatest speed [D] may lag, where nobody says otherwise."""
    return np.maximum(DELAY_S * velocity, LEAST)


class FollowingError:
    """Watches D joints. rad: greatest distance (m for prismatic joints), infinite for a joint that is not
    watched; s: for how long more is borne. Both float64 [D]. Time is given."""

    def __init__(self, rad: np.ndarray, s: np.ndarray) -> None:
        self.rad, self.s = np.asarray(rad, dtype=np.float64), np.asarray(s, dtype=np.float64)
        self.forget()

    @classmethod
    def of(cls, limits: JointLimits) -> FollowingError:
        """What is usual for joints of these limits."""
        rad = usual(limits.velocity)
        return cls(rad, np.full(rad.shape, LASTING_S))

    def forget(self) -> None:
        """Nobody commands the joints, or from now on others."""
        self._since_ns: list[int | None] = [None] * len(self.rad)

    def take(self, commanded: np.ndarray, measured: np.ndarray, stamp_ns: int) -> int | None:
        """Where the joints were commanded to be at the stamp of a sample, and were, float64 [D] each; the
        column of a joint that has been too far off for too long, else None."""
        over = np.abs(commanded - measured) > self.rad
        if not over.any():
            self.forget()
            return None
        for joint, is_over in enumerate(over):
            since_ns = self._since_ns[joint]
            if not is_over:
                self._since_ns[joint] = None
            elif since_ns is None or since_ns > stamp_ns:
                self._since_ns[joint] = stamp_ns
            elif stamp_ns - since_ns >= self.s[joint] * 1e9:
                return joint
        return None
