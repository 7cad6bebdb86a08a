"""Frames in, chunks and texts out: the newest prefix wins, and nobody waits for text."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.lane import Stream
from vla_accel_ros.engine.policies.overload import Degradation, Degrading
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, MicroBatch, Request
from vla_accel_ros.engine.streaming.ports import MOST_UNDELIVERED, Pace, Ports, Text
from vla_accel_ros.engine.streaming.streaming import MOST_WAITING, Streaming
from vla_accel_ros.types import Chunk, Observation, Torn


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
    world: World, kind: str = "pi05", answers: bool = True, action_hz: float = 200.0
) -> Streaming:
    language = Pace(50.0) if answers else None
    return Streaming(make_engine(kind), world.ports(), Pace(100.0), Pace(action_hz), language, max_tokens=4)


class Stepped:
    """A stream without its threads: vision when the test says so, and then whatever may run."""

    def __init__(self, world: World, kind: str = "pi05", answers: bool = True, **options: object) -> None:
        self.world, self.stream = world, make_stream(world, kind, answers, **options)
        self.scheduler, self.now_s = self.stream._scheduler, 0.0
        self.scheduler._clock = lambda: self.now_s
        self.ran: list[str] = []
        self.scheduler.streams.running[""] = Stream(on_ran=self.note)
        self.stream._running = True
        self.stream._want_chunks()

    def note(self, batch: MicroBatch, began_s: float) -> None:
        self.ran.append(batch.requests[-1].want)

    def see(self) -> bool:
        """Vision's turn, which steps the lane until its own frame is seen."""
        return self.stream.see()

    def step(self) -> list[str]:
        """Whatever may run; what it was."""
        self.ran.clear()
        while self.scheduler.step():
            pass
        while self.stream._results.waiting:
            port, what = self.stream._results.waiting.popleft()
            port(*what)
        return list(self.ran)


def test_a_chunk_is_made_once_of_each_new_prefix_and_of_the_newest():
    world = World()
    stepped = Stepped(world, answers=False)
    assert not stepped.see() and stepped.step() == []
    world.observations += [make_observation(0, stamp_ns=100), make_observation(1, stamp_ns=200)]
    assert stepped.see() and stepped.see()
    assert stepped.step() == [ACT] and stepped.step() == []
    assert [chunk.stamp_ns for chunk in world.chunks] == [100, 200]
    assert world.returned == 2  # every image that was lent


def test_a_frame_that_waits_for_the_lane_is_the_newest_when_its_turn_comes():
    """Vision is due while a chunk is made; another frame comes before the chunk is finished."""
    world = World()
    stepped = Stepped(world, answers=False)
    stepped.stream._engine.observe(make_observation(stamp_ns=100)).release()
    newest, submitted = [make_observation(stamp_ns=200)], threading.Event()
    stepped.stream._ports = replace(stepped.stream._ports, observe=lambda: newest.pop() if newest else None)
    submit, actor = stepped.scheduler.submit, stepped.stream._engine.runner.actor
    run, late = actor.run, []

    def submitting(request: Request) -> Request:
        try:
            return submit(request)
        finally:
            if request.want == OBSERVE:
                submitted.set()

    def slow(batch: MicroBatch) -> None:
        late.append(threading.Thread(target=stepped.see))
        late[0].start()
        assert submitted.wait(20.0)
        newest[:] = [make_observation(stamp_ns=300)]
        run(batch)

    stepped.scheduler.submit, actor.run = submitting, slow
    assert stepped.scheduler.step()
    late[0].join(20.0)
    actor.run = run
    stepped.step()
    assert [chunk.stamp_ns for chunk in world.chunks] == [100, 300] and world.returned == 1


def test_of_frames_that_came_before_anybody_acted_the_newest_is_acted_on():
    world = World()
    stepped = Stepped(world, answers=False)
    stepped.stream._running = False
    stepped.scheduler.cancel(*stepped.scheduler.requests)
    for stamp_ns in (100, 200, 300):  # seen while no chunk was wanted
        stepped.stream._engine.observe(make_observation(stamp_ns=stamp_ns)).release()
    stepped.stream._running = True
    stepped.stream._want_chunks()
    assert stepped.step() == [ACT] and stepped.step() == []
    assert [chunk.stamp_ns for chunk in world.chunks] == [300]


