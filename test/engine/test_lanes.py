"""Several lanes of one scheduler: what runs at once, and what never does."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from builders import JOINTS
from test_scheduler import WAIT_S, System, in_thread, joined

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE, TEXT_APART
from vla_accel_ros.engine.lanes.lane import EARLY_S, Lane, Stream
from vla_accel_ros.engine.policies.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.policies.lanes import LANES, in_lanes
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.policies.text import TextInSlack
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.engine.scheduling.scheduler import Scheduler


class Overlapping(System):
    """Lanes whose micro-batches begin and end when the test says so, without threads."""

    def __init__(
        self,
        word: str,
        policy: Policy,
        text: Policy | None = None,
        steps: int = 1,
        lanes: Mapping[str, tuple[str, ...]] | None = None,
        ahead: bool = False,
    ) -> None:
        super().__init__(steps=steps)
        kinds = lanes or LANES[word]
        made = [Lane(name) for name in kinds]
        self.runner.ahead = ahead
        for lane in made:
            lane.runs_ahead = ahead
        self.policy = in_lanes(kinds, policy, policy if text is None else text)
        self.scheduler = Scheduler(self.runner, self.policy, self.profile, self.clock, made)
        self.lanes = {lane.name: lane for lane in made}
        self.running: dict[str, tuple[MicroBatch, float]] = {}

    def seen_beside(self) -> None:
        """A frame is seen in the lane of vision, beside what runs."""
        frame = self.frame()
        self.begin("vision")
        self.end("vision")
        frame.result.release()

    def begin(self, lane: str) -> list[str]:
        """Have a lane choose; what it runs from now on. Where that is nothing, what it ran ahead is over."""
        one = self.lanes[lane]
        batch = None if self.scheduler._holds_off(one) else self.scheduler._schedule(one)
        if batch is not None:
            self.running[lane] = batch, self.clock.now_s
        elif one.ahead:
            self._advance(lane, None)
        return [] if batch is None else [request.want for request in batch.requests]

    def end(self, lane: str) -> None:
        """The micro-batch that it runs is over, or is launched where lanes run ahead."""
        self._advance(lane, self.running.pop(lane)[0])

    def _advance(self, lane: str, batch: MicroBatch | None) -> None:
        one = self.lanes[lane]
        self.scheduler._postprocess(one, self.scheduler._run(one, batch))
        self.scheduler._end(one)
        self.scheduler._queue.settle()


@pytest.fixture
def apart() -> Overlapping:
    return Overlapping(ALL_APART, WholeChunks())


def test_an_action_does_not_wait_for_a_frame_nor_text_for_either(apart: Overlapping) -> None:
    apart.seen()
    acting, asked, next_frame = apart.acting(), apart.submit(ASK), apart.frame()
    begun = {lane: apart.begin(lane) for lane in ("vision", "action", "language")}
    assert begun == {"vision": [OBSERVE], "action": [ACT], "language": [ASK]}
    for lane in ("action", "language", "vision"):
        apart.end(lane)
    assert acting.released and next_frame.released and asked.done == 1


def test_what_is_of_a_kind_runs_in_one_lane_at_a_time() -> None:
    class Anywhere(WholeChunks):
        """Would run anything in any lane."""

    system = Overlapping(ALL_APART, Anywhere())
    system.scheduler.policy = Anywhere()
    system.seen()
    acts = [system.submit(ACT) for _ in range(2)]
    assert system.begin("vision") == [ACT] and system.begin("action") == []
    system.end("vision")
    assert acts[0].released and system.begin("action") == [ACT]
    system.end("action")


def test_who_is_cancelled_while_its_kind_runs_is_taken_out_when_that_is_over(apart: Overlapping) -> None:
    apart.seen()
    first, second = apart.submit(ASK), apart.submit(ASK)
    for _ in range(2):
        apart.begin("language")
        apart.end("language")
    assert apart.begin("language") == [ASK, ASK]
    told: list[Request] = []
    first.on_progress = told.append
    apart.scheduler.cancel(first)
    assert not first.released and first in apart.runner.held  # a token of it is being computed
    apart.end("language")
    assert first.released and first.cancelled and told == [first] and not second.cancelled
    assert apart.runner.held == {second}


def test_who_is_cancelled_while_another_kind_runs_is_taken_out_at_once(apart: Overlapping) -> None:
    apart.seen()
    asked = apart.submit(ASK)
    apart.begin("language")
    apart.end("language")
    apart.frame()
    apart.begin("vision")
    apart.scheduler.cancel(asked)
    assert asked.released and asked not in apart.runner.held
    apart.end("vision")


def test_a_release_is_in_the_order_of_the_lane_that_has_read(
    apart: Overlapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slot could be written while a lane's stream still reads it."""
    inside: list[str] = []

    @contextmanager
    def computing(name: str) -> Iterator[None]:
        inside.append(name)
        yield
        inside.pop()

    for name, lane in apart.lanes.items():
        lane.computing = partial(computing, name)
    where: dict[Request, list[str]] = {}

    def drop(request: Request) -> None:
        where[request] = list(inside)

    monkeypatch.setattr(apart.scheduler._queue, "_drop", drop)
    apart.seen()
    asked, act = apart.submit(ASK), apart.acting()
    for word in ("language", "action"):
        apart.begin(word)
        apart.end(word)
    apart.scheduler.cancel(asked)  # by a thread that is no lane's
    assert where[act] == ["action"] and where[asked] == ["language"]


