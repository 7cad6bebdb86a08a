"""Runs a stage at a fixed rate, and counts the runs that miss their deadline.

Runs are due on a grid of periods. After a late run the missed times are skipped, because an old frame is
worth nothing. A run misses if it ends later than its deadline, counted from when it was due. A body that had
nothing to do returns False and counts as idle.

A loop may wait for its input once it is due: for at most PART of its period, and only so long that a run of
the USUAL quantile of recent durations still ends within the period and the deadline. So waiting costs no run,
and a missing input leaves the loop its period. The grid follows the input: if each of the last WAITS runs
found that it comes later than best, or earlier, the grid moves, by at most EARLIER of a period if to an
earlier time. A loop with time to wait is due a little before its input (`Awaited.lead_s`), so that a run
begins with something new; a loop without is due a little after. `tick` holds all the logic and is given the
time; the thread only waits.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_accel_ros.timeline import TIMELINE

WINDOW_S = 5.0
PART = 0.5
WAITS = 8
EARLIER = 1 / 16
USUAL = 0.9

_LOG = logging.getLogger(__name__)


class Awaited(Protocol):
    """An input that a loop may wait for when it is due. lead_s: best distance [s] between the due time and
    its arrival."""

    @property
    def lead_s(self) -> float: ...

    def wait(self, patience_s: float, given_up: Callable[[], bool]) -> object:
        """Return when the input is there, is not expected in time, or given_up() is true; after at most
        patience_s."""

    def age_s(self) -> float:
        """Seconds since the newest input came; inf if none did."""

    def wake(self) -> None:
        """Make waiting threads call given_up() again."""


@dataclass(frozen=True)
class LoopStats:
    """Statistics of a loop. Rates and quantiles are of the last WINDOW_S seconds, counts since the start.

    measured_hz: runs per second without idle ones; p50_s, p99_s: duration of a run, 0 if there was none;
    runs: bodies that did something; idle: bodies that had nothing to do; misses: runs that ended too late;
    given_up: runs that were skipped for overload (engine.rules.overload).
    """

    name: str
    target_hz: float
    measured_hz: float
    p50_s: float
    p99_s: float
    runs: int
    idle: int
    misses: int
    given_up: int = 0


class LoopRecord:
    """Records runs as they happen. clock: monotonic seconds. Safe to use from several threads."""

    def __init__(self, name: str, target_hz: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._target_hz, self._clock = name, target_hz, clock
        self._track = f"loop {name}"
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque()  # (end, duration) of the runs in the window
        self._begun: float | None = None
        self._runs = self._idle = self._misses = 0

    def begin(self, now: float) -> None:
        """Start to count rates here, unless they already are."""
        if self._begun is None:
            self._begun = now

    def note(self, begin: float, deadline_s: float, due: float | None = None) -> float:
        """Record a run that began at `begin` and ends now; returns its seconds. It is a miss if it ended more
        than deadline_s after `due`, or after `begin` without due."""
        end = self._clock()
        with self._lock:
            self.begin(begin)
            self._runs += 1
            self._misses += (missed := end - (begin if due is None else due) > deadline_s)
            self._recent.append((end, end - begin))
            self._forget(end)
        TIMELINE.span(self._track, "run", round(begin * 1e9), round(end * 1e9))
        if missed:
            TIMELINE.span(self._track, "deadline missed", round(end * 1e9), round(end * 1e9))
        return end - begin

    def note_miss(self) -> None:
        """Count a result that was lost as a miss."""
        with self._lock:
            self._misses += 1
        TIMELINE.instant(self._track, "came to nothing")

    def note_idle(self) -> None:
        """Count a run that had nothing to do."""
        with self._lock:
            self._idle += 1

    def quantile_s(self, share: float) -> float:
        """A quantile of the durations [s] in the window; 0 if there are none."""
        with self._lock:
            self._forget(self._clock())
            return float(np.quantile([duration for _, duration in self._recent] or [0.0], share))

    def stats(self) -> LoopStats:
        """The statistics now."""
        now_s = self._clock()
        with self._lock:
            self._forget(now_s)
            durations = [duration for _, duration in self._recent] or [0.0]
            p50, p99 = np.quantile(durations, (0.5, 0.99))
            # Count at least one period, so that a loop that is one period old does not show twice its rate.
            span = 0.0 if self._begun is None else min(WINDOW_S, now_s - self._begun)
            least_s = 1.0 / self._target_hz if self._target_hz else 1.0
            return LoopStats(
                name=self._name,
                target_hz=self._target_hz,
                measured_hz=len(self._recent) / max(span, least_s),
                p50_s=float(p50),
                p99_s=float(p99),
                runs=self._runs,
                idle=self._idle,
                misses=self._misses,
            )

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] <= now - WINDOW_S:
            self._recent.popleft()


class Loop:
    """Runs `body` at `rate_hz` in its own thread.

    body: does one run and returns True, or returns False if there was nothing to do.
    deadline_s: a run must end within this after it was due. clock: monotonic seconds.
    on_error: gets an exception of the body, after which the loop goes on. If it raises, that is logged.
    awaited: the input to wait for, see the module.

    Raises ValueError if rate_hz or deadline_s is not positive and finite.
    """

    def __init__(
        self,
        name: str,
        rate_hz: float,
        deadline_s: float,
        body: Callable[[], bool],
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
        awaited: Awaited | None = None,
    ) -> None:
        for label, value in (("rate_hz", rate_hz), ("deadline_s", deadline_s)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{label} of the loop '{name}' is {value}; it must be positive.")
        self.name, self.rate_hz, self.deadline_s = name, rate_hz, deadline_s
        self._body, self._clock, self._on_error, self._awaited = body, clock, on_error, awaited
        self._record = LoopRecord(name, rate_hz, clock)
        self._due: float | None = None
        self._patience = self._early = 0.0  # of the last run; the due time's lead over the input
        # Of the last runs, how long after they were due the input came; < 0: before.
        self._delays_s: deque[float] = deque(maxlen=WAITS)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def expects_s(self) -> float:
        """When the input of the next run, or of the present one, is expected; inf before the first."""
        return math.inf if self._due is None else self._due + self._early

    def tick(self, now: float) -> float:
        """Run the body if it is due at `now`; returns the next due time. The first tick is always due."""
        if self._due is None:
            self._due = now
            self._record.begin(now)
        if now < self._due:
            return self._due
        begin = self._wait(now)
        if self._stopping.is_set():
            return self._due
        worked = self._guarded()
        end = self._clock()
        period = 1.0 / self.rate_hz
        if worked is False:
            self._record.note_idle()
        elif worked:
            self._record.note(begin, self.deadline_s, self._due)
        # The tolerance covers rounding in the sum of periods.
        self._due += period * max(1, math.ceil((end - self._due) / period - 1e-6))
        self._due += self._shift()
        return self._due

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if it runs already."""
        if self.running:
            raise RuntimeError(f"the loop '{self.name}' is running already; stop it first.")
        self._stopping.clear()
        self._due = None
        self._delays_s.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._stopping.set()
        if self._awaited is not None:
            self._awaited.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def stats(self) -> LoopStats:
        """The loop's statistics now."""
        return self._record.stats()

    def _guarded(self) -> bool | None:
        """The body's return value, or None if it raised."""
        try:
            return bool(self._body())
        except Exception as error:
            try:
                self._on_error(error)
            except Exception:
                _LOG.exception("the loop '%s' goes on, but its error could not be reported", self.name)
            return None

    def _wait(self, now: float) -> float:
        """Wait for the input; returns the time after that."""
        if self._awaited is None:
            return now
        period = 1.0 / self.rate_hz
        assert self._due is not None
        needed = now - self._due + self._record.quantile_s(USUAL)
        self._patience = min(PART * period, period - needed, self.deadline_s - needed)
        if self._patience > 0.0:
            self._awaited.wait(self._patience, self._stopping.is_set)
        begin = self._clock()
        self._delays_s.append(begin - now - self._awaited.age_s())
        return begin

    def _shift(self) -> float:
        """How far to move the grid [s], so that the input comes within lead_s of its best time."""
        if self._awaited is None or len(self._delays_s) < WAITS:
            return 0.0
        period, lead = 1.0 / self.rate_hz, self._awaited.lead_s
        best = lead if self._patience > 2.0 * lead else -lead  # after the loop is due
        self._early = max(best, 0.0)
        earliest, latest = min(self._delays_s), max(self._delays_s)
        if earliest > best + lead:
            self._delays_s.clear()
            return earliest - best
        if -period < earliest and latest < best - lead:
            self._delays_s.clear()
            return -min(best - latest, EARLIER * period)
        return 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            due = self.tick(self._clock())
            self._stopping.wait(max(0.0, due - self._clock()))
