"""What a running stream takes from outside and gives back, and how often.

Results are handed over in a thread of their own (`Results`). So a slow receiver never delays the lane, and
nothing piles up before it: of an answer only the newest state waits, as it has all the text so far; of
chunks, answers and errors that wait too long the oldest comes to nothing, which is a miss. So does a chunk
that another lane's newer one was faster than.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.engine.loop import Awaited
from vla_accel_ros.engine.request import Request
from vla_accel_ros.types import Chunk, Observation

MOST_UNDELIVERED = 8
"""Chunks, and errors, that wait for their receiver; as many answers do, each in its newest state."""

Port = Callable[..., None]
Undelivered = tuple[Port, tuple[object, ...]]
"""Who is to be given what."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often something is done and how long it may take; deadline_s 0 is one period."""

    rate_hz: float
    deadline_s: float = 0.0

    @property
    def period_s(self) -> float:
        """Seconds from one to the next."""
        return 1.0 / self.rate_hz

    @property
    def most_s(self) -> float:
        """Seconds after which it is a miss."""
        return self.deadline_s or self.period_s


@dataclass(frozen=True)
class Text:
    """An answer as it grows. text: the whole of it so far; request_id: which answer; prefix: what it is
    about, whose instruction is the question if there was one."""

    prefix: Prefix
    request_id: int
    text: str
    finished: bool


@dataclass(frozen=True)
class Ports:
    """What a stream takes from outside and gives back; called in threads of the stream.

    observe: the newest Observation, or None when there is none that is new; observed: it is needed no longer.
    newest_state: (state float [D], stamp_ns) of the newest joints, or None; for models with a state token.
    on_chunk: gets each chunk and the seconds its action request took. on_text: gets each piece of an answer.
    on_error: gets ("vision", "action" or "language", exception); the stream goes on.
    on_prefix: gets each prefix and the observation it was computed from, whose images are still lent.
    frames: what vision awaits when it is due; None: it takes what there is.
    limit: gets each chunk and its instruction before all others, in the lane, and gives it with its execution
        horizon; a chunk for which it raises is handed to nobody.
    """

    observe: Callable[[], Observation | None]
    observed: Callable[[], None]
    newest_state: Callable[[], tuple[np.ndarray, int] | None]
    on_chunk: Callable[[Chunk, float], None]
    on_text: Callable[[Text], None]
    on_error: Callable[[str, Exception], None]
    on_prefix: Callable[[Prefix, Observation], None] = lambda prefix, observation: None
    frames: Awaited | None = None
    limit: Callable[[Chunk, str], Chunk] = lambda chunk, instruction: chunk


class Chunking(Protocol):
    """Makes each chunk agree with the one that is being executed (control.chunking.rtc). Called in the
    lane."""

    def begin(self, request: Request) -> None: ...
    def made(self, request: Request) -> None: ...
    def committed(self, stamp_ns: int) -> int | None:
        """Of a further chunk from the frame of that stamp, if it began now: leading actions that are
        committed; None while nothing is guided."""
        ...


class Results:
    """Of one stream; start() and stop() may be called again and again.

    missed: told "action" or "language" of a result that came to nothing. failed: gets the same of a receiver
    that raised, and what. Attribute `waiting`: what is to be handed over, the oldest first.
    """

    def __init__(self, missed: Callable[[str], None], failed: Callable[[str, Exception], None]) -> None:
        self._missed, self._failed = missed, failed
        self.waiting: deque[Undelivered] = deque()
        self._newest = -1  # the newest chunk that was given, by its request
        self._come, self._running = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Hand over from now on."""
        self._running = True
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Hand over nothing more, after what is being handed over; returns at once."""
        with self._come:
            self._running = False
            self._come.notify_all()

    def stop(self) -> None:
        """End, wait for the thread, and forget what waits."""
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.waiting.clear()

    def give(self, port: Port, *what: object) -> None:
        """Have something handed over."""
        with self._come:
            if isinstance(what[0], Chunk):
                if what[0].request_id < self._newest:
                    self._missed("action")
                    return
                self._newest = what[0].request_id
            old, lost = self._replaced(port, what[0])
            if old or lost:
                gone = {id(one) for one in (*old, *lost)}
                self.waiting = deque(one for one in self.waiting if id(one) not in gone)
            self.waiting.append((port, what))
            self._come.notify_all()
        if lost and isinstance(what[0], Chunk | Text):
            self._missed(_name(what[0]))

    def _replaced(self, port: Port, what: object) -> tuple[Sequence[Undelivered], Sequence[Undelivered]]:
        """Of those that wait: older states of the same answer, and what is lost for what comes."""
        same = [one for one in self.waiting if one[0] == port]
        if isinstance(what, Text):
            old = [one for one in same if cast(Text, one[1][0]).request_id == what.request_id]
            if old:
                return old, ()
        return (), same[: max(0, len(same) + 1 - MOST_UNDELIVERED)]

    def _run(self) -> None:
        while True:
            with self._come:
                self._come.wait_for(lambda: self.waiting or not self._running)
                if not self._running:
                    return
                port, what = self.waiting.popleft()
            try:
                port(*what)
            except Exception as error:
                self._undeliverable(_name(what[0]), error)

    def _undeliverable(self, name: str, error: Exception) -> None:
        try:
            self._failed(name, error)
        except Exception:
            _LOG.exception("%s goes on, but its error could not be reported", name)


def _name(what: object) -> str:
    return "language" if isinstance(what, Text) else "action"