def test_a_frame_is_seen_when_the_one_before_it_was_acted_on():
    """As many frames as there are: none queues behind the next, and none is left out."""
    world = World()
    order: list[tuple[str, int]] = []
    stream = make_stream(world, answers=False)
    scheduler, ran = stream._scheduler, stream._ran

    def noted(batch: MicroBatch, began_s: float) -> None:
        (request,) = batch.requests
        stamp_ns = request.observation.stamp_ns if request.observation else request.prefix.stamp_ns
        order.append((request.want, stamp_ns))
        ran(batch, began_s)

    world.observations += [make_observation(i, stamp_ns=100 + i) for i in range(3)]
    stream.start()
    scheduler.streams.running[""] = Stream(on_ran=noted)
    world.wait(lambda: len(world.chunks) == 3, "three chunks")
    stream.stop()
    whole = [(want, 100 + i) for i in range(3) for want in (OBSERVE, ACT)]
    assert whole[-len(order) :] == order and len(order) >= 2 and not world.errors
    assert [chunk.stamp_ns for chunk in world.chunks] == [100, 101, 102]


def test_a_model_with_a_state_token_acts_again_on_a_new_joint_state_after_a_period():
    world = World()
    stepped = Stepped(world, "pi0", action_hz=10.0)
    world.observations.append(make_observation())
    world.felt = (np.zeros(6), 1)
    assert stepped.see() and ACT in stepped.step() and stepped.step() == []
    world.felt = (np.full(6, 0.2), 2)
    assert stepped.step() == []  # its period is not over
    stepped.now_s = 0.1
    assert stepped.step() == [ACT] and stepped.step() == []
    first, second = world.chunks
    assert first.kv_version == second.kv_version and first.request_id < second.request_id
    np.testing.assert_array_equal(second.state, np.full(6, 0.2, np.float32))


def test_joints_that_nobody_tells_of_are_acted_on_without_another_frame():
    world = World()
    stream = make_stream(world, "pi0", answers=False)
    world.felt = (np.zeros(6), 1)
    world.observations.append(make_observation())
    stream.start()
    for number in range(1, 4):
        world.wait(lambda: len(world.chunks) == number, "chunk")  # noqa: B023
        world.felt = (np.full(6, 0.1 * number), 1 + number)
    stream.stop()
    assert len({chunk.kv_version for chunk in world.chunks}) == 1


def test_a_slow_receiver_gets_the_newest_chunks_and_what_came_to_nothing_is_a_miss():
    """And of answers the whole text, but not every piece of it."""
    world = World()
    stream = make_stream(world, answers=False)
    stuck, go_on = threading.Event(), threading.Event()

    def stops(chunk: Chunk, took_s: float) -> None:
        stuck.set()
        assert go_on.wait(20.0)
        world.ports().on_chunk(chunk, took_s)

    stream._ports = replace(stream._ports, on_chunk=stops, on_text=world.ports().on_text)
    stream._running = True
    stream._results.start()
    chunk = stream._engine.act(stream._engine.observe(make_observation(0)))
    ports = stream._ports
    stream._results.give(ports.on_chunk, replace(chunk, request_id=0), 0.1)
    assert stuck.wait(20.0)
    prefix = stream._engine.scheduler.newest()
    for number in range(1, 4 * MOST_UNDELIVERED):
        stream._results.give(ports.on_chunk, replace(chunk, request_id=number), 0.1)
        stream._results.give(ports.on_text, Text(prefix, number % 2, f"{number}", False))
        assert len(stream._results.waiting) <= MOST_UNDELIVERED + 2
    go_on.set()
    newest = list(range(3 * MOST_UNDELIVERED, 4 * MOST_UNDELIVERED))
    world.wait(lambda: len(world.chunks) == 1 + len(newest) and len(world.texts) == 2, "the newest")
    assert [made.request_id for made in world.chunks] == [0, *newest]
    assert [text.text for text in world.texts] == [f"{newest[-2]}", f"{newest[-1]}"]
    (actions,) = (stats for stats in stream.stats() if stats.name == "action")
    assert actions.misses == 3 * MOST_UNDELIVERED - 1
    stream._results.stop()


