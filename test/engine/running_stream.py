"""A stream of frames, chunks and questions that runs in threads, and what it came to."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
from builders import make_observation

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Pace
from vla_accel_ros.engine.streaming.ports import Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

WAIT_S = 60.0


class Running:
    """A stream of one robot, of so many frames at most."""

    def __init__(self, engine: Engine, frames: int, robot: str = "", joints: int | None = None) -> None:
        self.engine, self.robot, self.joints = engine, robot, joints
        self.chunks: list[Chunk] = []
        self.texts: list[Text] = []
        self.errors: list[tuple[str, Exception]] = []
        self.seen: dict[int, Observation] = {}
        self.last_ns = 999 + frames
        self._numbers, self._told = iter(range(frames)), threading.Condition()
        ports = Ports(
            self._observe,
            lambda: None,
            lambda: None,
            lambda chunk, _: self._note(self.chunks, chunk),
            lambda text: self._note(self.texts, text),
            lambda *error: self._note(self.errors, error),
        )
        self.stream = Streaming(engine, ports, Pace(500.0), Pace(500.0), Pace(50.0), 4, robot=robot)

    def wait(self) -> None:
        """Until its last frame was acted on, and an answer is finished."""

        def done() -> bool:
            acted = bool(self.chunks) and self.chunks[-1].stamp_ns == self.last_ns
            return bool(self.errors) or (acted and any(text.finished for text in self.texts))

        with self._told:
            assert self._told.wait_for(done, WAIT_S)

    def wait_for_chunks(self, more: int) -> None:
        """Until there are so many more than now."""
        count = len(self.chunks) + more
        with self._told:
            assert self._told.wait_for(lambda: bool(self.errors) or len(self.chunks) >= count, WAIT_S)

    def assert_made_again(self, least: int) -> None:
        assert not self.errors
        stamps = [chunk.stamp_ns for chunk in self.chunks]
        assert stamps == sorted(set(stamps)) and len(stamps) > least
        for chunk in self.chunks[:: len(self.chunks) // 10 + 1]:
            with self.engine.observe(self.seen[chunk.stamp_ns]) as prefix:
                again = self.engine.act(prefix, chunk.state, chunk.request_id)
            np.testing.assert_array_equal(again.actions, chunk.actions)
            np.testing.assert_array_equal(again.update_magnitudes, chunk.update_magnitudes)

    def _observe(self) -> Observation | None:
        number = next(self._numbers, None)
        if number is None:
            return None
        made = make_observation(number, stamp_ns=1000 + number)
        self.seen[made.stamp_ns] = made = replace(made, robot=self.robot, state=made.state[: self.joints])
        return made

    def _note(self, record: list[Any], what: object) -> None:
        with self._told:
            record.append(what)
            self._told.notify_all()


def least(device: str, frames: int) -> int:
    """Fewer frames are not acted on: frames come at 500 Hz, and a CPU that others use acts on few of them."""
    return frames // 10 if device == "cuda" else 1
