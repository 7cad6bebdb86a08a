"""Whether the computer's clock was set, by hand or by its time service.

rclpy tells of jumps of /clock, not of these, and after one all stamps mean something else: an arm that is
told where to be at times would leap, or stand still until the clock has caught up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vla_accel_ros.control.chunking.buffer import SET_BACK_NS

_AHEAD_NS = 1_000_000_000


class ClockWatch:
    """Compares a clock with one that nobody sets. Times in nanoseconds.

    A jump is what is certain whenever this thread was kept waiting: more than 20 ms back or 1 s ahead.
    """

    def __init__(self, clock_ns: Callable[[], int], steady_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns, self._steady_ns = clock_ns, steady_ns
        self._last = self._read()

    def jump_ns(self) -> int:
        """By how much the clock was set since the last call; 0 when it was not."""
        (least, clock, most), (before, now, after) = self._last, self._read()
        self._last = before, now, after
        back, ahead = (now - clock) - (before - most), (now - clock) - (after - least)
        return back if back < -SET_BACK_NS else ahead if ahead > _AHEAD_NS else 0

    def _read(self) -> tuple[int, int, int]:
        """The clock, between two readings of the other."""
        return self._steady_ns(), self._clock_ns(), self._steady_ns()
