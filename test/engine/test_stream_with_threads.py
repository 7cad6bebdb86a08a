"""Streams with all their threads, in one lane or several: what comes out is made again to the bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_embodiment, make_observation, make_policy

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.streaming.ports import Pace, Ports, Text
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.types import Chunk, Observation

DEVICES = [("cpu", 40), pytest.param("cuda", 200, marks=pytest.mark.gpu)]
WAIT_S = 60.0


def make_engine(device: str, kind: str, staggered: int, lanes: str, robots: bool = False) -> Engine:
    policy, fast = make_policy(kind, device=device), device == "cuda"
    known = {"left": Embodiment(policy, 1 / 30), "right": make_embodiment(policy, 4)} if robots else None
    options: dict[str, Any] = {"slots": 16, "steps": 4, "fast": fast, "staggered": staggered}
    engine = Engine(policy, lanes=lanes, robots=known, **options)
    assert len(engine.scheduler.lanes) == {"one": 1, "text": 2, "two": 2, "three": 3}[lanes]
    engine.prepare([2], [5, 6, 7, 8] if fast else [])
    return engine


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


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@pytest.mark.parametrize("staggered", [0, 4])
@pytest.mark.parametrize("lanes", LANES)
def test_frames_chunks_and_answers(device: str, frames: int, kind: str, staggered: int, lanes: str) -> None:
    engine = make_engine(device, kind, staggered, lanes)
    running = Running(engine, frames)
    running.stream.start()
    running.wait()
    running.stream.stop()
    running.assert_made_again(least(device, frames))
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize("staggered", [0, 4])
@pytest.mark.parametrize("lanes", LANES)
def test_two_robots_stream_over_one_engine(device: str, frames: int, staggered: int, lanes: str) -> None:
    """Each with its own statistics and joints; one ends, and the other goes on."""
    engine = make_engine(device, "pi0", staggered, lanes, robots=True)
    left, right = Running(engine, frames, "left"), Running(engine, 2 * frames, "right", 4)
    left.stream.start()
    right.stream.start()
    begun = threading.active_count()
    with pytest.raises(ValueError, match="a stream of robot 'left' runs on this engine already"):
        left.stream.start()
    assert threading.active_count() == begun
    left.wait()
    left.stream.stop()
    right.wait()
    right.stream.stop()
    assert {chunk.actions.shape[1] for chunk in right.chunks} == {4}
    for one in (left, right):
        one.assert_made_again(least(device, frames))
    assert engine.runner.pool.free == engine.runner.pool.slots - 2
