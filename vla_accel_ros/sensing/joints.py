"""The last seconds of every joint, to look up the state at an image's stamp.

Images arrive late and joint states often. The newest joints would pair a picture with a robot that has moved
on. Each joint keeps its own short history, since several drivers may each publish a part of the robot, in any
order and with joints that nobody asked for. Positions are interpolated linearly and never extrapolated:
`gap_s` says how far the nearest real sample is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

_JUMP_NS = 500_000_000
_NEVER = np.iinfo(np.int64).max


class JointHistory:
    """Positions of D joints over time, in ROS units. Safe to use from several threads.

    joints: names, in the order of every result. capacity: samples kept of each joint. span_s: delay of the
    slowest image; of samples that come too fast to span it, only some are kept, and always the newest.
    """

    def __init__(self, joints: Sequence[str], capacity: int = 512, span_s: float = 0.0):
        if capacity < 2:
            raise ValueError(f"capacity = {capacity} keeps nothing to interpolate between: give at least 2")
        self.joints = tuple(joints)
        self._capacity, self._least_gap_ns = capacity, round(2e9 * span_s / capacity)
        self._columns = {name: column for column, name in enumerate(self.joints)}
        self._known: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        with self._lock:
            shape = len(self.joints), self._capacity
            self._times, self._positions = np.full(shape, _NEVER), np.zeros(shape)
            self._counts = np.zeros(len(self.joints), np.int64)
            self._newest_ns, self._newest = self._times[:, 0].copy(), self._positions[:, 0].copy()
            self._missing = self.joints

    def add(self, names: Sequence[str], positions: Sequence[float] | np.ndarray, stamp_ns: int) -> bool:
        """Add one JointState: names in any order, some of them ours. Returns True if it had something new.

        An older stamp than the last is ignored, unless it is older by more than half a second: then the clock
        was set back and the history starts anew. Raises ValueError if names and positions do not match, a
        joint is named twice, or a position is not finite. A message without positions (with only velocities
        or efforts) changes nothing.
        """
        if len(positions) == 0:
            return False
        if len(names) != len(positions):
            raise ValueError(
                f"joint state has {len(names)} names and {len(positions)} positions: mend its publisher"
            )
        sources, columns = self._match(tuple(names))
        if not len(columns):
            return False
        values = np.asarray(positions, dtype=np.float64)[sources]
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values))[0]
            raise ValueError(f"joint state of {self.joints[columns[bad]]} is {values[bad]}: mend its driver")
        with self._lock:
            last = self._newest_ns[columns]
            seen = self._counts[columns] > 0
            if (seen & (last - stamp_ns > _JUMP_NS)).any():
                self.clear()
            elif (seen & (stamp_ns <= last)).any():
                return False
            counts = self._counts[columns]
            if (stamp_ns - last < self._least_gap_ns).any():
                # Two gaps between kept samples last at least this long; a sooner one replaces the last.
                before_ns = self._times[columns, (counts - 2) % self._capacity]
                counts -= (counts >= 2) & (before_ns > stamp_ns - self._least_gap_ns)
            places = counts % self._capacity
            self._times[columns, places] = stamp_ns
            self._positions[columns, places] = values
            self._newest_ns[columns], self._newest[columns] = stamp_ns, values
            self._counts[columns] = counts + 1
            if self._missing:
                self._missing = tuple(n for n, count in zip(self.joints, self._counts) if count == 0)
            return True

    @property
    def missing(self) -> tuple[str, ...]:
        """Joints that have no sample yet."""
        return self._missing

    def problem(self, now_ns: int, max_age_s: float) -> str:
        """A sentence that names the joints without any sample, or without one for max_age_s while others
        came, or says that they have no stamp; else empty."""
        with self._lock:
            if self.missing:
                return f"no state of joint {', '.join(self.missing)} yet: look at its driver and its name"
            last = self._newest_ns
            if not last.any():
                return "joint states have no stamp: their driver must stamp them with the time of measurement"
            limit_ns = round(max_age_s * 1e9)
            late = now_ns - last > limit_ns
            if not late.any() or late.all():
                return ""
            oldest_s = (now_ns - int(last.min())) * 1e-9
            names = ", ".join(name for name, is_late in zip(self.joints, late) if is_late)
            return f"no state of joint {names} for {oldest_s:.2f} s, while others come: look at its driver"

    @property
    def newest_ns(self) -> int | None:
        """Time up to which every joint is known; None while one is missing."""
        with self._lock:
            return None if self.missing else int(self._newest_ns.min())

    def newest(self) -> np.ndarray:
        """The last position of every joint, float64 [D]. Raises ValueError while one is missing."""
        with self._lock:
            self._require_all()
            return self._newest.copy()

    def at(self, stamp_ns: int) -> np.ndarray:
        """Positions at a time, float64 [D]: linear between samples, the first or last sample outside them.

        Raises ValueError while a joint is missing.
        """
        with self._lock:
            self._require_all()
            return self._around(stamp_ns)[0]

    def gap_s(self, stamp_ns: int) -> float:
        """Seconds from a time to the nearest sample of the worst joint; infinite while one is missing."""
        with self._lock:
            if self.missing:
                return float("inf")
            return int(self._around(stamp_ns)[1].max()) * 1e-9

    def _around(self, stamp_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions at a time, float64 [D], and the distance to the nearest samples, int64 nanoseconds
        [D]."""
        columns, kept = np.arange(len(self.joints)), np.minimum(self._counts, self._capacity)
        earlier = (self._times < stamp_ns).sum(axis=1)
        sides = np.clip([earlier - 1, earlier], 0, kept - 1)  # outside of all samples, the same one twice
        places = (self._counts - kept + sides) % self._capacity
        before_ns, after_ns = self._times[columns, places]
        before, after = self._positions[columns, places]
        share = (stamp_ns - before_ns) / np.maximum(after_ns - before_ns, 1)
        positions = before + np.where(after_ns > before_ns, share, 0.0) * (after - before)
        return positions, np.minimum(np.abs(stamp_ns - before_ns), np.abs(after_ns - stamp_ns))

    def _match(self, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Which entries of a message are ours, and their columns here; cached by the names. Raises ValueError
        if a joint is named twice."""
        if names not in self._known:
            pairs = [(i, self._columns[name]) for i, name in enumerate(names) if name in self._columns]
            columns = [column for _, column in pairs]
            if len(set(columns)) != len(columns):
                raise ValueError(f"joint state names a joint twice: {', '.join(names)}; mend its publisher")
            if len(self._known) > 64:
                self._known.clear()
            sources = np.array([source for source, _ in pairs], np.int64)
            self._known[names] = (sources, np.array(columns, np.int64))
        return self._known[names]

    def _require_all(self) -> None:
        if self.missing:
            raise ValueError(f"no state of joint {', '.join(self.missing)} yet: is its driver running?")