def test_answers_do_not_pile_up_before_a_slow_receiver_either():
    """Each is finished, and nobody takes one."""
    world = World()
    stream = make_stream(world)
    prefix = stream._engine.observe(make_observation(0))
    for number in range(3 * MOST_UNDELIVERED):
        stream._results.give(stream._ports.on_text, Text(prefix, number, f"{number}", True))
        assert len(stream._results.waiting) <= MOST_UNDELIVERED
    waiting = [what[0].text for _, what in stream._results.waiting]
    assert waiting == [f"{number}" for number in range(2 * MOST_UNDELIVERED, 3 * MOST_UNDELIVERED)]
    (language,) = (stats for stats in stream.stats() if stats.name == "language")
    assert language.misses == 2 * MOST_UNDELIVERED


def test_what_was_given_up_for_overload_is_told_beside_the_misses():
    stream = make_stream(World())
    policy = stream._scheduler.policy
    assert isinstance(policy, Degrading)
    policy.degradation = Degradation("vision", 5, 1.0, {"": 7, "other": 1}, {"": 3})
    told = {stats.name: (stats.given_up, stats.misses) for stats in stream.stats()}
    assert told == {"vision": (3, 0), "action": (7, 0), "language": (0, 0)}
    assert stream.degradation is policy.degradation


def test_a_frame_from_before_the_start_is_not_acted_on():
    world = World()
    stream = make_stream(world)
    stream._engine.observe(make_observation(stamp_ns=100)).release()
    stream.start()
    world.observations.append(make_observation(stamp_ns=200))
    world.wait(lambda: world.chunks and world.texts, "chunk and text")
    stream.stop()
    assert {chunk.stamp_ns for chunk in world.chunks} == {200}
    assert {text.prefix.stamp_ns for text in world.texts} == {200}


def test_an_answer_grows_is_finished_once_and_is_about_one_frame():
    world = World()
    stepped = Stepped(world)
    world.observations.append(make_observation(instruction="reach the green block"))
    assert stepped.see()
    assert stepped.step()[:2] == [ACT, ASK] and stepped.step() == []
    *growing, last = world.texts
    assert last.finished and not any(text.finished for text in growing)
    assert all(later.text.startswith(text.text) for text, later in zip(world.texts, world.texts[1:]))
    assert {text.request_id for text in world.texts} == {last.request_id}
    assert last.prefix.instruction == "reach the green block"


def test_a_stream_stops_in_the_middle_of_everything_and_starts_again():
    world = World()
    stream = make_stream(world)
    for _ in range(2):
        world.chunks.clear()
        world.texts.clear()
        stream.start()
        world.observations += [make_observation(i) for i in range(3)]
        world.wait(lambda: world.chunks and world.texts, "chunk and text")
        stream.stop()
        pool = stream._engine.runner.pool
        assert not stream._scheduler.requests and pool.free == pool.slots - 1
    assert not world.errors
    names = [stats.name for stats in stream.stats()]
    assert names == ["vision", "action", "language"]


def test_a_stream_stops_while_vision_waits_for_its_frame():
    """The frame is computed to its end, handed on, and its images are given back."""
    world = World()
    stream = make_stream(world, answers=False)
    computing, goes_on, seen = threading.Event(), threading.Event(), []
    observe = stream._engine.runner.prefill.observe

    def slow(*given: Any):
        computing.set()
        assert goes_on.wait(20.0)
        return observe(*given)

    stream._engine.runner.prefill.observe = slow
    stream._ports = replace(stream._ports, on_prefix=lambda prefix, observation: seen.append(prefix.version))
    world.observations.append(make_observation())
    stream.start()
    assert computing.wait(20.0)
    stopping = threading.Thread(target=stream.stop, daemon=True)
    stopping.start()
    goes_on.set()
    stopping.join(20.0)
    assert not stopping.is_alive() and seen == [0] and world.returned == 1 and not world.errors
    pool = stream._engine.runner.pool
    assert not stream._scheduler.requests and pool.free == pool.slots - 1


