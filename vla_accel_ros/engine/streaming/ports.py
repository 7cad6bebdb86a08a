"""The inputs and outputs of a running stream, and their rates.

A separate thread delivers results (`Results`), so a slow receiver never delays the loop. The queue before it
is bounded: of an answer only the newest state waits, as it contains all the text so far; when too many
chunks, answers or errors wait, the oldest is dropped, which counts as a miss. A chunk is dropped, too, if a
newer chunk of another lane overtook it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import Request
from vla_accel_ros.engine.streaming.loop import Awaited
from vla_accel_ros.types import Chunk, Observation

MOST_UNDELIVERED = 8
"""Most chunks, most errors and most answers (each in its newest state) that wait for their receiver."""

Port = Callable[..., None]
Undelivered = tuple[Port, tuple[object, ...]]
"""A receiver and its arguments."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Text:
    """An answer as it grows. text: all of it so far; request_id: of the answer; prefix: the frame it is
    about, whose instruction is the question if there was one."""

    prefix: Prefix
    request_id: int
    text: str
    finished: bool


@dataclass(frozen=True)
class Ports:
    """The inputs and outputs of a stream; its threads call them.

    observe: the newest Observation, or None if there is no new one; observed: it is not needed any longer.
    newest_state: (state float [D], stamp_ns) of the newest joints, or None; for models with a state token.
    on_chunk: gets each chunk and the seconds its action request took. on_text: gets each piece of an answer.
    on_error: gets ("vision", "action" or "language", exception); the stream goes on.
    on_prefix: gets each prefix and its observation, whose images are still valid.
    frames: the input that vision waits for when it is due; None: it does not wait.
    limit: gets each chunk and its instruction first, in the loop, and returns the chunk with its execution
        horizon; a chunk for which it raises is not delivered.
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
        """How many leading actions would be committed if a further chunk of the frame with that stamp began
        now; None while chunks are not guided."""


class Results:
    """Delivers the results of one stream; start() and stop() may be called repeatedly.

    missed: called with "action" or "language" for a result that was dropped. failed: called with the same and
    the exception of a receiver that raised. Attribute `waiting`: undelivered results, oldest first.
    """

    def __init__(self, missed: Callable[[str], None], failed: Callable[[str, Exception], None]) -> None:
        self._missed, self._failed = missed, failed
        self.waiting: deque[Undelivered] = deque()
        self._newest = -1  # request number of the newest chunk
        self._come, self._running = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Deliver from now on."""
        with self._come:
            self._running = True
            self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Deliver nothing after the present result; returns at once."""
        with self._come:
            self._running = False
            self._come.notify_all()

    def stop(self) -> None:
        """End, wait for the thread, and drop what waits."""
        self.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.waiting.clear()

    def give(self, port: Port, *arguments: object) -> None:
        """Queue a result for delivery. It replaces the older state of the same answer, or the oldest result
        of its receiver if too many wait, which is lost."""
        result = arguments[0]
        with self._come:
            if isinstance(result, Chunk):
                if result.request_id < self._newest:
                    self._missed("action")
                    return
                self._newest = result.request_id
            same = [index for index, (receiver, _) in enumerate(self.waiting) if receiver == port]
            older = [index for index in same if self._continues(result, index)]
            lost = [] if older or len(same) < MOST_UNDELIVERED else same[:1]
            for index in (*older, *lost):
                del self.waiting[index]
            self.waiting.append((port, arguments))
            self._come.notify_all()
        if lost and isinstance(result, Chunk | Text):
            self._missed(_name(result))

    def _continues(self, result: object, index: int) -> bool:
        """Whether it is a newer state of the answer that waits there."""
        waiting = self.waiting[index][1][0]
        return isinstance(result, Text) and cast(Text, waiting).request_id == result.request_id

    def _run(self) -> None:
        while True:
            with self._come:
                self._come.wait_for(lambda: self.waiting or not self._delivers())
                if not self._delivers():
                    return
                port, arguments = self.waiting.popleft()
            try:
                port(*arguments)
            except Exception as error:
                self._undeliverable(_name(arguments[0]), error)

    def _delivers(self) -> bool:
        """Whether the calling thread is to deliver; a receiver may have stopped and started the stream."""
        return self._running and self._thread is threading.current_thread()

    def _undeliverable(self, name: str, error: Exception) -> None:
        try:
            self._failed(name, error)
        except Exception:
            _LOG.exception("%s goes on, but its error could not be reported", name)


def _name(result: object) -> str:
    return "language" if isinstance(result, Text) else "action"
