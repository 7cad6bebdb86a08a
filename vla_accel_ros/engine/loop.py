"""What runs a stage at its rate, and knows whether it keeps it.

A run is due on a grid of periods. A run that is late does not make the next ones hurry: the missed times are
left out, because an old frame is worth nothing. A run that ends later than its deadline after the time it was
due is a miss. A body that had nothing to do returns False and counts as idle.

A loop may await what it works on. When it is due it then waits for that, at most PART of its period, and no
longer than leaves nine of ten recent runs time to end before period and deadline are over: so waiting costs
no run, and what does not come leaves the loop its period. The grid follows what is awaited: where each of the
last WAITS runs found that it comes later than the loop would have it, or earlier, the grid moves, forward by
EARLIER of a period at most. A loop that has time to wait is due a little before (`Awaited.lead_s`), so that a
run begins when there is something new; one that has none is due a little after. `wake` makes a run due at
once. `tick` holds all the logic and takes the time from outside; the thread only waits.
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
    """What a loop that is due may wait for. lead_s: how far from when it comes it is best to be due."""

    @property
    def lead_s(self) -> float: ...

    def wait(self, patience_s: float, given_up: Callable[[], bool]) -> object:
        """Return when it is there, is not expected in time or is given up; after patience_s at most."""
        ...

    def age_s(self) -> float:
        """How long ago the newest came; inf if none did."""
        ...

    def wake(self) -> None:
        """Have those who wait ask whether they have given up."""
        ...


@dataclass(frozen=True)
class LoopStats:
    """How a loop did. Rates and quantiles are of the last WINDOW_S seconds, counts since the start.

    measured_hz: runs per second, idle ones left out; p50_s, p99_s: duration of a run, 0 if there was none;
    runs: bodies that did something; idle: bodies that had nothing to do; misses: runs that ended too late;
    given_up: runs that were left out for overload (engine.policies.overload).
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
    """The runs of something, as they happen. clock: monotonic seconds. Safe to use from several threads."""

    def __init__(self, name: str, target_hz: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._target_hz, self._clock = name, target_hz, clock
        self._track = f"loop {name}"
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque()  # (end, duration) of the runs in the window
        self._begun: float | None = None
        self._runs = self._idle = self._misses = 0

    def begin(self, now: float) -> None:
        """Rates count from here, if they did not before."""
        if self._begun is None:
            self._begun = now

    def note(self, begin: float, deadline_s: float, due: float | None = None) -> float:
        """A run ended now, which began then; returns its seconds. It is a miss if it ended more than
        deadline_s after it was due; without due, after it began."""
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
        """A run's result came to nothing."""
        with self._lock:
            self._misses += 1
        TIMELINE.instant(self._track, "came to nothing")

    def note_idle(self) -> None:
        """There was nothing to do."""
        with self._lock:
            self._idle += 1

    def quantile_s(self, share: float) -> float:
        """Of the durations in the window; 0 if there are none."""
        with self._lock:
            self._forget(self._clock())
            return float(np.quantile([duration for _, duration in self._recent] or [0.0], share))

    def stats(self) -> LoopStats:
        """As of now."""
        now = self._clock()
        with self._lock:
            self._forget(now)
            durations = [duration for _, duration in self._recent] or [0.0]
            p50, p99 = np.quantile(durations, (0.5, 0.99))
            # A run counts for the period it fills, so that a loop one period old has not twice its rate.
            span = 0.0 if self._begun is None else min(WINDOW_S, now - self._begun)
            least = 1.0 / self._target_hz if self._target_hz else 1.0
            return LoopStats(
                name=self._name,
                target_hz=self._target_hz,
                measured_hz=len(self._recent) / max(span, least),
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
    """Runs `body` at `rate_hz` in a thread of its own.

    body: does one run and returns True, or returns False if there was nothing to do.
    deadline_s: a run must end this long after it was due. clock: monotonic seconds.
    on_error: gets what the body raised and returns whether to go on (True) or stop (False); where it raises
    itself, that is logged and the loop goes on. Without it the loop stops and `stop` raises the error.
    awaited: see the module.
    """

    def __init__(
        self,
        name: str,
        rate_hz: float,
        deadline_s: float,
        body: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        on_error: Callable[[Exception], bool] | None = None,
        awaited: Awaited | None = None,
    ) -> None:
        for label, value in (("rate_hz", rate_hz), ("deadline_s", deadline_s)):
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{label} of the loop '{name}' is {value}; it must be positive.")
        self.name, self.rate_hz, self.deadline_s = name, rate_hz, deadline_s
        self._body, self._clock, self._on_error, self._awaited = body, clock, on_error, awaited
        self._record = LoopRecord(name, rate_hz, clock)
        self._due: float | None = None
        self._patience = self._early = 0.0  # of the last run; how long before what is awaited it is due
        self._came: deque[float] = deque(maxlen=WAITS)  # after the last runs looked for it; below 0: before
        self._stopping = threading.Event()
        self._called = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def due_s(self) -> float | None:
        """When the next run is due, or the present one was, by the clock; None before the first."""
        return self._due

    @property
    def expects_s(self) -> float:
        """When what it awaits is expected for the next run, or the present one; inf before the first."""
        return math.inf if self._due is None else self._due + self._early

    def tick(self, now: float) -> float:
        """Run the body if it is due at `now`; returns when it is due next. The first tick is always due."""
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
        # A little short of a whole period counts as one: the sum of periods is rounded.
        self._due += period * max(1, math.ceil((end - self._due) / period - 1e-6))
        self._due += self._shift()
        return self._due

    def hasten(self, now: float) -> None:
        """Make a run due at `now`, if none was due before."""
        if self._due is not None:
            self._due = min(self._due, now)

    def wake(self) -> None:
        """There is work: have the thread run the body at once. From any thread; never waits."""
        self._called.set()

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if it runs already."""
        if self.running:
            raise RuntimeError(f"the loop '{self.name}' is running already; stop it first.")
        self._stopping.clear()
        self._called.clear()
        self._due = self._error = None
        self._came.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, wait until it has, and raise what made it end by itself, if anything did."""
        self._end()
        if self._awaited is not None:
            self._awaited.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stats(self) -> LoopStats:
        """How the loop does, as of now."""
        return self._record.stats()

    def _guarded(self) -> bool | None:
        """The body's word, or None if it raised."""
        try:
            return bool(self._body())
        except Exception as error:
            if self._on_error is None:
                self._error = error
                self._end()
            elif not self._goes_on(self._on_error, error):
                self._end()
            return None

    def _goes_on(self, on_error: Callable[[Exception], bool], error: Exception) -> bool:
        try:
            return on_error(error)
        except Exception:
            _LOG.exception("the loop '%s' goes on, but its error could not be reported", self.name)
            return True

    def _wait(self, now: float) -> float:
        """Wait for what is awaited; returns when that was over."""
        if self._awaited is None:
            return now
        period = 1.0 / self.rate_hz
        assert self._due is not None
        needed = now - self._due + self._record.quantile_s(USUAL)
        self._patience = min(PART * period, period - needed, self.deadline_s - needed)
        if self._patience > 0.0:
            self._awaited.wait(self._patience, self._stopping.is_set)
        begin = self._clock()
        self._came.append(begin - now - self._awaited.age_s())
        return begin

    def _shift(self) -> float:
        """How far the grid moves, so that what is awaited comes when it should, give or take `lead_s`."""
        if self._awaited is None or len(self._came) < WAITS:
            return 0.0
        period, lead = 1.0 / self.rate_hz, self._awaited.lead_s
        best = lead if self._patience > 2.0 * lead else -lead  # after the loop is due
        self._early = max(best, 0.0)
        earliest, latest = min(self._came), max(self._came)
        if earliest > best + lead:
            self._came.clear()
            return earliest - best
        if -period < earliest and latest < best - lead:
            self._came.clear()
            return -min(best - latest, EARLIER * period)
        return 0.0

    def _end(self) -> None:
        """Have the thread end, whatever it waits for."""
        self._stopping.set()
        self._called.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._called.is_set():
                self._called.clear()
                self.hasten(self._clock())
            due = self.tick(self._clock())
            self._called.wait(max(0.0, due - self._clock()))
