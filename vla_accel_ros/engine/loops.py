"""Three loops at their own rates over one engine: see, act, speak.

Vision turns the newest observation into the newest prefix; action samples a chunk from whatever prefix is
newest, at once when there is a new one, or takes the next step of all chunks under way; language lets the
model answer about frames that it holds for itself, in the time that the others leave over (engine.speaking).
They meet only at the KV pool: the newest prefix wins, and no frame queues. On a CPU, where two of them at
once would make both slower, a frame is seen when the one before it was acted on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.loop import Awaited, Loop, LoopStats
from vla_accel_ros.engine.prefixes import Prefix
from vla_accel_ros.engine.speaking import Moment, Speaking, Text
from vla_accel_ros.engine.types import Chunk, Observation, Torn
from vla_accel_ros.engine.way import RightOfWay

MOST_WAIT_S = 1.0
"""For an action loop that does not run, or hangs, before the next frame is seen all the same."""

TURNS = 4
"""Language's turns in a period of vision, each of which uses what is left of the frame."""


@dataclass(frozen=True)
class Pace:
    """How often a loop runs and how long after its due time a run may end; deadline_s 0 is one period."""

    rate_hz: float
    deadline_s: float = 0.0

    def loop(
        self,
        name: str,
        body: Callable[[], bool],
        on_error: Callable[[Exception], bool],
        awaited: Awaited | None = None,
    ) -> Loop:
        """The loop of this pace around a body."""
        deadline_s = self.deadline_s or 1.0 / self.rate_hz
        return Loop(name, self.rate_hz, deadline_s, body, on_error=on_error, awaited=awaited)


@dataclass(frozen=True)
class Ports:
    """What the loops take from outside and give back; all are called in the loops' threads.

    observe: the newest Observation, or None when there is none that is new; observed: it is needed no longer.
    feel: (state float [D], stamp_ns) of the newest joints, or None; for models with a state token.
    on_chunk: gets each chunk and the seconds its action request took. on_text: gets each piece of an answer.
    on_error: gets (loop name, exception); the loops go on.
    on_prefix: gets each prefix and the observation it was computed from, whose images are still lent.
    frames: what the vision loop awaits when it is due; None: it takes what there is.
    """

    observe: Callable[[], Observation | None]
    observed: Callable[[], None]
    feel: Callable[[], tuple[np.ndarray, int] | None]
    on_chunk: Callable[[Chunk, float], None]
    on_text: Callable[[Text], None]
    on_error: Callable[[str, Exception], None]
    on_prefix: Callable[[Prefix, Observation], None] = lambda prefix, observation: None
    frames: Awaited | None = None


class InferenceLoops:
    """The loops of one engine; start() and stop() may be called again and again.

    language: how often the model continues its own prompt; None: it speaks only when it is asked. max_tokens:
    of the longest answer. act: how a chunk is made of (prefix, state), by default as the engine does;
    control/rtc.py makes each continue the one before; an engine that staggers makes them itself. A prefix
    that was there before (a warm-up, or the last one before a pause) is never acted on.
    """

    def __init__(
        self,
        engine: Engine,
        ports: Ports,
        vision: Pace,
        action: Pace,
        language: Pace | None,
        max_tokens: int = 16,
        act: Callable[[Prefix, np.ndarray | None], Chunk | None] | None = None,
    ) -> None:
        self._engine, self._ports = engine, ports
        own = engine.act_in_turn if engine.acts_in_turn else engine.act
        self._make_chunk: Callable[[Prefix, np.ndarray | None], Chunk | None] = act or own
        self._since_s: dict[int, float] = {}  # when chunks under way were begun, by request
        self._way = RightOfWay()
        self._acted = self._present()
        self._felt_ns = 0
        self._in_turn = engine.policy.device.type == "cpu"
        self._to_act = False  # a frame was seen, and the action loop did not run since
        self._ran = threading.Condition()
        self._has_state_token = engine.policy.feels
        self._loops = [vision.loop("vision", self.see, self._failed("vision"), ports.frames)]
        self._loops.append(action.loop("action", self.act, self._failed("action")))
        self.speaking: Speaking | None = None
        if engine.policy.speaks:
            moment = Moment(self._served, self._next_frame_s)
            often_s = None if language is None else 1.0 / language.rate_hz
            self.speaking = Speaking(engine, ports.on_text, self._way, moment, often_s, max_tokens)
            turns = Pace(TURNS * vision.rate_hz, language.deadline_s if language else 0.0)
            self._loops.append(turns.loop("language", self.speaking.turn, self._failed("language")))

    def start(self) -> None:
        """Start all loops, forgetting every frame there is."""
        self._acted = self._present()
        self.forget()
        if self.speaking is not None:
            self.speaking.forget(self._acted)
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Stop all loops and wait for their threads; answers are broken off after their present token."""
        if self.speaking is not None:
            self.speaking.cancel()
        for loop in self._loops:
            loop.stop()
        self.forget()
        if self.speaking is not None:
            self.speaking.end()

    def forget(self) -> None:
        """Finish no chunk that is under way: the robot was moved otherwise meanwhile."""
        self._engine.forget_turns()

    def stats(self) -> list[LoopStats]:
        """How each loop does."""
        return [loop.stats() for loop in self._loops]

    def see(self) -> bool:
        """One run of the vision loop: the newest observation becomes the newest prefix.

        One whose images were overwritten meanwhile comes to nothing; who lends the images counts it.
        """
        with self._ran:
            self._ran.wait_for(lambda: not self._to_act, timeout=MOST_WAIT_S)
        observation = self._ports.observe()
        if observation is None:
            return False
        try:
            with self._way.taken():
                prefix = self._engine.observe(observation)
            self._to_act = self._in_turn
            self._loops[1].wake()
            with prefix:
                self._ports.on_prefix(prefix, observation)
        except Torn:
            return False
        finally:
            self._ports.observed()
        return True

    def act(self) -> bool:
        """One run of the action loop: a chunk from the newest prefix, if there is something new to act on; or
        the next step of those under way, which the next follows at once."""
        try:
            return self._act()
        finally:
            with self._ran:
                self._to_act = False
                self._ran.notify_all()

    def _act(self) -> bool:
        engine = self._engine
        prefix = engine.newest()
        if prefix is None:
            return False
        with prefix:
            felt = self._ports.feel() if self._has_state_token else None
            state, felt_ns = felt or (None, 0)
            new = prefix.version != self._acted or felt_ns != self._felt_ns
            if not new and not engine.under_way:
                return False
            started = time.perf_counter()
            with self._way.taken():
                if engine.staggers:
                    new = new and engine.room_for(prefix)
                    chunk = engine.act_staggered(prefix if new else None, state)
                else:
                    chunk = self._make_chunk(prefix, state)
            if new:
                self._acted, self._felt_ns = prefix.version, felt_ns
        if chunk is not None:  # none is finished while the first are under way
            began = self._since_s.get(chunk.request_id, started)
            self._ports.on_chunk(chunk, time.perf_counter() - began)
        if engine.under_way:
            self._since_s = {number: self._since_s.get(number, started) for number in engine.under_way}
            self._loops[1].wake()
        return True

    def _served(self) -> bool:
        """Whether the newest frame was acted on."""
        return self._acted >= self._present()

    def _next_frame_s(self) -> float:
        due = self._loops[0].due_s
        return math.inf if due is None else due

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
