"""Whether a clock was set.

rclpy reports jumps of /clock, but not a computer's clock that is set by hand or by a time service. All stamps
then change their meaning: an arm with timed commands would leap, or stand still until the clock has caught
up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vla_accel_ros.control.chunking.buffer import SET_BACK_NS

_AHEAD_NS = 1_000_000_000


class ClockWatch:
    """Compares a clock with one that is never set. Times in nanoseconds.

    Only a certain jump counts, however long this thread was delayed: more than 20 ms back or 1 s ahead.
    """

    def __init__(self, clock_ns: Callable[[], int], steady_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns, self._steady_ns = clock_ns, steady_ns
        self._last = self._read()

    def jump_ns(self) -> int:
        """By how much the clock was set since the last call; 0 if it was not."""
        previous, self._last = self._last, self._read()
        return self._between(previous, self._last)

    def was_set(self) -> bool:
        """Whether the clock was set since the last call of `jump_ns`, which will still report it."""
        return self._between(self._last, self._read()) != 0

    @staticmethod
    def _between(one: tuple[int, int, int], other: tuple[int, int, int]) -> int:
        (earliest, clock, latest), (start, reading, end) = one, other
        back, ahead = (reading - clock) - (start - latest), (reading - clock) - (end - earliest)
        return back if back < -SET_BACK_NS else ahead if ahead > _AHEAD_NS else 0

    def _read(self) -> tuple[int, int, int]:
        """Reads the clock between two readings of the steady clock."""
        return self._steady_ns(), self._clock_ns(), self._steady_ns()
