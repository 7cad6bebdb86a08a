"""How fast a chunk's path is driven: as the policy timed it, slower, or as fast as the limits allow.

A policy says where the joints should be, and by its step also when. With another speed the path stays and
only the time along it changes. So everything is counted in *chunk time*: seconds along the path at the
policy's own speed. A new chunk is joined where the robot will be along the path, not where it would be by the
clock: the chunk time that has passed between its observation and the join. Measured joints lag behind their
command by a measured delay, which is as long in chunk time only at the policy's speed; the difference counts.
A robot that stands does not get on along its path.

`speed` is "SPEED", or "SPEED; PATTERN=SPEED; ..." for tasks (by_task.py): a share in (0, 1], or `fast`
(fastest.py). A change is smooth: the rate along the path grows or falls by CHANGE_PER_S.
"""

from __future__ import annotations

import math

import numpy as np

from vla_accel_ros.control.by_task import ByTask
from vla_accel_ros.control.chunking.fastest import Fastest
from vla_accel_ros.control.following.joint_faults import DELAY_S
from vla_accel_ros.control.limits.joint_limits import JointLimits

USUAL, FAST = "1", "fast"
CHANGE_PER_S = 2.0
_HISTORY_NS = 10_000_000_000
_FORGETS = 0.998
_MOVED = 0.5
"""The delay is measured over so many samples / (1 - _FORGETS), from this sum of squared speeds on."""


class Tempo:
    """The speed of a robot's tasks, and where its motion is along the path of its chunks.

    limits: of the joints. Raises ValueError, in one sentence, for a speed that is none, or `fast` without
    toppra. Attributes: `task`, the instruction; `delay_s`, from command to measured motion.
    """

    def __init__(self, spec: str, limits: JointLimits) -> None:
        self._speeds = ByTask("speed", spec, _speed, "put *=0.5")
        self._fastest = Fastest(limits) if math.inf in self._speeds.all else None
        self.task, self.delay_s, self._sums = "", 0.0, np.zeros(2)
        self.forget()

    def forget(self) -> None:
        """The motion begins anew."""
        self._times_ns, self._ways_s = np.zeros(1, np.int64), np.zeros(1)
        self._next = self._times_ns, self._ways_s

    @property
    def speed(self) -> float:
        """Of the task: a share, infinite for `fast`."""
        return self._speeds.of(self.task)

    def __str__(self) -> str:
        return FAST if self.speed == math.inf else f"{self.speed:g}"

    def measure(self, position: np.ndarray, commanded: np.ndarray, velocity: np.ndarray) -> None:
        """Measure the delay: joints, float64 [D] each, as measured, and position and velocity as commanded
        for the same time."""
        products = velocity @ (commanded - position), velocity @ velocity
        self._sums = _FORGETS * self._sums + np.array(products)
        if self._sums[1] > _MOVED:
            self.delay_s = float(np.clip(self._sums[0] / self._sums[1], 0.0, DELAY_S))

    def way_s(self, t_ns: int) -> float:
        """Chunk time at a time, from an arbitrary zero."""
        begin_ns = self._times_ns[0]
        return float(np.interp(t_ns - begin_ns, self._times_ns - begin_ns, self._ways_s))

    def rate(self, t_ns: int) -> float:
        """Chunk time per time."""
        i = int(self._times_ns.searchsorted(t_ns, side="right"))
        if not 0 < i < len(self._times_ns):
            return 0.0
        span_s = (self._times_ns[i] - self._times_ns[i - 1]) * 1e-9
        return float((self._ways_s[i] - self._ways_s[i - 1]) / span_s)

    def rest(self, t_ns: int) -> None:
        """The motion leaves the path of its chunks at a time, and does not get on along it from then on."""
        count = int(self._times_ns.searchsorted(t_ns))
        if count < len(self._times_ns):
            self._ways_s = np.append(self._ways_s[:count], self.way_s(t_ns))
            self._times_ns = np.append(self._times_ns[:count], t_ns)

    def play(
        self, actions: np.ndarray, step_s: float, stamp_ns: int | None, commit_ns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """When the motion should be where, from commit_ns on, int64 [N] and float64 [N, D].

        actions: float64 [H, D], step_s apart. stamp_ns: of their observation; None if they begin at
        commit_ns.
        """
        past_s = 0.0 if stamp_ns is None else max(self._passed_s(stamp_ns, commit_ns), 0.0)
        ways_s = step_s * np.arange(1, len(actions) + 1)
        ahead = ways_s >= past_s + step_s - 1e-9
        rate, speed = self.rate(commit_ns), self.speed
        path = None
        if speed == math.inf and self._fastest is not None and ahead.any():
            path = self._fastest.path(ways_s, actions, past_s, rate)
        if path is None:
            ways_s, actions = ways_s[ahead] - past_s, actions[ahead]
            path = _ramp_s(ways_s, rate or min(speed, 1.0), min(speed, 1.0)), ways_s, actions
        times_s, ways_s, actions = path
        times_ns = commit_ns + np.rint(times_s * 1e9).astype(np.int64)
        self._next = np.append(commit_ns, times_ns), np.append(0.0, ways_s)
        return times_ns, actions

    def accept(self) -> None:
        """What was played last is sent."""
        times_ns, ways_s = self._next
        recent = self._times_ns[self._times_ns < times_ns[0]]
        recent = recent[recent > times_ns[0] - _HISTORY_NS]
        before_s = [self.way_s(t_ns) for t_ns in recent.tolist()]
        self._ways_s = np.concatenate([before_s, self.way_s(int(times_ns[0])) + ways_s])
        self._times_ns = np.concatenate([recent, times_ns])

    def _passed_s(self, stamp_ns: int, commit_ns: int) -> float:
        """Chunk time from an observation to commit_ns: from where the measured joints were, and as much
        further as a policy expects a command to be ahead of them."""
        measured_s = self.way_s(stamp_ns - round(self.delay_s * 1e9))
        return self.way_s(commit_ns) - min(measured_s + self.delay_s, self.way_s(stamp_ns))


def _ramp_s(ways_s: np.ndarray, rate: float, speed: float) -> np.ndarray:
    """Times [N] at which ways [N] are reached, if the rate along them changes steadily to `speed`."""
    change = math.copysign(CHANGE_PER_S, speed - rate)
    change_s = (speed - rate) / change
    changed = (rate + speed) / 2.0 * change_s
    root = np.sqrt(np.maximum(rate * rate + 2.0 * change * np.minimum(ways_s, changed), 0.0))
    early_s = 2.0 * np.minimum(ways_s, changed) / (rate + root)
    return early_s + np.maximum(ways_s - changed, 0.0) / speed


def _speed(word: str) -> float:
    if word.strip() == FAST:
        return math.inf
    try:
        speed = float(word)
    except ValueError:
        speed = math.nan
    if not 0.0 < speed <= 1.0:
        raise ValueError(f"speed is {word.strip()!r}: give a share above 0 and at most 1, or {FAST}")
    return speed
