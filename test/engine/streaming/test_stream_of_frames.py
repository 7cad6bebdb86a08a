"""Frames in, chunks and texts out: the newest prefix wins, and nobody waits for text."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from builders import make_observation
from stepped_streams import Stepped, World, make_stream

from vla_accel_ros.engine.readiness import MOST_AGAIN
from vla_accel_ros.engine.request import ACT, OBSERVE, MicroBatch, Request
from vla_accel_ros.engine.rules.overload import Degradation
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.engine.streaming.ports import MOST_UNDELIVERED, Text
from vla_accel_ros.types import Chunk


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
    scheduler: Any = stepped.scheduler
    actor: Any = stepped.stream._engine.runner.actor
    submit, run = scheduler.submit, actor.run
    late: list[threading.Thread] = []

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

    scheduler.submit, actor.run = submitting, slow
    assert stepped.scheduler.step()
    late[0].join(20.0)
    actor.run = run
    stepped.step()
    assert [chunk.stamp_ns for chunk in world.chunks] == [100, 300] and world.returned == 1


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
    scheduler.streams[""] = Stream(on_ran=noted)
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


def test_chunks_keep_their_time_though_joints_are_late_and_are_made_again_to_the_bit():
    """Joints come every 4 ms, stop, and come again. At most so many chunks have those of the one before."""
    world = World()
    stepped = Stepped(world, "pi0", answers=False, action_hz=250.0)
    world.observations.append(observation := make_observation())
    world.felt = (np.zeros(6), 0)
    assert stepped.see() and ACT in stepped.step()
    begun_s = list[float]()
    for tick in range(1, 4000):
        stepped.now_s = tick / 10_000
        if tick % 40 == 0 and not 2000 <= tick < 3000:
            world.felt = (np.full(6, 0.0001 * tick), tick)
            stepped.stream.joints_came()
        begun_s += [stepped.now_s] * stepped.step().count(ACT)
    intervals_s = np.diff([time_s for time_s in begun_s if time_s > 0.1])
    np.testing.assert_allclose(np.sort(intervals_s)[:-1], 0.004, atol=2e-4)
    used = Counter(tuple(chunk.state) for chunk in world.chunks if chunk.state is not None)
    assert sorted(used.values())[-2:] == [1, 1 + MOST_AGAIN]
    with stepped.stream._engine.observe(observation) as prefix:
        for chunk in world.chunks[-60::5]:
            again = stepped.stream._engine.act(prefix, chunk.state, chunk.request_id)
            np.testing.assert_array_equal(again.actions, chunk.actions)


def test_joints_wake_the_loop_only_where_a_chunk_waits_for_them():
    stepped = Stepped(World(), "pi0", action_hz=10.0)
    inbox = stepped.scheduler._inbox
    stepped.step()
    stepped.stream.joints_came()
    assert not inbox.empty(), "none was made yet"
    stepped.step()
    stepped.stream._grid.began(0.0)
    stepped.stream.joints_came()
    assert inbox.empty()
    stepped.now_s = 0.1
    stepped.stream.joints_came()
    assert not inbox.empty()


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
    prefix = stream._engine.runner.prefixes.newest()
    assert prefix is not None
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
    results: Any = stream._results.waiting
    waiting = [what[0].text for _, what in results]
    assert waiting == [f"{number}" for number in range(2 * MOST_UNDELIVERED, 3 * MOST_UNDELIVERED)]
    (language,) = (stats for stats in stream.stats() if stats.name == "language")
    assert language.misses == 2 * MOST_UNDELIVERED


def test_what_was_given_up_for_overload_is_told_beside_the_misses():
    stream = make_stream(World())
    overload = stream._scheduler.rules.overload
    overload.degradation = Degradation("vision", 5, 1.0, {"": 7, "other": 1}, {"": 3})
    told = {stats.name: (stats.given_up, stats.misses) for stats in stream.stats()}
    assert told == {"vision": (3, 0), "action": (7, 0), "language": (0, 0)}
    assert stream.degradation is overload.degradation
