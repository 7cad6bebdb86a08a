"""A stream that is stopped while the pixels of a frame are copied gives its images back after the copy."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from builders import make_observation, make_policy
from scheduled import in_thread, joined
from stepped_streams import World

from vla_accel_ros.engine.config import LANES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Observe, Pace, Request
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.streaming.streaming import Streaming

WAIT_S = 20.0


class Copy:
    """A copy of a frame's pixels that ends when the test says so. began: somebody waits for its end."""

    def __init__(self) -> None:
        self.began, self.ends = threading.Event(), threading.Event()

    def end(self, upload: ImageUpload, taken: Callable[[], None] = lambda: None) -> None:
        self.began.set()
        assert self.ends.wait(WAIT_S)
        taken()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_images_are_needed_until_their_copy_has_ended(
    monkeypatch: pytest.MonkeyPatch, how: str, groups: int, lanes: str
) -> None:
    copy, world = Copy(), World()
    monkeypatch.setattr(ImageUpload, "end", lambda upload, taken=lambda: None: copy.end(upload, taken))
    engine = Engine(make_policy("pi0"), fast=True, prefill_groups=groups, slots=5, steps=2, lanes=lanes)
    stream = Streaming(engine, world.ports(), Pace(100.0), Pace(100.0))
    world.observations.append(make_observation())
    stream.start()
    assert copy.began.wait(WAIT_S)
    if how == "cancel":
        engine.scheduler.cancel(*engine.scheduler.requests)
    stopping = in_thread(stream.stop)
    stopping.join(0.1)
    assert world.returned == 0 and stopping.is_alive()
    copy.ends.set()
    joined(stopping)
    assert world.returned == 1 and not engine.scheduler.requests
    assert engine.runner.pool.free >= engine.runner.pool.slots - 1
    with engine.observe(make_observation(1)) as prefix:
        engine.act(prefix)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_a_frame_that_is_cancelled_behind_its_first_group_is_released_after_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane has other work meanwhile, so nobody waits for the group."""
    copy = Copy()
    monkeypatch.setattr(ImageUpload, "end", lambda upload, taken=lambda: None: copy.end(upload, taken))
    engine = Engine(make_policy("pi0"), fast=True, prefill_groups=3, steps=2)
    (lane,) = engine.scheduler.lanes
    engine.scheduler.runs_ahead = True
    frame = engine.scheduler.submit(Request(Observe(make_observation())))
    engine.scheduler.step()
    assert frame.begun and lane.ahead and not copy.began.is_set()
    cancelling = in_thread(lambda: engine.scheduler.cancel(frame))
    assert copy.began.wait(WAIT_S) and not frame.finished
    copy.ends.set()
    joined(cancelling)
    assert frame.finished and engine.runner.pool.free == engine.runner.pool.slots
