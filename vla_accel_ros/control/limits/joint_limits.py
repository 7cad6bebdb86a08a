"""What each joint may do: its range, its greatest speed and its greatest acceleration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class _Limited(Protocol):
    @property
    def lower(self) -> float: ...
    @property
    def upper(self) -> float: ...
    @property
    def velocity(self) -> float: ...
    @property
    def acceleration(self) -> float: ...


@dataclass(frozen=True)
class JointLimits:
    """float64 [D] each: lower and upper position (rad or m), greatest speed (per s) and acceleration (per
    s^2)."""

    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "velocity", "acceleration"):
            object.__setattr__(self, name, np.atleast_1d(np.array(getattr(self, name), dtype=np.float64)))
        if not self.lower.shape == self.upper.shape == self.velocity.shape == self.acceleration.shape:
            raise ValueError(
                "joint limits differ in length: give lower, upper, velocity, acceleration per joint"
            )
        good = (self.lower < self.upper) & (self.velocity > 0) & (self.acceleration > 0)
        if not good.all():
            raise ValueError(
                f"joint limits [{np.flatnonzero(~good)[0]}] leave nothing: lower must be below upper, "
                "velocity and acceleration above zero"
            )

    @classmethod
    def of(cls, joints: Iterable[_Limited]) -> JointLimits:
        """The limits of a contract's joints, in their order."""
        rows = [(j.lower, j.upper, j.velocity, j.acceleration) for j in joints]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)

    def select(self, columns: np.ndarray) -> JointLimits:
        """The limits of some of the joints."""
        return JointLimits(
            self.lower[columns], self.upper[columns], self.velocity[columns], self.acceleration[columns]
        )
