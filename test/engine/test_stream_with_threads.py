"""A stream with all its threads, in one lane or several: what comes out is made again to the bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.streaming import Pace, Ports, Streaming, Text
from vla_accel_ros.types import Chunk, Observation

DEVICES = [("cpu", 40), pytest.param("cuda", 200, marks=pytest.mark.gpu)]


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@pytest.mark.parametrize("staggered", [0, 4])
@pytest.mark.parametrize("lanes", LANES)
def test_frames_chunks_and_answers(device: str, frames: int, kind: str, staggered: int, lanes: str) -> None:
    fast = device == "cuda"
    options: dict[str, Any] = {"slots": 12, "steps": 4, "fast": fast, "staggered": staggered}
    engine = Engine(make_policy(kind, device=device), lanes=lanes, **options)
    assert len(engine.scheduler.lanes) == 1 + LANES.index(lanes)
    engine.prepare([2], [5, 6, 7, 8] if fast else [])
    chunks: list[Chunk] = []
    texts: list[Text] = []
    errors: list[tuple[str, Exception]] = []
    seen: dict[int, Observation] = {}
    told = threading.Condition()
    numbers = iter(range(frames))

    def observe() -> Observation | None:
        number = next(numbers, None)
        if number is None:
            return None
        seen[1000 + number] = make_observation(number, stamp_ns=1000 + number)
        return seen[1000 + number]

    def note(record: list, *what: object) -> None:
        with told:
            record.append(what[0] if len(what) == 1 else what)
            told.notify_all()

    ports = Ports(
        observe,
        lambda: None,
        lambda: None,
        lambda chunk, _: note(chunks, chunk),
        lambda text: note(texts, text),
        lambda *error: note(errors, error),
    )
    stream = Streaming(engine, ports, Pace(500.0), Pace(500.0), Pace(50.0), 4)
    stream.start()
    with told:
        assert told.wait_for(lambda: errors or (chunks and chunks[-1].stamp_ns == 999 + frames), timeout=60.0)
        assert told.wait_for(lambda: errors or any(text.finished for text in texts), timeout=60.0)
    stream.stop()
    assert not errors
    stamps = [chunk.stamp_ns for chunk in chunks]
    assert stamps == sorted(set(stamps)) and len(stamps) > frames / 10
    for chunk in chunks[:: len(chunks) // 10 + 1]:
        with engine.observe(seen[chunk.stamp_ns]) as prefix:
            again = engine.act(prefix, chunk.state, chunk.request_id)
        np.testing.assert_array_equal(again.actions, chunk.actions)
        np.testing.assert_array_equal(again.update_magnitudes, chunk.update_magnitudes)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
