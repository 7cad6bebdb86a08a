"""Three loops at their own rates over one engine: see, act, speak.

Vision turns the newest observation into the newest prefix; action samples a chunk from whatever prefix is
newest; language lets the model answer, slowly, about a frame it holds for itself. They meet only at the KV
pool: the newest prefix wins, and nothing queues. Action never waits for language; on the contrary, before
every token language waits (a bounded time) until nobody sees or acts, because on a CPU or on one stream of
a GPU its token would be in their way.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.loop import Loop, LoopStats
from vla_accel_ros.engine.prefixes import Prefix
from vla_accel_ros.engine.types import Chunk, Observation, Torn

PATIENCE_S = 0.2


@dataclass(frozen=True)
class Pace:
    """How often a loop runs and how long after its due time a run may end; deadline_s 0 is one period."""

    rate_hz: float
    deadline_s: float = 0.0

    def loop(self, name: str, body: Callable[[], bool], on_error: Callable[[Exception], bool]) -> Loop:
        """The loop of this pace around a body."""
        return Loop(name, self.rate_hz, self.deadline_s or 1.0 / self.rate_hz, body, on_error=on_error)


@dataclass(frozen=True)
class Text:
    """An answer as it grows. text: the whole of it so far; request_id: which answer; prefix: what it is
    about."""

    prefix: Prefix
    request_id: int
    text: str
    finished: bool


@dataclass(frozen=True)
class Ports:
    """What the loops take from outside and give back; all are called in the loops' threads.

    observe: the newest Observation, or None when there is none that is new; observed: it is needed no longer.
    feel: (state float [D], stamp_ns) of the newest joints, or None; for models with a state token.
    on_chunk: gets each chunk and the seconds its action request took. on_text: gets each piece of an answer.
    on_error: gets (loop name, exception); the loops go on.
    on_prefix: gets each prefix and the observation it was computed from, whose images are still lent.
    """

    observe: Callable[[], Observation | None]
    observed: Callable[[], None]
    feel: Callable[[], tuple[np.ndarray, int] | None]
    on_chunk: Callable[[Chunk, float], None]
    on_text: Callable[[Text], None]
    on_error: Callable[[str, Exception], None]
    on_prefix: Callable[[Prefix, Observation], None] = lambda prefix, observation: None


class InferenceLoops:
    """The loops of one engine; start() and stop() may be called again and again.

    language: None asks nothing. max_tokens: longest answer. act: how a chunk is made of (prefix, state), by
    default as the engine does; control/rtc.py makes each continue the one before. A prefix that was there
    before (a warm-up, or the last one before a pause) is never acted on.
    """

    def __init__(
        self,
        engine: Engine,
        ports: Ports,
        vision: Pace,
        action: Pace,
        language: Pace | None,
        max_tokens: int = 16,
        act: Callable[[Prefix, np.ndarray | None], Chunk] | None = None,
    ) -> None:
        self._engine, self._ports, self._max_tokens = engine, ports, max_tokens
        self._make_chunk = engine.act if act is None else act
        self._way = RightOfWay()
        self._requests = itertools.count()
        self._stopping = threading.Event()
        self._acted, self._asked = self._present(), self._present()
        self._felt_ns = 0
        self._has_state_token = engine.policy.feels
        self._loops = [vision.loop("vision", self.see, self._failed("vision"))]
        self._loops.append(action.loop("action", self.act, self._failed("action")))
        if language is not None and engine.policy.speaks:
            self._loops.append(language.loop("language", self.speak, self._failed("language")))

    def start(self) -> None:
        """Start all loops, forgetting every frame there is."""
        self._stopping.clear()
        self._acted = self._asked = self._present()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Stop all loops and wait for their threads; an answer is broken off after its present token."""
        self._stopping.set()
        for loop in self._loops:
            loop.stop()

    def stats(self) -> list[LoopStats]:
        """How each loop does."""
        return [loop.stats() for loop in self._loops]

    def see(self) -> bool:
        """One run of the vision loop: the newest observation becomes the newest prefix.

        One whose images were overwritten meanwhile comes to nothing; who lends the images counts it.
        """
        observation = self._ports.observe()
        if observation is None:
            return False
        try:
            with self._way.taken():
                prefix = self._engine.observe(observation)
            with prefix:
                self._ports.on_prefix(prefix, observation)
        except Torn:
            return False
        finally:
            self._ports.observed()
        return True

    def act(self) -> bool:
        """One run of the action loop: a chunk from the newest prefix, if there is something new to act on."""
        prefix = self._engine.newest()
        if prefix is None:
            return False
        with prefix:
            felt = self._ports.feel() if self._has_state_token else None
            state, felt_ns = felt or (None, 0)
            if prefix.version == self._acted and felt_ns == self._felt_ns:
                return False
            started = time.perf_counter()
            with self._way.taken():
                chunk = self._make_chunk(prefix, state)
            self._acted, self._felt_ns = prefix.version, felt_ns
        self._ports.on_chunk(chunk, time.perf_counter() - started)
        return True

    def speak(self) -> bool:
        """One run of the language loop: a whole answer about the newest prefix, piece by piece."""
        prefix = self._engine.newest()
        if prefix is None:
            return False
        with prefix:
            if prefix.version == self._asked:
                return False
            self._asked, request, text = prefix.version, next(self._requests), ""
            with self._engine.ask(prefix, max_tokens=self._max_tokens) as answer:
                self._way.give()
                for piece in answer:
                    text += piece
                    self._ports.on_text(Text(prefix, request, text, finished=False))
                    self._way.give()
                    if self._stopping.is_set():
                        return True
            self._ports.on_text(Text(prefix, request, text, finished=True))
        return True

    def _present(self) -> int:
        prefix = self._engine.newest()
        if prefix is None:
            return -1
        with prefix:
            return prefix.version

    def _failed(self, name: str) -> Callable[[Exception], bool]:
        def on_error(error: Exception) -> bool:
            self._ports.on_error(name, error)
            return True

        return on_error


class RightOfWay:
    """Urgent work takes it, others give it: `give` waits until nobody has it taken, at most `patience_s`."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._free = threading.Condition()
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have it while the block runs; never waits."""
        with self._free:
            self._taken += 1
        try:
            yield
        finally:
            with self._free:
                self._taken -= 1
                self._free.notify_all()

    def give(self) -> bool:
        """Wait until nobody has it; False when patience ended first."""
        with self._free:
            return self._free.wait_for(lambda: not self._taken, timeout=self._patience_s)
