"""A lane: where one micro-batch runs at a time.

A caller that waits for a request may step a lane that nobody steps, so a script needs no thread. A running
stack gives each lane a thread of its own (`Lane.start`) while streams of robots run (`Streams`). Lanes of one
scheduler run at once; what each has of the GPU (a stream, its priority, a set of processors) is in the
context that it computes in.

A lane with a thread runs ahead: while the GPU computes a short micro-batch, the next one is chosen and
launched behind it, and only then is the result waited for. So the GPU does not wait for the host. A step
and two groups of layers may be ahead at once when the next is chosen, as the host takes longer than a group
does. Where there is no next one, the lane looks out for one until shortly before the oldest result is
expected. What comes behind the first chunk of a frame is chosen shortly before that is over, as it acts on
the newest joints, and the chunk is waited for before anything else is.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from vla_accel_ros.engine.request import DECODE, DENOISE, OBSERVE, WHOLE, MicroBatch, Request

_LONGEST_WAIT_S = 1.0

EARLY_S = 0.0004
"""How long before a result is expected a lane begins to wait for it, and for nothing else."""
GROUPS_AHEAD = 2
"""Groups of layers beside a step that are ahead at most when the next is chosen."""
RISES = 0.05
"""Weight of a micro-batch that took longer than the shortest."""


Timing = Callable[[MicroBatch], AbstractContextManager[Callable[[], float | None] | None]]
"""Around what launches a micro-batch; gives what says how many seconds the device took for it, once it is
computed."""


def _untimed(batch: MicroBatch) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(eq=False)
class Launched:
    """A micro-batch that was launched. began_s: when; computed: whether there was anything to
    compute; wait: returns when its results are there, None: they are. of_token: whether it is one of several
    groups of a token of text. told: requests of it that know that they were advanced. device_s: what it took
    there, None if that is not known; once its results are there. ahead_s: from when on it ran ahead, None: it
    did not; over_s: when it is expected to be over.
    """

    batch: MicroBatch
    began_s: float
    computed: bool = False
    wait: Callable[[], None] | None = None
    of_token: bool = False
    told: tuple[Request, ...] = ()
    device_s: Callable[[], float | None] | None = None
    ahead_s: float | None = None
    over_s: float = math.inf

    @property
    def is_step(self) -> bool:
        """Whether it is one step of chunks."""
        return self.batch.stage == DENOISE and self.batch.steps == 1

    @property
    def is_first(self) -> bool:
        """Whether it is the whole first chunk of a frame, with which no further one has to agree."""
        one = self.batch.requests[0]
        return one.kind == WHOLE and one.first is True and one.commits is None

    @property
    def is_followed(self) -> bool:
        """Whether the next may be launched behind it: a step, a group of a token or a frame, or a first
        chunk. A whole frame that is published only once it is computed is none."""
        if self.wait is None:
            return False
        requests = self.batch.requests
        group = requests[-1].want == OBSERVE and all(one.finished or not one.awaited for one in requests)
        return group or self.of_token or self.is_step or self.is_first

    @property
    def look_until_s(self) -> float:
        """When somebody must wait for it: a little before it is over or, if it finishes nothing, after."""
        awaited = any(request.awaited for request in self.batch.requests)
        return self.over_s - EARLY_S if awaited else self.over_s + EARLY_S

    def complete(self) -> None:
        """Return when its results are there. What is raised meanwhile is the error of all that have none."""
        try:
            if self.wait is not None:
                self.wait()
        except Exception as error:
            _fail([r for r in self.batch.requests if not (r.finished or r.released)], error)


class Lane:
    """name: as policies know it. computing: what a micro-batch is computed in, such as a CUDA stream. timing:
    what times it on the device.

    lock: held by who steps the lane. batch: the requests in the micro-batch that is chosen or launched, ()
    between two. ahead: what the GPU computes while the next is chosen, in order; runs_ahead: whether there
    may be such. chosen_s, ended_s: when the last one was chosen, and when its results were there. looked: at
    how many changes of the queue it has looked. again_s: when to look again, if nothing changes. idle_s:
    until when nothing would be chosen then, as it was the last time.
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
        self.looked, self.again_s, self.idle_s = 0, math.inf, -math.inf
        self._takes_s: dict[tuple[str, int, int], float] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether a thread of its own steps it."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def entered(self) -> bool:
        """Whether the caller is its thread."""
        return self._thread is threading.current_thread()

    def launch(self, batch: MicroBatch, run: Callable[[MicroBatch], Callable[[], None] | None]) -> Launched:
        """Have what is not finished of it computed, waiting only for what `run` waits for."""
        alive = tuple(request for request in batch.requests if not request.finished)
        launched = Launched(batch, self.chosen_s, computed=bool(alive))
        try:
            if alive:
                with self.timing(batch) as launched.device_s:
                    all_alive, begun = len(alive) == len(batch.requests), _in_token(batch)
                    launched.wait = run(batch if all_alive else replace(batch, requests=alive))
                    launched.of_token = begun or _in_token(batch)
        except Exception as error:
            _fail(alive, error)
        return launched

    def run_ahead(self, launched: Launched, now_s: float) -> None:
        """It is waited for when the next of its kind is launched, or when its results are expected: as early
        as the shortest of its kind lately, so that none is waited for too late."""
        free_s = self.ahead[-1].over_s if self.ahead else self.ended_s
        launched.ahead_s = now_s
        launched.over_s = max(now_s, free_s) + self._takes_s.get(_what(launched.batch), 0.0)
        self.ahead.append(launched)

    def holds_off(self, now_s: float) -> bool:
        """Whether nothing is chosen now, as a first chunk is ahead that is not nearly over, or has something
        behind it already."""
        if not self.ahead:
            return False
        first = next((one for one in reversed(self.ahead) if one.is_first), None)
        if first is None or (first is self.ahead[-1] and now_s >= first.look_until_s):
            return False
        self.again_s = math.inf
        return True

    def due(self, behind: Launched | None = None) -> Iterator[Launched]:
        """Of what runs ahead, what is waited for once this was launched behind it, taken out one by one:
        until no other step is left, or one other group. All, where it does not run ahead itself."""
        step = behind.is_step if self.runs_ahead and behind is not None and behind.is_followed else None
        most = 0 if step else GROUPS_AHEAD - 1
        while self.ahead and (step is None or sum(one.is_step == step for one in self.ahead) > most):
            yield self.ahead.popleft()

    def looks_out(self, now_s: float) -> bool:
        """Whether there is time to look out for what can be launched behind what runs ahead; sets when to
        look again."""
        if not self.ahead or not self.runs_ahead or now_s >= self.ahead[0].look_until_s:
            return False
        self.again_s = min(self.again_s, self.ahead[0].look_until_s)
        return True

    def took(self, launched: Launched, ended_s: float) -> float:
        """Seconds that a micro-batch took, whose results were waited for until ended_s. Of one that ran ahead
        that is the device's time: it may have been over before anybody waited."""
        what, took_s = _what(launched.batch), ended_s - max(launched.began_s, self.ended_s)
        if launched.ahead_s is not None and launched.device_s is not None:
            device_s = launched.device_s()
            if device_s is not None:
                took_s, ended_s = device_s, min(ended_s, max(launched.ahead_s, self.ended_s) + device_s)
        self.ended_s = ended_s
        before_s = self._takes_s.get(what, took_s)
        self._takes_s[what] = before_s + (RISES if took_s > before_s else 1.0) * (took_s - before_s)
        return took_s

    def start(self, turn: Callable[[Callable[[], bool]], object]) -> None:
        """Call `turn` again and again in a thread. It runs something, or waits until something may be new or
        until its argument, a function, returns True: the lane is being stopped."""
        if self.running:
            raise RuntimeError(f"lane '{self.name}' runs already; stop it first.")
        self._stopping = threading.Event()
        self.runs_ahead = True
        self.ahead.clear()
        self._thread = threading.Thread(target=_run, args=(turn, self._stopping), name=self.name, daemon=True)
        self._thread.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """End the thread after its present micro-batch, and wait for it. What runs ahead is waited for by
        nobody any more."""
        self._stopping.set()
        self.runs_ahead = False
        wake()
        if self._thread is not None and not self.entered:
            self._thread.join()
        self._thread = None


