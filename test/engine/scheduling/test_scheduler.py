"""One queue of requests: which of them run next, and how they fail."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from builders import JOINTS
from scheduled import System
from wishes import due

from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.readiness import SENSE_AGAIN_S
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, Cancelled, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.types import Observation


def test_a_fresh_frame_is_acted_on_before_the_next_is_seen_and_text_comes_last(system: System) -> None:
    ask = system.submit(ASK, waits=Waits.NEWS)
    frames = [system.frame() for _ in range(2)]

    def again(request: Request) -> None:
        if request is act:
            system.acting()

    act = system.acting(on_progress=again)
    assert system.run() == [OBSERVE, ACT, OBSERVE, ACT, ASK, ASK, ASK]
    assert ask.finished and all(frame.finished for frame in frames) and act.result == "act 0"


def test_newer_joints_are_acted_on_after_a_fresh_frame_and_after_the_next_is_seen(system: System) -> None:
    felt = [(np.zeros(JOINTS), 1)]
    system.seen()
    system.acting(sense=lambda: felt[-1])
    assert system.run() == [ACT]
    again = system.acting(sense=lambda: felt[-1])
    assert system.run() == []  # neither frame nor joints are new
    felt.append((np.ones(JOINTS), 2))
    system.frame()
    assert system.run() == [OBSERVE, ACT]  # of the new frame, with the new joints
    assert again.act.sensed_ns == 2 and again.fresh
    newer = system.acting(sense=lambda: felt[-1])
    felt.append((np.ones(JOINTS), 3))
    assert system.run() == [ACT] and not newer.fresh
    assert newer.act.state is not None and np.array_equal(newer.act.state, np.ones(JOINTS))


def test_the_same_frame_is_not_acted_on_before_its_time_and_another_is_at_once(system: System) -> None:
    stamps = itertools.count(1)
    system.seen()
    system.acting(sense=lambda: (np.zeros(JOINTS), next(stamps)))
    assert system.run() == [ACT]
    waiting = system.acting(sense=lambda: (np.zeros(JOINTS), next(stamps)), grid=due(1.0))
    assert system.run() == []
    system.clock.now_s = 1.0
    assert system.run() == [ACT] and waiting.finished
    system.acting(grid=due(9.0))
    system.frame()
    assert system.run() == [OBSERVE, ACT]


def test_a_lane_looks_again_when_it_is_time_or_joints_may_have_come(system: System) -> None:
    """Nobody tells the scheduler of joints, and of no time that has come."""
    system.seen()
    system.acting(sense=lambda: (np.zeros(JOINTS), 1))
    system.run()
    system.acting(sense=lambda: (np.zeros(JOINTS), 1), grid=due(0.004))
    system.run()
    assert system.scheduler.lanes[0].again_s == 0.004
    system.clock.now_s = 0.004
    system.run()
    assert system.scheduler.lanes[0].again_s == pytest.approx(0.004 + SENSE_AGAIN_S)


def test_frames_of_a_stream_never_queue_and_the_newest_wins(system: System) -> None:
    for words in ("first", "second", "third"):
        system.seen(words=words)
    act = system.acting()
    assert system.run() == [ACT]
    assert act.instruction == "third" and act.prefix is not None and act.prefix.version == 2
    system.acting()
    assert system.run() == []


def test_what_is_no_stream_runs_at_once_on_the_prefix_that_it_was_given(system: System) -> None:
    first = system.scheduler.wait(system.frame(words="first")).result
    system.seen(words="second")
    acts = [system.submit(ACT, prefix=first) for _ in range(2)]
    assert system.run() == [ACT, ACT]
    assert [act.instruction for act in acts] == ["first"] * 2 and [act.number for act in acts] == [0, 1]


def test_several_robots_have_their_own_frames_and_the_highest_priority_goes_first(system: System) -> None:
    robots = ("low", "high", "middle")
    priorities = {"low": 0, "high": 2, "middle": 1}
    for robot in robots:
        system.seen(robot, words=robot)
    acts = [system.acting(robot, priority=priorities[robot]) for robot in robots]
    frames = [system.frame(robot, priority=priorities[robot]) for robot in robots]
    system.run()
    order = [(request.want, request.robot) for _, (request,) in system.runner.ran]
    assert order == [(want, robot) for want in (ACT, OBSERVE) for robot in ("high", "middle", "low")]
    assert all(act.instruction == act.robot for act in acts)
    for robot, frame in zip(robots, frames, strict=True):
        with system.runner.prefixes.newest(robot) as newest:
            assert newest.robot == robot and newest.version == frame.result.version
    assert system.runner.prefixes.newest("none") is None


def test_a_request_waits_for_room_or_fails_without_it(system: System) -> None:
    system.seen()
    asks = [system.submit(ASK, waits=Waits.ROOM) for _ in range(system.runner.answers + 1)]
    for _ in range(system.runner.answers):
        system.scheduler.step()
    assert [ask.begun for ask in asks] == [True, True, False]
    refused = system.submit(ASK)
    with pytest.raises(PoolExhausted, match="no place"):
        system.scheduler.wait(refused)
    system.run()
    assert all(ask.result for ask in asks) and not system.runner.open


def test_skip_leaves_every_frame_alone_that_there_is(system: System) -> None:
    system.seen("a")
    system.seen("b")
    system.scheduler.skip("a")
    acts = {robot: system.acting(robot) for robot in "ab"}
    asks = {robot: system.submit(ASK, robot=robot, waits=Waits.NEWS) for robot in "ab"}
    system.run()
    assert [acts[robot].finished for robot in "ab"] == [False, True] == [asks[r].finished for r in "ab"]
    system.frame("a")
    system.run()
    assert acts["a"].finished and asks["a"].finished


def test_other_words_drop_what_is_under_way_of_that_robot_alone() -> None:
    system = System(StaggeredChunks(4), steps=3)
    told: list[tuple[Request, bool]] = []
    for robot in "ab":
        system.seen(robot, words="reach")
        system.acting(robot, on_progress=lambda request: told.append((request, request.cancelled)))
        system.scheduler.step()
    system.seen("a", words="put")
    new = system.acting("a")
    system.run()
    old, other = told[0][0], next(request for request, _ in told if request.robot == "b")
    assert old.cancelled and old.result is None and not other.cancelled and new.result == "act 2"
    assert [cancelled for request, cancelled in told if request is old] == [False, False, True]
    assert not system.runner.open


def test_what_a_runner_cannot_do_is_refused_and_not_queued(system: System) -> None:
    with pytest.raises(ValueError, match="answers nothing"):
        system.submit(ASK, question="unknown")
    assert not system.scheduler.requests


def test_without_a_frame_there_is_nothing_to_act_on(system: System) -> None:
    with pytest.raises(ValueError, match="nothing was observed yet"):
        system.scheduler.wait(system.submit(ACT))
    assert not system.scheduler.requests


def test_a_request_that_cannot_begin_fails_alone() -> None:
    system = System(StaggeredChunks(3), steps=2)
    system.seen()
    under_way = system.submit(ACT)
    system.scheduler.step()
    broken = system.submit(ACT)
    system.runner.fails.add(broken)
    system.run()
    assert under_way.result == "act 0" and under_way.error is None
    assert broken.finished and broken.result is None and not broken.progress
    with pytest.raises(ValueError, match="it cannot begin"):
        system.scheduler.wait(broken)
    assert system.runner.slots_held == 1 and not system.runner.open  # the newest


def test_a_panic_where_a_request_begins_goes_through_and_is_what_its_waiter_is_told() -> None:
    class Panic(BaseException):
        """No Exception."""

    def panic() -> Observation:
        raise Panic("the camera's library is gone")

    system = System()
    request = system.submit(OBSERVE, newest=panic)
    with pytest.raises(Panic):
        system.scheduler.step()
    with pytest.raises(Cancelled, match="library is gone"):
        system.scheduler.wait(request)
    assert not system.runner.ran and not system.scheduler.requests
    system.seen()


@pytest.mark.parametrize("where", ["sense", "on_begin"])
def test_an_error_of_what_a_request_brings_is_its_own(system: System, where: str) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no joints")

    system.seen()
    system.scheduler.wait(system.acting())
    other = system.submit(ACT)
    given: dict[str, Any] = {where: fails}
    broken = system.acting(**given)
    if where == "on_begin":
        system.seen()
    system.run()
    assert other.result is not None and system.runner.slots_held == 1
    with pytest.raises(RuntimeError, match="no joints"):
        system.scheduler.wait(broken)


def test_the_error_of_a_micro_batch_is_that_of_all_in_it_and_reaches_who_waits() -> None:
    system = System(StaggeredChunks(2), steps=2)
    system.seen()
    acts = [system.submit(ACT) for _ in range(2)]

    def fails(batch: MicroBatch) -> None:
        if len(batch.requests) == 2:
            raise RuntimeError("out of memory")

    system.runner.during = fails
    for act in acts:
        with pytest.raises(RuntimeError, match="out of memory"):
            system.scheduler.wait(act)
    assert not system.runner.open and system.runner.slots_held == 1
    assert ("act.denoise", 2) not in system.profile.known()  # what failed says nothing of durations


def test_a_failed_frame_is_not_tried_again_and_the_next_is(system: System) -> None:
    system.seen()
    broken = system.acting()
    system.runner.fails.add(broken)
    system.run()
    waiting = system.acting()
    assert broken.error is not None and system.run() == []
    system.frame()
    assert system.run() == [OBSERVE, ACT] and waiting.error is None


def test_who_cannot_hear_of_progress_keeps_nobody_else_from_it(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    def deaf(request: Request) -> None:
        raise RuntimeError("deaf")

    heard: list[int] = []
    system.seen()
    asks = [system.submit(ASK, waits=Waits.ROOM, on_progress=deaf)]
    asks.append(
        system.submit(ASK, waits=Waits.ROOM, on_progress=lambda request: heard.append(len(request.tokens)))
    )
    system.run()
    assert heard == [1, 2, 3] and all(ask.result for ask in asks) and "deaf" in caplog.text


def test_durations_are_noted_by_kind_and_number() -> None:
    system = System(StaggeredChunks(2), steps=2)
    ran: list[tuple[str, float]] = []
    on_ran = lambda batch, began_s: ran.append((batch.kind, began_s))  # noqa: E731
    system.scheduler.streams[""] = Stream(on_ran=on_ran)
    system.seen()
    ran.clear()

    def takes(batch: MicroBatch) -> None:
        system.clock.now_s += len(batch.requests)

    system.runner.during = takes
    for _ in range(2):
        system.submit(ACT)
    system.run()
    assert ran == [("act.denoise", 0.0), ("act.denoise", 1.0), ("act.denoise", 3.0)]
    known = system.profile.known()
    assert known["act.denoise", 1] == 1.0 and known["act.denoise", 2] == 2.0
