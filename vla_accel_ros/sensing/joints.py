"""The last seconds of every joint, to look up the state at an image's stamp.

Images arrive late and joint states often. The newest joints would pair a picture with a robot that has moved
on. Each joint keeps its own short history with its own stamps, since several drivers may each publish a part
of the robot, in any order and with joints that nobody asked for; a node may repeat the arm beside its
gripper. Positions are interpolated linearly, those of a continuous joint the short way round, and never
extrapolated: `gap_s` says how far the nearest real sample is.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.control.following.reasons import listed
from vla_accel_ros.control.limits.joint_limits import TURN, near

_JUMP_NS = 500_000_000
_SOURCES = 64
_NEVER = np.iinfo(np.int64).max


@dataclass(eq=False)
class _Source:
    """Messages with the same names. entries: which of a message's are ours. columns: of those joints here.
    newest_ns: stamp of the last message, None before the first."""

    entries: np.ndarray
    columns: np.ndarray
    newest_ns: int | None = None


class JointHistory:
    """Positions of D joints over time, in ROS units. Safe to use from several threads.

    joints: names, in the order of every result. capacity: samples kept of each joint. span_s: delay of the
    slowest image; of samples that come too fast to span it, only some are kept, and always the newest.
    continuous: names of the joints that turn without end, whose driver may report -pi..pi. `at` gives them as
    their driver does, which is what a policy was trained on; `newest` counts them on across pi, as commands
    do.
    """

    def __init__(
        self,
        joints: Sequence[str],
        capacity: int = 512,
        span_s: float = 0.0,
        continuous: Collection[str] = (),
    ):
        self.joints = tuple(joints)
        self._capacity, self._least_gap_ns = capacity, round(2e9 * span_s / capacity)
        self._columns = {name: column for column, name in enumerate(self.joints)}
        self._turns = np.array([TURN if name in continuous else 0.0 for name in self.joints])
        self._sources: dict[tuple[str, ...], _Source] = {}
        self._lock = threading.RLock()
        self._counted = np.full(len(self.joints), np.nan)  # newest positions
        self.clear()

    def clear(self) -> None:
        """Forget all samples; the count of turns goes on."""
        with self._lock:
            shape = len(self.joints), self._capacity
            self._times, self._positions = np.full(shape, _NEVER), np.zeros(shape)
            self._counts = np.zeros(len(self.joints), np.int64)
            self._newest_ns = self._times[:, 0].copy()
            self._newest_from: list[_Source | None] = [None] * len(self.joints)
            self._missing = self.joints
            for source in self._sources.values():
                source.newest_ns = None

    def add(
        self,
        names: Sequence[str],
        positions: Sequence[float] | np.ndarray,
        stamp_ns: int,
        now_ns: int | None = None,
    ) -> bool:
        """Add one JointState: names in any order, some of them ours. Returns True if it had something new.

        Joint by joint: one whose stamp is not newer than its last keeps that, and so does one that another
        source keeps fresh if the stamp is more than half a second after now_ns (None: unknown). A joint
        begins anew if its last was so far ahead, or if the stamps of the source that it came from fell back
        by more than half a second: its clock was set. Messages with the same names are one source. Raises
        ValueError if names and positions do not match, a joint is named twice, or a position is not finite. A
        message without positions (with only velocities or efforts) changes nothing.
        """
        if len(positions) == 0:
            return False
        if len(names) != len(positions):
            raise ValueError(
                f"joint state has {len(names)} names and {len(positions)} positions: fix its publisher"
            )
        source = self._source(tuple(names))
        columns = source.columns
        if not len(columns):
            return False
        values = np.asarray(positions, dtype=np.float64)[source.entries]
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values))[0]
            raise ValueError(f"joint state of {self.joints[columns[bad]]} is {values[bad]}: fix its driver")
        with self._lock:
            new = self._news(source, stamp_ns, now_ns)
            if not new.all():
                columns, values = columns[new], values[new]
                if not len(columns):
                    return False
            source.newest_ns, last = stamp_ns, self._newest_ns[columns]
            counts = self._counts[columns]
            if (stamp_ns - last < self._least_gap_ns).any():
                # Two gaps between kept samples last at least this long; a sooner one replaces the last.
                kept_ns = self._times[columns, (counts - 2) % self._capacity]
                counts -= (counts >= 2) & (kept_ns > stamp_ns - self._least_gap_ns)
            places = counts % self._capacity
            self._times[columns, places] = stamp_ns
            self._positions[columns, places] = values
            self._newest_ns[columns] = stamp_ns
            self._counted[columns] = near(values, self._counted[columns], self._turns[columns])
            self._counts[columns] = counts + 1
            for column in columns:
                self._newest_from[column] = source
            if self._missing:
                self._missing = tuple(n for n, count in zip(self.joints, self._counts) if count == 0)
            return True

    def _news(self, source: _Source, stamp_ns: int, now_ns: int | None) -> np.ndarray:
        """Of which joints of a message this is news, bool; those that begin anew are forgotten."""
        columns, before_ns = source.columns, source.newest_ns
        last, is_known = self._newest_ns[columns], self._counts[columns] > 0
        new, anew = ~is_known | (stamp_ns > last), np.zeros(len(columns), bool)
        ahead = now_ns is not None and stamp_ns - now_ns > _JUMP_NS
        set_back = before_ns is not None and before_ns - stamp_ns > _JUMP_NS
        if ahead or set_back:
            is_own = np.array([self._newest_from[column] is source for column in columns])
            new &= ~is_known | is_own | (not ahead) | (np.abs((now_ns or 0) - last) > _JUMP_NS)
            anew = is_known & is_own & set_back
        if now_ns is not None and not ahead:
            anew |= is_known & (stamp_ns <= last) & (last - now_ns > _JUMP_NS)
        self._counts[columns[anew]] = 0
        self._times[columns[anew]] = _NEVER
        return new | anew

    @property
    def missing(self) -> tuple[str, ...]:
        """Joints that have no sample yet."""
        return self._missing

    def problem(self, now_ns: int, max_age_s: float) -> str:
        """A sentence that names the joints without any sample and those that came, or joints without a stamp,
        stamped more than max_age_s ahead, or without a sample for that long while others came; else empty,
        also before the first message."""
        with self._lock:
            if not self.names:
                return ""
            if self.missing:
                return f"{self.absence}: look at its driver and its name"
            if problem := self.wrong_stamp(now_ns, max_age_s):
                return problem
            last, limit_ns = self._newest_ns, round(max_age_s * 1e9)
            late_joints = now_ns - last > limit_ns
            if not late_joints.any() or late_joints.all():
                return ""
            oldest_s = (now_ns - int(last.min())) * 1e-9
            names = ", ".join(name for name, is_late in zip(self.joints, late_joints) if is_late)
            return f"no state of joint {names} for {oldest_s:.2f} s, while others come: look at its driver"

    def wrong_stamp(self, now_ns: int, max_age_s: float) -> str:
        """A sentence that names the joints without a stamp, or stamped more than max_age_s ahead; else
        empty."""
        with self._lock:
            is_known = self._counts > 0
            last = self._newest_ns
            unstamped, ahead = is_known & (last == 0), is_known & (last - now_ns > round(max_age_s * 1e9))
            if unstamped.any() and now_ns > max_age_s * 1e9:
                states = self._states_of(unstamped)
                return f"{states} have no stamp: their driver must stamp them with the time of measurement"
            if ahead.any():
                return (
                    f"{self._states_of(ahead)} are stamped in the future: synchronise the clocks of their "
                    "driver's machine and this one or, with use_sim_time, publish /clock"
                )
            return ""

    def far(self, stamp_ns: int, max_age_s: float) -> str:
        """A sentence that names the joints without a sample within max_age_s of a time, else empty. Raises
        ValueError while one is missing."""
        with self._lock:
            self._require_all()
            gaps_s = self._around(stamp_ns)[1] * 1e-9
            far = gaps_s > max_age_s
            if not far.any():
                return ""
            return (
                f"{self._states_of(far)} are {gaps_s.max():.3f} s from the image, max_age_s allows "
                f"{max_age_s:g}"
            )

    def _states_of(self, chosen: np.ndarray) -> str:
        """What to call the states of some joints, bool [D]: all of them, or by their names."""
        if chosen.all():
            return "joint states"
        return f"states of joint {', '.join(name for name, its in zip(self.joints, chosen) if its)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every joint that any message has named, ours or not."""
        return tuple(sorted({name for names in tuple(self._sources) for name in names}))

    @property
    def absence(self) -> str:
        """Words that name the joints without a sample, and all that came."""
        arrived = f"; those that come are {listed(self.names)}" if self.names else ""
        return f"no state of joint {listed(self.missing)} yet{arrived}"

    @property
    def newest_ns(self) -> int | None:
        """Time up to which every joint is known; None while one is missing."""
        with self._lock:
            return None if self.missing else int(self._newest_ns.min())

    @property
    def stamps_ns(self) -> np.ndarray:
        """The stamp of every joint's newest sample, int64 [D]. Raises ValueError while one is missing."""
        with self._lock:
            self._require_all()
            return self._newest_ns.copy()

    def newest(self) -> np.ndarray:
        """The last position of every joint, float64 [D], counted on across pi. Raises ValueError while one is
        missing."""
        with self._lock:
            self._require_all()
            return self._counted.copy()

    @property
    def counted(self) -> np.ndarray:
        """As `newest`, of samples before `clear`, too; NaN for a joint that never had one."""
        with self._lock:
            return self._counted.copy()

    def count_from(self, positions: np.ndarray) -> None:
        """Give the newest continuous joints in the turn that is nearest to these positions, float64 [D], and
        count on from there; NaN leaves a joint as it is."""
        with self._lock:
            unknown = np.isnan(self._counted)
            self._counted = np.where(unknown, positions, near(self._counted, positions, self._turns))

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
        columns, lengths = np.arange(len(self.joints)), np.minimum(self._counts, self._capacity)
        earlier = (self._times < stamp_ns).sum(axis=1)
        sides = np.clip([earlier - 1, earlier], 0, lengths - 1)  # outside of all samples, the same one twice
        places = (self._counts - lengths + sides) % self._capacity
        before_ns, after_ns = self._times[columns, places]
        first, second = self._positions[columns, places]
        share = (stamp_ns - before_ns) / np.maximum(after_ns - before_ns, 1)
        way = near(second, first, self._turns) - first
        positions = first + np.where(after_ns > before_ns, share, 0.0) * way
        return positions, np.minimum(np.abs(stamp_ns - before_ns), np.abs(after_ns - stamp_ns))

    def _source(self, names: tuple[str, ...]) -> _Source:
        """The source of messages with these names. Raises ValueError if a joint is named twice."""
        if names not in self._sources:
            pairs = [(i, self._columns[name]) for i, name in enumerate(names) if name in self._columns]
            columns = [column for _, column in pairs]
            if len(set(columns)) != len(columns):
                raise ValueError(f"joint state names a joint twice: {', '.join(names)}; fix its publisher")
            if len(self._sources) >= _SOURCES:
                self._sources.clear()
            entries = np.array([entry for entry, _ in pairs], np.int64)
            self._sources[names] = _Source(entries, np.array(columns, np.int64))
        return self._sources[names]

    def _require_all(self) -> None:
        if self.missing:
            raise ValueError(f"{self.absence}: is its driver running?")