def _what(batch: MicroBatch) -> tuple[str, int, int]:
    return batch.kind, len(batch.requests), batch.steps


def _in_token(batch: MicroBatch) -> bool:
    """Whether some groups of a token of its answers are launched, and others are not."""
    return batch.stage == DECODE and any(request.partial for request in batch.requests)


def _fail(requests: Iterable[Request], error: Exception) -> None:
    for request in requests:
        request.error, request.finished = error, True


def _run(turn: Callable[[Callable[[], bool]], object], stopping: threading.Event) -> None:
    while not stopping.is_set():
        turn(stopping.is_set)


def sleep_s(wake_s: float, now_s: float | None = None) -> float:
    """How long to wait until wake_s, of time.monotonic: not for ever, and not less than nothing."""
    left_s = wake_s - (time.monotonic() if now_s is None else now_s)
    return _LONGEST_WAIT_S if math.isinf(left_s) else min(max(left_s, 0.0), _LONGEST_WAIT_S)


@dataclass(frozen=True)
class Stream:
    """What a running stream tells and is told. due_s: when its next frame is expected, by the clock. on_ran:
    told of each micro-batch and when it began."""

    due_s: Callable[[], float] = lambda: math.inf
    on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None


class Streams:
    """running: by robot. start, stop: called with the first of them, and after the last."""

    def __init__(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self.running: dict[str, Stream] = {}
        self._start, self._stop = start, stop
        self._joining, self._ending = threading.Condition(), False

    def join(self, robot: str, stream: Stream) -> None:
        """A robot's stream begins. Raises ValueError if it runs."""
        with self._joining:
            self._joining.wait_for(lambda: not self._ending)
            if robot in self.running:
                raise ValueError(f"a stream of robot '{robot}' runs on this engine already; stop it first.")
            self.running[robot] = stream
            if len(self.running) == 1:
                self._start()

    def leave(self, robot: str) -> bool:
        """A robot's stream ends. Returns whether others go on; False if it did not run."""
        with self._joining:
            if self.running.pop(robot, None) is None:
                return False
            if self.running:
                return True
            self._ending = True
        try:
            self._stop()
        finally:
            with self._joining:
                self._ending = False
                self._joining.notify_all()
        return False

    def due_s(self) -> float:
        """When the next frame of any is expected."""
        return min((stream.due_s() for stream in tuple(self.running.values())), default=math.inf)

    def ran(self, batch: MicroBatch, began_s: float) -> None:
        """Tell all of a micro-batch."""
        for stream in tuple(self.running.values()):
            stream.on_ran(batch, began_s)