@pytest.mark.parametrize("word", [ACTIONS_APART, ALL_APART])
def test_lanes_with_threads_see_act_and_answer_at_once(word: str) -> None:
    """Three kinds at once, and nobody waits for ever: each is in its micro-batch until all are."""
    system = Overlapping(word, WholeChunks())
    system.seen()
    together = threading.Barrier(2)

    def during(batch: MicroBatch) -> None:
        together.wait(WAIT_S)

    system.runner.during = during
    act, frame = system.submit(ACT), system.frame()
    system.scheduler.start()
    with system.scheduler.wait(frame).result:
        assert system.scheduler.wait(act).result == "act 0"
    system.scheduler.stop()


def test_who_changes_something_asks_whether_a_caller_waits_for_that() -> None:
    """So that a caller's thread sleeps until its request is finished, and does not disturb the lanes."""
    system, asked, waits = Overlapping(ONE, WholeChunks()), list[int](), threading.Event()
    scheduler, act, changes = system.scheduler, system.acting(), 200

    def until(request: Request) -> bool:
        asked.append(threading.get_ident())
        if asked.count(threading.get_ident()) == 2:  # with the queue locked: from now on it waits
            waits.set()
        return False

    scheduler.start()
    caller = in_thread(lambda: scheduler.wait(act, until))
    assert waits.wait(WAIT_S)
    for _ in range(changes):
        scheduler.wake()
    assert asked.count(threading.get_ident()) == changes
    assert asked.count(caller.ident or 0) < changes / 2  # it looks by itself now and then
    scheduler.wait(system.frame()).result.release()
    joined(caller)
    scheduler.stop()
    assert act.result == "act 0"


@pytest.mark.parametrize("word", [ONE, ACTIONS_APART, ALL_APART])
def test_streams_of_several_robots_begin_and_end_by_themselves(word: str) -> None:
    system = Overlapping(word, WholeChunks())
    scheduler = system.scheduler
    scheduler.join("a", Stream(due_s=lambda: 7.0))
    scheduler.join("b", Stream(due_s=lambda: 3.0))
    with pytest.raises(ValueError, match="a stream of robot 'a' runs on this engine already; stop it first"):
        scheduler.join("a", Stream())
    waits = {robot: system.acting(robot) for robot in "ab"}
    scheduler.leave("a")
    assert waits["a"].cancelled and not waits["b"].cancelled
    assert all(lane.running for lane in scheduler.lanes)
    with scheduler.wait(system.frame("b")).result:
        assert scheduler.wait(waits["b"]).result
    scheduler.leave("b")
    scheduler.leave("b")
    assert not any(lane.running for lane in scheduler.lanes) and not scheduler.requests
    scheduler.join("a", Stream())
    scheduler.leave("a")


