"""Values in order of time, and their interpolation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np


@dataclass
class Timed:
    """Values in order of time, with their times in int64 nanoseconds."""

    times_ns: list[int] = field(default_factory=list)
    things: list[Any] = field(default_factory=list)

    def add(self, time_ns: int, thing: Any) -> None:
        """Append a value; ignore it unless its time is later than the last one."""
        if not self.times_ns or time_ns > self.times_ns[-1]:
            self.times_ns.append(time_ns)
            self.things.append(thing)

    def newest(self, times_ns: np.ndarray) -> np.ndarray:
        """Return, for each time, the index of the newest value at or before it, -1 before the first."""
        return np.searchsorted(np.array(self.times_ns, np.int64), times_ns, side="right") - 1


@dataclass
class Joint:
    """Positions of a joint and their stamps in int64 nanoseconds, as they came until `sort`."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    positions: array[float] = field(default_factory=lambda: array("d"))

    def sort(self) -> None:
        """Put the samples in order of their stamps; of equal ones the first stays."""
        times, indices = np.unique(np.array(self.times_ns, np.int64), return_index=True)
        self.times_ns = array("q", times.tobytes())
        self.positions = array("d", np.array(self.positions)[indices].tobytes())


def values_at(
    series: Iterable[Joint], times_ns: np.ndarray, turning: Iterable[bool] = repeat(False)
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of S series at times, [N, S] float64, and seconds [N] to their nearest samples."""
    values, gaps = [], []
    for joint, turns in zip(series, turning):
        times, reported = np.array(joint.times_ns), np.array(joint.positions)
        origin = times[0]
        endless = np.unwrap(reported) if turns else reported
        interpolated = np.interp(times_ns - origin, times - origin, endless)
        values.append(interpolated + (reported - endless)[nearest(times, times_ns)])
        gaps.append(distance_s(times, times_ns))
    return np.stack(values, axis=1), np.max(gaps, axis=0)


def distance_s(times_ns: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    """Return the seconds from each time [N] to the nearest of `times_ns`."""
    return np.abs(times_ns[nearest(times_ns, at_ns)] - at_ns) * 1e-9


def nearest(times_ns: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    """Return, for each time [N], the index of the nearest of the sorted `times_ns`."""
    right = np.clip(np.searchsorted(times_ns, at_ns), 1, max(len(times_ns) - 1, 1))
    left_index = right - 1
    right = np.minimum(right, len(times_ns) - 1)
    return np.where(at_ns - times_ns[left_index] <= times_ns[right] - at_ns, left_index, right)