def test_a_stream_may_be_stopped_by_whoever_it_hands_a_chunk_to():
    world = World()
    stream, stopped = make_stream(world, answers=False), threading.Event()

    def stops(chunk: Chunk, took_s: float) -> None:
        stream.stop()
        stopped.set()

    stream._ports = replace(stream._ports, on_chunk=stops)
    world.observations.append(make_observation())
    stream.start()
    assert stopped.wait(20.0) and not stream._scheduler.lanes[0].running


def test_an_observation_the_model_refuses_is_reported_and_the_stream_goes_on():
    world = World()
    stream = make_stream(world, answers=False)
    world.observations.append(make_observation(cameras=("no_such_camera",)))
    stream.start()
    world.wait(lambda: world.errors, "error")
    world.observations.append(make_observation())
    world.wait(lambda: world.chunks, "chunk after the error")
    stream.stop()
    name, error = world.errors[0]
    assert name == "vision" and "no_such_camera" in str(error)


def test_a_chunk_that_fails_is_reported_and_the_next_frame_is_acted_on():
    world = World()
    stepped = Stepped(world, answers=False)
    actor = stepped.stream._engine.runner.actor
    run = actor.run

    def fails(batch: MicroBatch) -> None:
        actor.run = run
        raise RuntimeError("out of memory")

    actor.run = fails
    for stamp_ns in (100, 200):
        world.observations.append(make_observation(stamp_ns=stamp_ns))
        assert stepped.see()
        stepped.step()
    ((name, error),) = world.errors
    assert name == "action" and str(error) == "out of memory"
    assert [chunk.stamp_ns for chunk in world.chunks] == [200]


def test_what_cannot_be_delivered_is_reported_and_what_cannot_be_reported_ends_nothing(caplog):
    world = World()
    stream = make_stream(world, answers=False)
    delivered: list[int] = []

    def deliver(chunk: Chunk, took_s: float) -> None:
        delivered.append(chunk.stamp_ns)
        if len(delivered) < 3:
            raise RuntimeError("nobody there")
        world.ports().on_chunk(chunk, took_s)

    def report(name: str, error: Exception) -> None:
        world.ports().on_error(name, error)
        raise RuntimeError("nobody listens")

    stream._ports = replace(stream._ports, on_chunk=deliver, on_error=report)
    stream.start()
    for number in range(1, 4):
        world.observations.append(make_observation(stamp_ns=number))
        world.wait(lambda: len(world.errors) == number or world.chunks, "word of it")  # noqa: B023
    stream.stop()
    assert delivered == [1, 2, 3] and [str(error) for _, error in world.errors] == ["nobody there"] * 2
    assert "its error could not be reported" in caplog.text


def test_images_that_were_overwritten_come_to_nothing_and_are_no_error():
    world = World()
    stepped = Stepped(world)
    torn = replace(make_observation(), intact=lambda: False)
    with pytest.raises(Torn):
        stepped.stream._engine.observe(torn)
    world.observations.append(torn)
    assert not stepped.see() and not world.errors and world.returned == 1
    assert stepped.stream._engine.runner.pool.free == 4


def test_a_chunk_that_is_forgotten_while_it_is_made_is_not_given_out_and_the_next_is():
    world = World()
    stepped = Stepped(world, answers=False)
    actor = stepped.stream._engine.runner.actor
    run = actor.run

    def moved_meanwhile(batch: MicroBatch) -> None:
        actor.run = run
        stepped.stream.forget()
        run(batch)

    actor.run = moved_meanwhile
    for stamp_ns in (100, 200):
        world.observations.append(make_observation(stamp_ns=stamp_ns))
        assert stepped.see()
        stepped.step()
    assert [chunk.stamp_ns for chunk in world.chunks] == [200] and not world.errors


@pytest.mark.parametrize("deadline_s", [0.0, 0.03])
def test_a_pace_without_a_deadline_has_its_period(deadline_s):
    pace = Pace(50.0, deadline_s)
    assert pace.period_s == 0.02 and pace.most_s == (deadline_s or 0.02)


