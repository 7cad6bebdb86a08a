"""An execution horizon: so many-th part of a chunk."""

from __future__ import annotations

from vla_accel_ros.control.horizon import HorizonPolicy, Made


class Part:
    """1 / of of the actions."""

    updates = samples = 0
    least = 1

    def __init__(self, of: float) -> None:
        self._of = of

    def __call__(self, made: Made) -> int:
        return int(made.chunk.horizon / self._of)


def make(numbers: tuple[float, ...]) -> HorizonPolicy:
    """`tiny_half:N`."""
    return Part(*numbers)