@pytest.mark.parametrize("word", [ACTIONS_APART, ALL_APART])
@pytest.mark.parametrize("seed", range(5))
def test_random_schedules_keep_versions_in_order_and_lose_nothing(word: str, seed: int) -> None:
    """20,000 beginnings and ends of micro-batches in any order, with robots, cancellations and new words."""
    draw = random.Random(seed)
    system = Overlapping(word, StaggeredChunks(3), steps=4)
    made: dict[str, list[tuple[int, int]]] = {robot: [] for robot in "ab"}
    submitted: list[Request] = []

    def note(request: Request) -> None:
        if request.result is not None:
            made[request.robot].append((request.number, request.prefix.version))

    def act() -> Request:
        return system.acting(draw.choice("ab"), on_progress=note)

    def frame() -> Request:
        words = draw.choice(("reach", "put"))
        return system.frame(draw.choice("ab"), words, on_progress=lambda r: r.result and r.result.release())

    def ask() -> Request:
        return system.submit(ASK, robot=draw.choice("ab"), stream=True, waits=True)

    for _ in range(20_000):
        system.clock.now_s += draw.random() / 100
        what = draw.random()
        if what < 0.25 and len(system.scheduler.requests) < 12:
            submitted.append(draw.choice((act, act, frame, frame, ask))())
        elif what < 0.28 and submitted:
            system.scheduler.cancel(draw.choice(submitted))
        elif what < 0.29:
            system.scheduler.forget(draw.choice("ab"))
        else:
            lane = draw.choice(list(system.lanes))
            system.end(lane) if lane in system.running else system.begin(lane)
        running = [request for batch, _ in system.running.values() for request in batch.requests]
        assert len(running) == len(set(running)) and not any(request.released for request in running)
        assert system.runner.held >= {r for r in running if r.want != OBSERVE}
    for lane in list(system.running):
        system.end(lane)
    system.scheduler.stop()
    for robot in "ab":
        assert len(made[robot]) > 50
        assert made[robot] == sorted(made[robot])  # chunks leave in order, and of no older frame
    assert not system.scheduler.requests and not system.runner.held - set(system.scheduler.requests)
    assert all(request.released for request in submitted) and system.runner.slots_held <= 2


def seated(ahead: bool = True) -> Overlapping:
    """Staggered chunks in lanes that run ahead, and what happens in which order."""
    system = Overlapping(TEXT_APART, StaggeredChunks(2), TextInSlack(StaggeredChunks(2), Profile()), 2)
    system.runner.ahead = ahead
    for lane in system.lanes.values():
        lane.runs_ahead = ahead
    system.seen()
    return system


def turn(system: Overlapping, lane: str = "main") -> None:
    system.begin(lane)
    if lane in system.running:
        system.end(lane)


def test_the_next_step_is_launched_before_the_last_one_is_waited_for() -> None:
    system = seated()
    order: list[str] = []
    system.runner.during = lambda batch: order.append(f"launch {len(batch.requests)}")
    system.runner.after = lambda batch: order.append("wait")
    first, second = system.submit(ACT), system.submit(ACT)
    for _ in range(4):
        turn(system)
    # The first has both its steps after two, the second after three; then there is nothing to launch.
    assert order == ["launch 1", "launch 2", "wait", "launch 1", "wait", "wait"]
    assert first.result and second.result and not system.runner.held


def test_a_lane_without_a_thread_waits_for_what_it_launched() -> None:
    system = seated()
    for lane in system.lanes.values():
        lane.runs_ahead = False
    request = system.submit(ACT)
    for _ in range(2):
        turn(system)
    assert request.released and request.result and not system.lanes["main"].ahead


