"""A stream that starts, stops, fails or loses something, in the middle of everything."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from builders import make_observation
from stepped_streams import Stepped, World, make_engine, make_stream

from vla_accel_ros.engine.request import ACT, ASK, Ask, MicroBatch, Pace, Request, Waits
from vla_accel_ros.engine.streaming.ports import Results
from vla_accel_ros.engine.streaming.streaming import MOST_WAITING, Streaming
from vla_accel_ros.types import Chunk, Torn


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
    prefill: Any = stream._engine.runner.prefill
    observe = prefill.observe

    def slow(*given: Any):
        computing.set()
        assert goes_on.wait(20.0)
        return observe(*given)

    prefill.observe = slow
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
    assert stopped.wait(20.0) and not stream._scheduler.running


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
    actor: Any = stepped.stream._engine.runner.actor
    run = actor.run

    def fails(batch: MicroBatch) -> None:
        actor.run = run
        raise RuntimeError("out of memory")

    actor.run = fails
    stepped.act_on(100, 200)
    ((name, error),) = world.errors
    assert name == "action" and str(error) == "out of memory"
    assert [chunk.stamp_ns for chunk in world.chunks] == [200]


def test_what_cannot_be_delivered_is_reported_and_what_cannot_be_reported_ends_nothing(caplog):
    world = World()
    delivered: list[int] = []

    def deliver(chunk: Chunk, took_s: float) -> None:
        delivered.append(chunk.stamp_ns)
        if len(delivered) < 3:
            raise RuntimeError("nobody there")
        world.ports().on_chunk(chunk, took_s)

    def report(name: str, error: Exception) -> None:
        world.ports().on_error(name, error)
        raise RuntimeError("nobody listens")

    ports = replace(world.ports(), on_chunk=deliver, on_error=report)
    stream = make_stream(world, answers=False, ports=ports)
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
    actor: Any = stepped.stream._engine.runner.actor
    run = actor.run

    def moved_meanwhile(batch: MicroBatch) -> None:
        actor.run = run
        stepped.stream.forget()
        run(batch)

    actor.run = moved_meanwhile
    stepped.act_on(100, 200)
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
    with pytest.raises(ValueError, match="16 questions wait already"):
        stream.ask("blue")
    assert not stream._scheduler.step()  # nothing was seen that they could be about
    assert stream.cancel() == MOST_WAITING and not stream._scheduler.requests


def test_a_question_of_another_robot_is_not_this_streams():
    stream = make_stream(World(), answers=False)
    other = stream._scheduler.submit(Request(Ask(), "other", waits=Waits.NEWS))
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
    stepped.act_on(100, 200)
    assert [(loop, str(error)) for loop, error in world.errors] == [("action", "no horizon")]
    assert [chunk.stamp_ns for chunk in world.chunks] == [200]


def test_a_receiver_that_stops_and_starts_delivery_leaves_one_thread_to_deliver() -> None:
    """Two would deliver chunks at once, and in any order."""
    results = Results(lambda name: None, lambda name, error: None)
    threads, again, over = set[threading.Thread](), threading.Event(), threading.Event()

    def receive(number: int) -> None:
        if not number:
            results.stop()
            results.start()
            again.set()
            return
        threads.add(threading.current_thread())
        if number == 8:
            over.set()

    results.start()
    first = results._thread
    results.give(receive, 0)
    assert again.wait(20.0) and first is not None
    first.join(20.0)
    assert not first.is_alive()
    for number in range(1, 9):
        results.give(receive, number)
    assert over.wait(20.0) and threads == {results._thread}
    results.stop()
