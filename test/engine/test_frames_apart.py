"""Frames in a stream of their own: nobody acts on one before it is computed, as all actions would wait."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from builders import make_observation, make_policy
from current_streams import computing_in
from wishes import counted

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.lane import Launched
from vla_accel_ros.engine.request import ENCODE, MicroBatch, Observe, Request, Status
from vla_accel_ros.engine.runner.frames import Frames


class Computed:
    """An event of a device that computes until `error` or nothing is known of it."""

    def __init__(self) -> None:
        self.waited = False
        self.error: Exception | None = None

    def record_event(self) -> Computed:
        return self

    def synchronize(self) -> None:
        self.waited = True
        if self.error is not None:
            raise self.error


def apart(monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Frames, Computed]:
    """An engine on a CPU whose frames are computed in what stands in for a stream of a GPU."""
    engine, computed = Engine(make_policy("pi0"), slots=4), Computed()
    runner = engine.runner
    frames = Frames(runner.prefill, runner.pool, runner.prefixes, runner.robots, apart=True)
    computing_in(monkeypatch, lambda: computed)
    return engine, frames, computed


def test_a_frame_is_published_once_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, frames, computed = apart(monkeypatch)
    request = Request(Observe(make_observation(0)))
    wait = frames.run(request)
    assert wait is not None and not computed.waited and not request.finished
    assert engine.runner.prefixes.newest() is None, (
        "who acted on it now would wait for it in the stream of actions"
    )
    wait()
    assert computed.waited and request.finished
    newest = engine.runner.prefixes.newest()
    assert newest is not None and newest.version == request.result.version
    for prefix in (newest, request.result):
        prefix.release()
    engine.runner.prefixes.remove("")
    assert engine.runner.pool.free == engine.runner.pool.slots


@pytest.mark.parametrize("several", [False, True])
def test_a_lane_that_runs_ahead_computes_each_once(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published when it is waited for must not be taken for a group, and chosen again meanwhile."""
    engine, frames, _ = apart(monkeypatch)
    engine.runner.frames, lane = frames, engine.scheduler.lanes[0]
    given = [Request(Observe(make_observation(seed))) for seed in range(1 + several)]
    for request in given:
        request.status = Status.RUNNING
    wait = frames.run_together(given) if several else frames.run(given[0])
    launched = Launched(MicroBatch(ENCODE, tuple(given)), 0.0, computed=True, wait=wait)
    assert all(request.launched for request in given) and not launched.is_followed
    launched.complete()
    for request in given:
        request.result.release()
    engine.scheduler.runs_ahead, counts = True, counted(engine.scheduler)
    request = engine.scheduler.submit(Request(Observe(make_observation(2))))
    for _ in range(3):
        engine.scheduler.step(lane)
    assert request.finished and counts[request] == 1 and not lane.ahead
    request.result.release()
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_one_that_fails_on_the_device_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, frames, computed = apart(monkeypatch)
    request = Request(Observe(make_observation(0)))
    wait = frames.run(request)
    assert wait is not None and engine.runner.pool.free == engine.runner.pool.slots - 1
    computed.error = RuntimeError("an illegal address")
    with pytest.raises(RuntimeError, match="an illegal address"):
        wait()
    assert engine.runner.prefixes.newest() is None and engine.runner.pool.free == engine.runner.pool.slots


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_one_of_several_that_fails_on_the_device_fails_alone(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, frames, computed = apart(monkeypatch)
    given = [Request(Observe(make_observation(seed))) for seed in range(3)]
    for request in given:
        request.status = Status.RUNNING
    wait = frames.run_together(given)
    assert wait is not None
    left = [error("an illegal address"), None, None]
    monkeypatch.setattr(computed, "synchronize", lambda: _raise(left.pop(0)))
    with nullcontext() if error is RuntimeError else pytest.raises(error):
        wait()
    assert given[0].result is None and (given[0].error is not None) == (error is RuntimeError)
    for request in given[1:]:
        assert request.finished and request.error is None
        request.result.release()
    assert engine.runner.pool.free == engine.runner.pool.slots - 1, "the newest is kept"


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


@pytest.mark.gpu
@pytest.mark.parametrize("lanes", [ACTIONS_APART, ALL_APART])
def test_on_a_gpu_actions_begin_on_frames_that_are_computed(
    lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(make_policy("pi0", device="cuda"), fast=True, lanes=lanes, steps=3, staggered=2, slots=8)
    engine.prepare([2], [5, 6, 7, 8])
    prefill, publish = engine.runner.prefill, engine.runner.prefixes.publish
    observe, over, found = prefill.observe, list[torch.cuda.Event](), list[bool]()

    def slow(*given: Any) -> Any:
        torch.cuda._sleep(100_000_000)
        seen = observe(*given)
        over.append(torch.cuda.current_stream().record_event())
        return seen

    def noted(*given: Any) -> Any:
        found.append(over[-1].query())
        return publish(*given)

    monkeypatch.setattr(prefill, "observe", slow)
    monkeypatch.setattr(engine.runner.prefixes, "publish", noted)
    for seed in range(3):
        with engine.observe(make_observation(seed)) as prefix:
            engine.act(prefix)
    assert found == [True] * 3