def test_a_lane_looks_out_for_what_it_can_launch_behind_what_runs_until_that_is_about_to_be_over() -> None:
    system = Overlapping(ONE, StaggeredChunks(2), steps=1, ahead=True)
    system.seen()
    lane, step, clock = system.lanes["main"], system.scheduler.step, system.clock
    first = system.submit(ACT)
    assert step(lane) == (first,) and lane.ahead
    clock.now_s += 0.002
    assert step(lane) == (first,) and first.released, "how long it takes was not known: it was waited for"
    second = system.submit(ACT)
    assert step(lane) == (second,)
    over_s = clock.now_s + 0.002 - EARLY_S
    assert step(lane) == () and not second.released and lane.again_s == pytest.approx(over_s)
    third = system.submit(ACT)
    clock.now_s += 0.0015
    assert step(lane) == (second, third) and second.released and lane.ahead[0].batch.requests == (third,)
    assert step(lane) == () and lane.again_s < float("inf")
    clock.now_s = lane.again_s + 1e-6
    assert step(lane) == (third,) and third.released and not lane.ahead


def first_chunks() -> tuple[Overlapping, list[str]]:
    """Whole first chunks of 4 ms and steps of 1 ms in a lane that runs ahead, and what happens in which
    order."""
    system, order = Overlapping(ONE, StaggeredChunks(2), steps=2, ahead=True), list[str]()
    system.runner.seats, over_s = True, dict[int, float]()

    def launched(batch: MicroBatch) -> None:
        if batch.requests[0].want != ACT:
            return
        order.append(f"launch {batch.requests[0].kind}")
        busy_s = max([system.clock.now_s, *over_s.values()])
        over_s[id(batch)] = busy_s + (0.001 if batch.steps else 0.004)

    def waited(batch: MicroBatch) -> None:
        order.append(f"wait for {batch.requests[0].kind}")
        system.clock.now_s = max(system.clock.now_s, over_s.pop(id(batch)))

    system.runner.during, system.runner.after = launched, waited
    system.seen()
    for first in (True, False):  # how long they take is known then
        joints = np.zeros(JOINTS, np.float32), 1 if first else 2
        before = system.acting(first=first, sense=lambda joints=joints: joints)
        go_on(system, partial(getattr, before, "released"))
    order.clear()
    return system, order


def go_on(system: Overlapping, until: Callable[[], bool]) -> None:
    """Let the lane step, and time pass where it has nothing to do."""
    lane = system.lanes["main"]
    system.scheduler.step(lane)
    for _ in range(1000):
        if until():
            return
        if not system.scheduler.step(lane):
            assert lane.again_s > system.clock.now_s, "it asks again at once, and again"
            system.clock.now_s = lane.again_s
    raise AssertionError("it does not come to an end")


def test_behind_a_first_chunk_a_step_is_chosen_when_that_is_nearly_over() -> None:
    system, order = first_chunks()
    began_s, begun_s = system.clock.now_s, list[float]()
    system.seen()
    first = system.acting(first=True)
    further = [
        system.acting(
            first=False,
            sense=lambda: (np.zeros(JOINTS, np.float32), round(1e6 * system.clock.now_s)),
            on_begin=lambda request: begun_s.append(system.clock.now_s),
        )
        for _ in range(2)
    ]
    go_on(system, lambda: first.released)
    assert begun_s == pytest.approx([began_s + 0.004 - EARLY_S], abs=1e-5), "with joints as new as can be"
    assert order == ["launch whole", "launch act", "wait for whole"], "no second step before it is handed on"
    go_on(system, lambda: all(request.released for request in further))
    assert first.result and all(request.result for request in further)


def test_chunks_of_the_frame_before_make_way_when_a_first_chunk_is_launched() -> None:
    system, order = first_chunks()
    newer = itertools.count(3)

    def further() -> Request:
        return system.acting(first=False, sense=lambda: (np.zeros(JOINTS, np.float32), next(newer)))

    old = further()
    assert system.scheduler.step() == (old,)
    assert order.pop() == "launch act"
    system.seen()
    first = system.acting(first=True)
    assert system.scheduler.step() == (first,) and first.awaited
    assert old.cancelled and old.released and old.result is None
    new = further()
    go_on(system, lambda: new.released)
    assert order.count("launch act") == 2 and first.result and new.result, "no step was for the old one"