def test_a_new_prefix_is_acted_on_at_once_however_seldom_chunks_are_made_of_one_frame():
    world = World()
    stream = Streaming(make_engine(), world.ports(), Pace(100.0), Pace(0.001), None)
    stream.start()
    for stamp_ns in (100, 200):
        world.observations.append(make_observation(stamp_ns=stamp_ns))
        world.wait(lambda: world.chunks and world.chunks[-1].stamp_ns == stamp_ns, "chunk")  # noqa: B023
    stream.stop()


def test_questions_that_are_not_taken():
    stream = make_stream(World(), answers=False)
    with pytest.raises(ValueError, match="the question is empty"):
        stream.ask(" ")
    for _ in range(MOST_WAITING):
        stream.ask("red")
    with pytest.raises(ValueError, match="16 questions wait already: 'blue' is not taken"):
        stream.ask("blue")
    assert not stream._scheduler.step()  # nothing was seen that they could be about
    assert stream.cancel() == MOST_WAITING and not stream._scheduler.requests


def test_a_question_of_another_robot_is_not_this_streams():
    stream = make_stream(World(), answers=False)
    other = stream._scheduler.submit(Request(ASK, "other", stream=True, waits=True))
    stream.ask("red")
    assert stream.cancel() == 1 and stream._scheduler.requests == (other,)


def test_vision_awaits_frames_and_stops_while_it_does():
    class Frames:
        """Frames that come when `give` says so."""

        def __init__(self) -> None:
            self.changed, self.given, self.waits = threading.Condition(), False, 0
            self.lead_s = 0.0

        def age_s(self) -> float:
            return 0.0

        def wait(self, patience_s: float, given_up) -> None:
            with self.changed:
                self.waits += 1
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.given or given_up())

        def wake(self) -> None:
            with self.changed:
                self.changed.notify_all()

        def give(self) -> None:
            with self.changed:
                self.given = True
                self.changed.notify_all()

        def awaited(self) -> None:
            with self.changed:
                assert self.changed.wait_for(lambda: self.waits, timeout=20.0)

    world, frames = World(), Frames()
    world.observations.append(make_observation(stamp_ns=100))
    ports = replace(world.ports(), frames=frames)
    stream = Streaming(make_engine(), ports, Pace(100.0), Pace(200.0), None)
    stream.start()
    frames.awaited()
    stream.stop()
    assert not world.chunks and world.observations
    frames.give()
    stream.start()
    world.wait(lambda: world.chunks, "chunk")
    stream.stop()


def test_a_chunk_is_limited_before_anyone_hears_of_it_and_by_the_words_of_its_frame():
    class Chunking:
        """Which horizons it is told of."""

        def __init__(self) -> None:
            self.told: list[int | None] = []

        def begin(self, request: Request) -> None: ...

        def made(self, request: Request) -> None:
            self.told.append(request.result.execution_horizon)

        def committed(self, stamp_ns: int) -> int | None: ...

    def limit(chunk: Chunk, instruction: str) -> Chunk:
        return replace(chunk, execution_horizon=1 if instruction.endswith("red block") else 2)

    world, chunking = World(), Chunking()
    stepped = Stepped(world, answers=False)
    stepped.stream._ports = replace(stepped.stream._ports, limit=limit)
    stepped.stream._chunking = chunking
    for number, colour in enumerate(("red", "blue")):
        words = f"reach the {colour} block"
        world.observations.append(make_observation(number, stamp_ns=100 + number, instruction=words))
        assert stepped.see() and stepped.step() == [ACT]
    assert [chunk.execution_horizon for chunk in world.chunks] == [1, 2] == chunking.told


def test_a_chunk_that_cannot_be_limited_is_an_error_and_the_next_one_comes():
    def limit(chunk: Chunk, instruction: str) -> Chunk:
        if chunk.stamp_ns == 100:
            raise ValueError("no horizon")
        return chunk

    world = World()
    stepped = Stepped(world, answers=False)
    stepped.stream._ports = replace(stepped.stream._ports, limit=limit)
    world.observations += [make_observation(0, stamp_ns=100), make_observation(1, stamp_ns=200)]
    assert stepped.see() and stepped.step() == [ACT]
    assert [(loop, str(error)) for loop, error in world.errors] == [("action", "no horizon")]
    assert stepped.see() and stepped.step() == [ACT]
    assert [chunk.stamp_ns for chunk in world.chunks] == [200]
