"""A lane: a CUDA stream, with its launched work.

The loop launches ahead: while the GPU computes a short micro-batch, it chooses and launches the next one, and
only then waits for the result. So the GPU does not wait for the host. One step and two groups of layers may
be ahead when the next is chosen, because the host takes longer than a group. What the GPU has computed by
then is handed on first, so that no result waits for another launch. Work behind the first chunk of a frame is
chosen shortly before that chunk is over, because it acts on the newest joints, and the loop waits for the
chunk before anything else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from vla_accel_ros.engine.request import ACT, ASK, DENOISE, OBSERVE, WHOLE, MicroBatch, Request
from vla_accel_ros.timeline import TIMELINE

EARLY_S = 0.0004
"""How long before a result is expected the loop begins to wait for it alone."""
GROUPS_AHEAD = 2
"""Most groups of layers that are ahead, besides a step, when the next is chosen."""


class DeviceTime(Protocol):
    """When the device computes one micro-batch."""

    def over(self) -> bool:
        """Whether it is computed."""

    def seconds(self) -> float | None:
        """How long it took, None if that is unknown. Waits for its end."""


Timing = Callable[[MicroBatch], AbstractContextManager[DeviceTime | None]]
"""Context around the launch of a micro-batch; yields its time on the device, None if that is unknown."""


@dataclass(eq=False)
class Launched:
    """A launched micro-batch. began_s: time of launch; computed: whether there was anything to compute; wait:
    blocks until the results are there, None: they are. of_token: whether it is one of several groups of a
    token of text. reported: its requests whose on_progress was called at the launch. device: its time on the
    device, None if unknown. ahead_s: when it began to run ahead, None: it did not; over_s: expected end."""

    batch: MicroBatch
    began_s: float
    computed: bool = False
    wait: Callable[[], object] | None = None
    of_token: bool = False
    reported: tuple[Request, ...] = ()
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
        request = self.batch.requests[0]
        return request.kind == WHOLE and request.act.first is True and request.act.commits is None

    @property
    def is_followed(self) -> bool:
        """Whether the next micro-batch may be launched behind it: a step, a group of a token or of a frame,
        or a first chunk; not a whole frame that is published only after it is computed."""
        if self.wait is None:
            return False
        requests = self.batch.requests
        group = requests[-1].want == OBSERVE and not any(request.launched for request in requests)
        return group or self.of_token or self.is_step or self.is_first

    @property
    def look_until_s(self) -> float:
        """When to begin to wait for it: shortly before its expected end or, if it finishes nothing, shortly
        after."""
        ends = any(request.launched or request.finished for request in self.batch.requests)
        return self.over_s - EARLY_S if ends else self.over_s + EARLY_S

    def complete(self) -> None:
        """Return when the results are there. An exception becomes the error of all requests without a
        result."""
        try:
            if self.wait is not None:
                self.wait()
        except Exception as error:
            fail([request for request in self.batch.requests if not request.finished], error)


class Lane:
    """name: for rules. kinds: of the requests that run in it. computing: context in which micro-batches are
    computed, such as a CUDA stream. timing: times micro-batches on the device.

    batch: what the worker computes, None: nothing. ahead: launched work that the GPU computes, in order.
    chosen_s: when the last micro-batch was chosen; ended_s: when its results were there. again_s: when to
    choose again if nothing changes.
    """

    def __init__(
        self,
        name: str = "main",
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
        timing: Timing = lambda batch: nullcontext(),
        kinds: Collection[str] = (OBSERVE, WHOLE, ACT, ASK),
    ) -> None:
        self.name, self.computing, self.timing, self.kinds = name, computing, timing, kinds
        self.batch: MicroBatch | None = None
        self.ahead: deque[Launched] = deque()
        self.chosen_s = self.ended_s = -math.inf
        self.again_s = math.inf

    def launch(self, batch: MicroBatch, run: Callable[[MicroBatch], Callable[[], None] | None]) -> Launched:
        """Launch the unfinished requests of a micro-batch, blocking only as `run` does."""
        alive = tuple(request for request in batch.requests if not request.finished)
        launched = Launched(batch, self.chosen_s, computed=bool(alive))
        try:
            if alive:
                with self.timing(batch) as launched.device:
                    begun = any(request.partial for request in alive)
                    same = len(alive) == len(batch.requests)
                    launched.wait = run(batch if same else replace(batch, requests=alive))
                    launched.of_token = begun or any(request.partial for request in alive)
        except Exception as error:
            fail(alive, error)
        return launched

    def run_ahead(self, launched: Launched, now_s: float, takes_s: float) -> None:
        """Let it run ahead: the loop waits for it when the next of its kind is launched, or when its results
        are expected. takes_s: as soon as that may be, so that the wait never begins too late."""
        free_s = self.ahead[-1].over_s if self.ahead else self.ended_s
        launched.ahead_s = now_s
        launched.over_s = max(now_s, free_s) + takes_s
        self.ahead.append(launched)

    def is_free(self, now_s: float) -> bool:
        """Whether more may be launched behind what is ahead. Not behind a first chunk that is not nearly
        over, or already has something behind it."""
        if self.batch is not None or self._is_full:
            return False
        first = next((launched for launched in reversed(self.ahead) if launched.is_first), None)
        return first is None or (first is self.ahead[-1] and now_s >= first.look_until_s)

    @property
    def _is_full(self) -> bool:
        steps = sum(launched.is_step for launched in self.ahead)
        if steps > 1 or len(self.ahead) - steps > GROUPS_AHEAD:
            return True
        return bool(self.ahead) and not self.ahead[-1].is_followed

    @property
    def due_s(self) -> float:
        """When to wait for the oldest work alone: it should be over, or nothing more may be launched."""
        oldest = self.ahead[0]
        return min(oldest.look_until_s, oldest.over_s - EARLY_S if self._is_full else math.inf)

    def wake_s(self, now_s: float) -> float:
        """When to step again if nothing changes."""
        firsts = [launched.look_until_s for launched in self.ahead if launched.is_first]
        times = [until_s for until_s in firsts if until_s > now_s]
        if self.ahead:
            times.append(self.due_s)
        return min([*times, self.again_s if self.is_free(now_s) else math.inf])

    def over(self) -> Iterator[Launched]:
        """The oldest work ahead that is over, removed one by one."""
        while self.ahead:
            device = self.ahead[0].device
            if self.ahead[0].wait is not None and not (device is not None and device.over()):
                return
            yield self.ahead.popleft()

    def end(self, launched: Launched, ended_s: float) -> float:
        """Note that the results of a micro-batch were there at ended_s; returns its seconds. If it ran ahead
        that is the device's time, because it may have ended before the wait."""
        took_s = ended_s - max(launched.began_s, self.ended_s)
        if launched.ahead_s is not None and launched.device is not None:
            device_s = launched.device.seconds()
            if device_s is not None:
                took_s, ended_s = device_s, min(ended_s, max(launched.ahead_s, self.ended_s) + device_s)
        self.ended_s = ended_s
        self._record(launched.batch, ended_s - took_s)
        return took_s

    def _record(self, batch: MicroBatch, began_s: float) -> None:
        """Put a micro-batch on the timeline, which ran from then until `ended_s`."""
        detail: list[str | int] = []
        for request in batch.requests:
            frame = request.result if request.want == OBSERVE else request.prefix
            version = getattr(frame, "version", "unknown")
            number = "" if request.number < 0 else request.number
            detail += (request.robot, request.want, number, "of frame", version)
        begin_ns, end_ns = round(began_s * 1e9), round(self.ended_s * 1e9)
        TIMELINE.span(f"lane {self.name}", batch.kind, begin_ns, end_ns, batch.flows, tuple(detail))


def fail(requests: Iterable[Request], error: Exception) -> None:
    """End these requests with an error."""
    for request in requests:
        request.fail(error)