def test_a_first_chunk_with_which_others_must_agree_is_waited_for_before_any_begins() -> None:
    system, order = first_chunks()
    system.seen()
    first = system.acting(first=True, commits=lambda stamp_ns: None)
    further = system.acting(first=False, sense=lambda: (np.zeros(JOINTS, np.float32), 3))
    go_on(system, lambda: further.released)
    assert order[:3] == ["launch whole", "wait for whole", "launch act"] and first.result


def test_a_step_and_groups_are_ahead_when_the_next_is_chosen_but_no_two_steps() -> None:
    system = Overlapping(ONE, StaggeredChunks(4, groups=4), steps=4, ahead=True)
    system.seen()
    system.runner.groups, order = 4, list[str]()
    system.runner.during = lambda batch: order.append(f"launch {batch.requests[-1].want}")
    system.runner.after = lambda batch: order.append(f"wait for {batch.requests[-1].want}")
    frame, _ = system.frame(), system.submit(ACT)
    for _ in range(7):
        turn(system)
    wants = [one.batch.requests[-1].want for one in system.lanes["main"].ahead]
    assert wants == [OBSERVE, ACT] and not frame.finished
    assert order[:3] == ["launch act", "launch observe", "launch act"], "nothing was waited for"
    assert order[3:6] == ["wait for act", "launch observe", "launch act"], "nor for a group"
    assert order[6:] == [*["wait for observe", "wait for act"], "launch observe", "launch act", *order[6:8]]


def test_what_ran_ahead_took_what_the_device_says_however_late_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = Overlapping(ONE, StaggeredChunks(2), steps=2, ahead=True)
    system.seen()
    lane, counted_s = system.lanes["main"], list[float]()

    @contextmanager
    def timing(batch: MicroBatch) -> Iterator[Callable[[], float | None]]:
        yield lambda: 0.002

    def ran(batch: MicroBatch, took_s: float) -> None:
        counted_s.append(took_s)

    monkeypatch.setattr(lane, "timing", timing)
    monkeypatch.setattr(system.policy, "ran", ran)
    system.submit(ACT)
    for _ in range(3):
        turn(system)
        system.clock.now_s += 1.0
    assert counted_s == pytest.approx([0.002, 0.002])


def test_what_a_device_fails_with_later_is_the_error_of_all_in_that_micro_batch() -> None:
    system = seated()
    first, second, third = (system.submit(ACT) for _ in range(3))

    def fail(batch: MicroBatch) -> None:
        if first in batch.requests and second in batch.requests:
            raise RuntimeError("the device failed")

    system.runner.after = fail
    for _ in range(6):
        turn(system)
    assert [str(request.error) for request in (first, second)] == ["the device failed"] * 2
    assert first.released and second.released and not system.runner.held
    assert third.error is None and third.result


def test_who_is_cancelled_while_its_last_step_runs_ahead_comes_to_nothing() -> None:
    system = seated()
    told: list[Request] = []
    request = system.submit(ACT, on_progress=told.append)
    for _ in range(2):
        turn(system)
    assert request.awaited and not request.finished
    system.scheduler.cancel(request)
    assert request.released and not system.runner.held
    turn(system)
    assert request.result is None and request.cancelled and told.count(request) == 2  # launched, cancelled


def test_text_apart_leaves_the_gpu_to_a_frame_until_its_first_chunk_is_there() -> None:
    system = seated(ahead=False)
    asked = system.submit(ASK)
    turn(system, "language")
    assert system.begin("language") == [ASK], "nothing is more urgent"
    system.end("language")
    frame = system.frame()
    assert system.begin("language") == [], "a frame is to be computed"
    turn(system)
    acting = system.acting()
    assert frame.released and system.begin("language") == [], "its chunk is to come"
    turn(system)
    assert system.begin("language") == [] and not acting.finished
    turn(system)
    assert acting.released and system.begin("language") == [ASK]
    system.end("language")
    assert asked.done == 3
    frame.result.release()
