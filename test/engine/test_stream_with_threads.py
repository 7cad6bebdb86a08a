"""Streams with all their threads, in one lane or several: what comes out is made again to the bit."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from builders import make_embodiment, make_policy
from running_stream import Running, least

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment

KINDS = ["pi0", "pi05"]
DEVICES = [("cpu", 40), pytest.param("cuda", 200, marks=pytest.mark.gpu)]


def make_engine(device: str, kind: str, staggered: int, lanes: str, robots: bool = False) -> Engine:
    policy, fast = make_policy(kind, device=device), device == "cuda"
    known = {"left": Embodiment(policy, 1 / 30), "right": make_embodiment(policy, 4)} if robots else None
    options: dict[str, Any] = {"slots": 16, "steps": 4, "fast": fast, "staggered": staggered}
    engine = Engine(policy, lanes=lanes, robots=known, **options)
    assert len(engine.scheduler.lanes) == {"one": 1, "text": 2, "two": 2, "three": 3}[lanes]
    engine.prepare([2], [5, 6, 7, 8] if fast else [])
    return engine


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize(
    ("lanes", "kind", "staggered"),
    [
        (lanes, kind, 4 * ((place + (kind == "pi0")) % 2))
        for place, lanes in enumerate(LANES)
        for kind in KINDS
    ],
)
def test_frames_chunks_and_answers(device: str, frames: int, kind: str, staggered: int, lanes: str) -> None:
    engine = make_engine(device, kind, staggered, lanes)
    running = Running(engine, frames)
    running.stream.start()
    running.wait()
    running.stream.stop()
    running.assert_made_again(least(device, frames))
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


@pytest.mark.parametrize(("device", "frames"), DEVICES)
@pytest.mark.parametrize(("lanes", "staggered"), [*zip(LANES, (0, 4, 4, 0), strict=True), ("three", 4)])
def test_two_robots_stream_over_one_engine(device: str, frames: int, staggered: int, lanes: str) -> None:
    """Each with its own statistics and joints; one ends, and the other goes on."""
    engine = make_engine(device, "pi0", staggered, lanes, robots=True)
    left, right = Running(engine, frames, "left"), Running(engine, 2 * frames, "right", 4)
    left.stream.start()
    right.stream.start()
    begun = threading.active_count()
    with pytest.raises(ValueError, match=r"robot 'left' .*already"):
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
