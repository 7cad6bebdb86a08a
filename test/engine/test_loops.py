"""See, act, speak over one engine: the newest prefix wins, and nobody waits for language."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from builders import make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.loops import InferenceLoops, Pace, Ports
from vla_accel_ros.engine.speaking import Text
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.engine.way import RightOfWay


class World:
    """What the loops see and what they gave: a queue of observations, a joint state, and records."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.felt: tuple[np.ndarray, int] | None = None
        self.chunks: list[Chunk] = []
        self.texts: list[Text] = []
        self.errors: list[tuple[str, Exception]] = []
        self.changed = threading.Condition()

    def ports(self) -> Ports:
        return Ports(
            observe=lambda: self.observations.pop(0) if self.observations else None,
            observed=lambda: None,
            feel=lambda: self.felt,
            on_chunk=lambda chunk, _: self._note(self.chunks, chunk),
            on_text=lambda text: self._note(self.texts, text),
            on_error=lambda name, error: self._note(self.errors, (name, error)),
        )

    def wait(self, condition, what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=20.0), f"no {what} within 20 s"

    def _note(self, record: list, entry) -> None:
        with self.changed:
            record.append(entry)
            self.changed.notify_all()


def make_loops(world: World, kind: str = "pi05", speaks: bool = True) -> InferenceLoops:
    engine = Engine(make_policy(kind), slots=4, steps=2)
    language = Pace(50.0) if speaks else None
    return InferenceLoops(engine, world.ports(), Pace(100.0), Pace(200.0), language, max_tokens=4)


def test_a_chunk_is_made_once_of_each_new_prefix_and_of_the_newest():
    world = World()
    loops = make_loops(world)
    assert not loops.see() and not loops.act() and not loops.speaking.turn()
    world.observations += [make_observation(0, stamp_ns=100), make_observation(1, stamp_ns=200)]
    assert loops.see() and loops.see()
    assert loops.act() and not loops.act()
    assert [chunk.stamp_ns for chunk in world.chunks] == [200]


def test_on_a_cpu_a_frame_is_seen_when_the_one_before_it_was_acted_on(monkeypatch):
    world, seen, overlapped = World(), threading.Semaphore(0), []
    loops = make_loops(world, speaks=False)
    engine = loops._engine
    observe, act = engine.observe, engine.act

    def observed(observation):
        seen.release()
        return observe(observation)

    def slow(prefix, state=None):
        seen.acquire()  # its own frame's
        overlapped.append(seen.acquire(timeout=0.2))  # twenty periods of vision
        return act(prefix, state)

    monkeypatch.setattr(engine, "observe", observed)
    loops._make_chunk = slow
    world.observations += [make_observation(i, stamp_ns=100 + i) for i in range(3)]
    loops.start()
    world.wait(lambda: len(world.chunks) == 3, "three chunks")
    loops.stop()
    assert overlapped == [False] * 3 and not world.errors


def test_a_model_with_a_state_token_acts_again_on_a_new_joint_state():
    world = World()
    loops = make_loops(world, "pi0")
    world.observations.append(make_observation())
    world.felt = (np.zeros(6), 1)
    assert loops.see() and loops.act() and not loops.act()
    world.felt = (np.full(6, 0.2), 2)
    assert loops.act()
    first, second = world.chunks
    assert first.kv_version == second.kv_version and first.request_id < second.request_id


def test_a_frame_from_before_the_start_is_not_acted_on():
    world = World()
    loops = make_loops(world)
    world.observations.append(make_observation(stamp_ns=100))
    loops.see()
    loops.start()
    world.observations.append(make_observation(stamp_ns=200))
    world.wait(lambda: world.chunks, "chunk")
    loops.stop()
    assert {chunk.stamp_ns for chunk in world.chunks} == {200}


def test_an_answer_grows_is_finished_once_and_is_about_one_frame():
    world = World()
    loops = make_loops(world)
    world.observations.append(make_observation(instruction="reach the green block"))
    assert loops.see() and loops.act() and loops.speaking.turn() and not loops.speaking.turn()
    *growing, last = world.texts
    assert last.finished and not any(text.finished for text in growing)
    assert all(later.text.startswith(text.text) for text, later in zip(world.texts, world.texts[1:]))
    assert {text.request_id for text in world.texts} == {last.request_id}
    assert last.prefix.instruction == "reach the green block"


def test_the_loops_stop_in_the_middle_of_everything_and_start_again():
    world = World()
    loops = make_loops(world)
    for _ in range(2):
        world.chunks.clear()
        world.texts.clear()
        loops.start()
        world.observations += [make_observation(i) for i in range(3)]
        world.wait(lambda: world.chunks and world.texts, "chunk and text")
        loops.stop()
    assert not world.errors
    names = [stats.name for stats in loops.stats()]
    assert names == ["vision", "action", "language"]


def test_an_observation_the_model_refuses_is_reported_and_the_loops_go_on():
    world = World()
    loops = make_loops(world, speaks=False)
    world.observations.append(make_observation(cameras=("no_such_camera",)))
    loops.start()
    world.wait(lambda: world.errors, "error")
    world.observations.append(make_observation())
    world.wait(lambda: world.chunks, "chunk after the error")
    loops.stop()
    name, error = world.errors[0]
    assert name == "vision" and "no_such_camera" in str(error)


def test_the_right_of_way_is_given_only_while_somebody_has_it_and_with_bounded_patience():
    way = RightOfWay(patience_s=0.0)
    assert way.give()
    with way.taken():
        with way.taken():
            assert not way.give()
        assert not way.give()
    assert way.give()


@pytest.mark.parametrize("deadline_s", [0.0, 0.03])
def test_a_pace_without_a_deadline_has_its_period(deadline_s):
    loop = Pace(50.0, deadline_s).loop("any", lambda: False, lambda _: True)
    assert loop.deadline_s == (deadline_s or 0.02)


def test_a_new_prefix_is_acted_on_at_once_however_seldom_the_action_loop_looks():
    world = World()
    loops = InferenceLoops(
        Engine(make_policy(), slots=4, steps=2), world.ports(), Pace(100.0), Pace(0.001), None
    )
    loops.start()
    for stamp_ns in (100, 200):
        world.observations.append(make_observation(stamp_ns=stamp_ns))
        world.wait(lambda: world.chunks and world.chunks[-1].stamp_ns == stamp_ns, "chunk")  # noqa: B023
    loops.stop()


def test_the_vision_loop_awaits_frames_and_stops_while_it_does():
    class Frames:
        """Frames that come when `give` says so."""

        def __init__(self) -> None:
            self.changed, self.given, self.waits = threading.Condition(), False, 0
            self.lead_s = 0.0

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
    engine = Engine(make_policy(), slots=4, steps=2)
    ports = replace(world.ports(), frames=frames)
    loops = InferenceLoops(engine, ports, Pace(100.0), Pace(200.0), None)
    loops.start()
    frames.awaited()
    loops.stop()
    assert not world.chunks and world.observations
    frames.give()
    loops.start()
    world.wait(lambda: world.chunks, "chunk")
    loops.stop()
