"""A lane: runs one micro-batch at a time.

A caller that waits for a request may step a lane without a thread, so a script needs no threads. In a running
stack each lane has its own thread (`Lane.start`) while streams of robots run. Lanes of one
scheduler run at once; each computes in a context with its share of the GPU (a stream, its priority, a set of
processors).

A lane with a thread runs ahead: while the GPU computes a short micro-batch, the lane chooses and launches the
next one, and only then waits for the result. So the GPU does not wait for the host. One step and two groups
of layers may be ahead when the next is chosen, because the host takes longer than a group. What the GPU has
computed by then is handed on first, so that no result waits for another launch. If there is no next one, the
lane looks for one until shortly before the oldest result is expected. Work behind the first chunk of a frame
is chosen shortly before that chunk is over, because it acts on the newest joints, and the lane waits for the
chunk before anything else.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from vla_accel_ros.engine.request import DENOISE, OBSERVE, WHOLE, MicroBatch, Request

_LONGEST_WAIT_S = 1.0

EARLY_S = 0.0004
"""How long before a result is expected a lane begins to wait for it alone."""
GROUPS_AHEAD = 2
"""Most groups of layers that are ahead, besides a step, when the next is chosen."""


class DeviceTime(Protocol):
    """When the device computes one micro-batch."""

    def over(self) -> bool:
        """Whether it is computed."""
        ...

    def seconds(self) -> float | None:
        """How long it took, None if that is unknown. Waits for its end."""
        ...


Timing = Callable[[MicroBatch], AbstractContextManager[DeviceTime | None]]
"""Context around the launch of a micro-batch; yields its time on the device, None if that is unknown."""


def _untimed(batch: MicroBatch) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(eq=False)
class Launched:
    """A launched micro-batch. began_s: time of launch; computed: whether there was anything to compute; wait:
    blocks until the results are there, None: they are. of_token: whether it is one of several groups of a
    token of text. told: its requests whose on_progress was called at the launch. device: its time on the
    device, None if unknown. ahead_s: when it began to run ahead, None: it did not; over_s: expected end."""

    batch: MicroBatch
    began_s: float
    computed: bool = False
    wait: Callable[[], None] | None = None
    of_token: bool = False
    told: tuple[Request, ...] = ()
    device: DeviceTime | None = None
    ahead_s: float | None = None
    over_s: float = math.inf

    @property
    def is_step(self) -> bool:
        """Whether it is one step of chunks."""
        return self.batch.stage == DENOISE and self.batch.steps == 1

    @property
    def is_first(self) -> bool:
        """Whether it is the whole first chunk of a frame, with which no further chunk has to agree."""
        one = self.batch.requests[0]
        return one.kind == WHOLE and one.first is True and one.commits is None

    @property
    def is_followed(self) -> bool:
        """Whether the next micro-batch may be launched behind it: a step, a group of a token or of a frame,
        or a first chunk; not a whole frame that is published only after it is computed."""
        if self.wait is None:
            return False
        requests = self.batch.requests
        group = requests[-1].want == OBSERVE and all(one.finished or not one.awaited for one in requests)
        return group or self.of_token or self.is_step or self.is_first

    @property
    def look_until_s(self) -> float:
        """When to begin to wait for it: shortly before its expected end or, if it finishes nothing, shortly
        after."""
        awaited = any(request.awaited for request in self.batch.requests)
        return self.over_s - EARLY_S if awaited else self.over_s + EARLY_S

    def complete(self) -> None:
        """Return when the results are there. An exception becomes the error of all requests without a
        result."""
        try:
            if self.wait is not None:
                self.wait()
        except Exception as error:
            _fail([r for r in self.batch.requests if not (r.finished or r.released)], error)


class Lane:
    """name: for policies. computing: context in which micro-batches are computed, such as a CUDA stream.
    timing: times micro-batches on the device.

    lock: held while the lane is stepped. batch: requests of the chosen or launched micro-batch, () between
    two. ahead: launched work that the GPU computes while the next is chosen, in order; runs_ahead: whether
    that is allowed. chosen_s: when the last micro-batch was chosen; ended_s: when its results were there.
    looked: number of changes of the queue that the lane has seen. again_s: when to check again if nothing
    changes.
    """

    def __init__(
        self,
        name: str = "main",
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
        timing: Timing = _untimed,
    ) -> None:
        self.name, self.computing, self.timing = name, computing, timing
        self.lock = threading.Lock()
        self.batch: tuple[Request, ...] = ()
        self.ahead: deque[Launched] = deque()
        self.runs_ahead, self.chosen_s, self.ended_s = False, -math.inf, -math.inf
        self.looked, self.again_s = 0, math.inf
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether its own thread steps it."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def entered(self) -> bool:
        """Whether the caller is its thread."""
        return self._thread is threading.current_thread()

    def launch(self, batch: MicroBatch, run: Callable[[MicroBatch], Callable[[], None] | None]) -> Launched:
        """Launch the unfinished requests of a micro-batch, blocking only as `run` does."""
        alive = batch.requests
        if any(request.finished for request in alive):
            alive = tuple(request for request in alive if not request.finished)
        launched = Launched(batch, self.chosen_s, computed=bool(alive))
        try:
            if alive:
                with self.timing(batch) as launched.device:
                    begun = any(request.partial for request in alive)
                    launched.wait = run(batch if alive is batch.requests else replace(batch, requests=alive))
                    launched.of_token = begun or any(request.partial for request in alive)
        except Exception as error:
            _fail(alive, error)
        return launched

    def run_ahead(self, launched: Launched, now_s: float, takes_s: float) -> None:
        """Let it run ahead: the lane waits for it when the next of its kind is launched, or when its results
        are expected. takes_s: as soon as that may be, so that the wait never begins too late."""
        free_s = self.ahead[-1].over_s if self.ahead else self.ended_s
        launched.ahead_s = now_s
        launched.over_s = max(now_s, free_s) + takes_s
        self.ahead.append(launched)

    def holds_off(self, now_s: float) -> bool:
        """Whether to choose nothing now: a first chunk is ahead that is not nearly over, or already has
        something behind it."""
        first = next((one for one in reversed(self.ahead) if one.is_first), None)
        if first is None or (first is self.ahead[-1] and now_s >= first.look_until_s):
            return False
        self.again_s = math.inf
        return True

    def due(self, behind: Launched | None = None) -> Iterator[Launched]:
        """The work ahead to wait for once `behind` is launched, removed one by one: all steps if that is a
        step, all but one group if it is a group, everything if it does not run ahead itself."""
        step = behind.is_step if self.runs_ahead and behind is not None and behind.is_followed else None
        most = 0 if step else GROUPS_AHEAD - 1
        while self.ahead and (step is None or sum(one.is_step == step for one in self.ahead) > most):
            yield self.ahead.popleft()

    def over(self) -> Iterator[Launched]:
        """The oldest work ahead that is over on the device, removed one by one."""
        while self.ahead and (device := self.ahead[0].device) is not None and device.over():
            yield self.ahead.popleft()

    def looks_out(self, now_s: float) -> bool:
        """Whether there is time to look for work to launch behind what runs ahead; sets when to check
        again."""
        if not self.ahead or not self.runs_ahead or now_s >= self.ahead[0].look_until_s:
            return False
        self.again_s = min(self.again_s, self.ahead[0].look_until_s)
        return True

    def took(self, launched: Launched, ended_s: float) -> float:
        """Seconds that a micro-batch took, whose results were waited for until ended_s. If it ran ahead that
        is the device's time, because it may have ended before the wait."""
        took_s = ended_s - max(launched.began_s, self.ended_s)
        if launched.ahead_s is not None and launched.device is not None:
            device_s = launched.device.seconds()
            if device_s is not None:
                took_s, ended_s = device_s, min(ended_s, max(launched.ahead_s, self.ended_s) + device_s)
        self.ended_s = ended_s
        return took_s

    def start(self, step_or_wait: Callable[[Callable[[], bool]], object]) -> None:
        """Call `step_or_wait` repeatedly in a thread. It runs something, or waits until something may be new
        or its argument, a function, returns True because the lane is being stopped. Raises RuntimeError if
        the thread runs."""
        if self.running:
            raise RuntimeError(f"lane '{self.name}' runs already; stop it first.")
        self._stopping = threading.Event()
        self.runs_ahead = True
        self._thread = threading.Thread(
            target=_run, args=(step_or_wait, self._stopping), name=self.name, daemon=True
        )
        self._thread.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """End the thread after its present micro-batch, and wait for the thread. Work that runs ahead is left
        to who steps the lane next."""
        self._stopping.set()
        self.runs_ahead = False
        wake()
        if self._thread is not None and not self.entered:
            self._thread.join()
        self._thread = None


def _fail(requests: Iterable[Request], error: Exception) -> None:
    for request in requests:
        request.error, request.finished = error, True


def _run(step_or_wait: Callable[[Callable[[], bool]], object], stopping: threading.Event) -> None:
    while not stopping.is_set():
        step_or_wait(stopping.is_set)


def sleep_s(wake_s: float, now_s: float | None = None) -> float:
    """Seconds to wait until wake_s, on time.monotonic: at least 0 and at most _LONGEST_WAIT_S."""
    left_s = wake_s - (time.monotonic() if now_s is None else now_s)
    return _LONGEST_WAIT_S if math.isinf(left_s) else min(max(left_s, 0.0), _LONGEST_WAIT_S)
