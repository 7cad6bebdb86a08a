"""A stream of one robot over an engine, with frames that the test sends."""

from __future__ import annotations

import threading

import numpy as np
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import MicroBatch, Pace
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.engine.streaming.ports import Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation


class World:
    """What a stream sees and what it gave: a queue of observations, a joint state, and records."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.felt: tuple[np.ndarray, int] | None = None
        self.chunks: list[Chunk] = []
        self.texts: list[Text] = []
        self.errors: list[tuple[str, Exception]] = []
        self.returned = 0
        self.changed = threading.Condition()

    def ports(self) -> Ports:
        return Ports(
            observe=lambda: self.observations.pop(0) if self.observations else None,
            observed=self._observed,
            newest_state=lambda: self.felt,
            on_chunk=lambda chunk, _: self._note(self.chunks, chunk),
            on_text=lambda text: self._note(self.texts, text),
            on_error=lambda name, error: self._note(self.errors, (name, error)),
        )

    def wait(self, condition, what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=20.0), f"no {what} within 20 s"

    def _observed(self) -> None:
        self.returned += 1

    def _note(self, record: list, entry) -> None:
        with self.changed:
            record.append(entry)
            self.changed.notify_all()


def make_engine(kind: str = "pi05") -> Engine:
    return Engine(make_policy(kind), slots=4, steps=2, answers=2)


def make_stream(
    world: World,
    kind: str = "pi05",
    answers: bool = True,
    action_hz: float = 200.0,
    ports: Ports | None = None,
) -> Streaming:
    language = Pace(50.0) if answers else None
    return Streaming(
        make_engine(kind), ports or world.ports(), Pace(100.0), Pace(action_hz), language, max_tokens=4
    )


class Stepped:
    """A stream without its threads: vision when the test says so, and then whatever may run."""

    def __init__(
        self, world: World, kind: str = "pi05", answers: bool = True, action_hz: float = 200.0
    ) -> None:
        self.world, self.stream = world, make_stream(world, kind, answers, action_hz)
        self.scheduler, self.now_s = self.stream._scheduler, 0.0
        self.scheduler.clock = lambda: self.now_s
        self.ran: list[str] = []
        self.scheduler.streams[""] = Stream(on_ran=self.note)
        self.stream._running = True
        self.stream._want_chunks()

    def note(self, batch: MicroBatch, began_s: float) -> None:
        self.ran.append(batch.requests[-1].want)

    def see(self) -> bool:
        """Vision's turn, which steps the lane until its own frame is seen."""
        return self.stream.run_vision()

    def act_on(self, *stamps_ns: int) -> None:
        """Frames of these times are seen, each when the one before was acted on."""
        for stamp_ns in stamps_ns:
            self.world.observations.append(make_observation(stamp_ns=stamp_ns))
            assert self.see()
            self.step()

    def step(self) -> list[str]:
        """Whatever may run; what it was."""
        self.ran.clear()
        while self.scheduler.step():
            pass
        while self.stream._results.waiting:
            port, what = self.stream._results.waiting.popleft()
            port(*what)
        return list(self.ran)
