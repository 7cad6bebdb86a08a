"""Episodes in simulation time: the modes of the trajectory path, and what happens in the middle of one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from builders import make_policy

from shared.events import MovedTarget, SwitchedTarget
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.buffer import MODES
from vla_accel_ros.control.chunking.rtc import RealTimeChunking
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import ACT, Request
from vla_accel_ros.engine.scheduler import Scheduler
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.sim import layout
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import Task, tasks
from vla_accel_ros.tools.demo_policy.rollout import FRAME_S, Episode, Handover, Session, Timing
from vla_accel_ros.types import Observation

REACH = tasks("reach")
CONTRACT = Contract.load(demo_contract())


@pytest.fixture(scope="module")
def robot() -> Iterator[SimRobot]:
    robot = SimRobot(image_size=(28, 28))
    yield robot
    robot.close()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(make_policy(delta_mask=CONTRACT.delta_mask, horizon=32), steps=2)


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_is_a_function_of_its_seed_in_every_mode(
    engine: Engine, robot: SimRobot, mode: str
) -> None:
    """Whatever the engine was asked before. A random policy: it moves, and misses."""
    session = Session(engine, robot, CONTRACT, Timing(4, 4), Handover(mode, execution_horizon=8))
    first = session.play(REACH[0], 3, ask_every=None)
    assert session.play(REACH[0], 3, ask_every=None) == first
    assert session.play(REACH[0], 4, ask_every=None) != first
    assert first.jerk > 0 and first.tracking > 0
    assert (first.seam == 0) == (mode == "block"), "block starts every chunk at rest"
    assert first.answers_asked == 0


def test_questions_are_asked_at_their_own_pace(engine: Engine, robot: SimRobot) -> None:
    session = Session(engine, robot, CONTRACT, Timing(6, 6))
    episode = session.play(REACH[0], 0, ask_every=30)
    assert episode.answers_asked == math.ceil(episode.time_s / (30 * FRAME_S) - 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_moved_target_jumps_6_to_14_cm_to_a_free_place(robot: SimRobot, seed: int) -> None:
    task, event = REACH[seed % 3], MovedTarget()
    robot.reset(task, seed)
    before = robot.view().blocks
    assert 9 <= event.frame(seed) <= 21
    assert event.happen(robot, seed) == task
    after = robot.view().blocks
    jump = math.dist(before[task.block][:2], after[task.block][:2])
    assert 0.06 <= jump <= 0.14
    assert layout.inside(*after[task.block][:2])
    others = [name for name in after if name != task.block]
    assert all(after[name] == before[name] for name in others)
    assert all(math.dist(after[name][:2], after[task.block][:2]) >= 0.06 for name in others)
    robot.reset(task, seed)
    event.happen(robot, seed)
    assert robot.view().blocks == after


def test_a_switched_target_is_another_block_in_the_same_scene(robot: SimRobot) -> None:
    event = SwitchedTarget()
    assert event.frame(0) == 30
    for seed, task in enumerate(tasks()):
        robot.reset(task, seed)
        before = robot.view().blocks
        asked = event.happen(robot, seed)
        assert asked.block != task.block and replace(asked, block=task.block) == task
        assert robot.task == asked and not robot.truth().success
        assert robot.view().blocks == before


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Engine, SimRobot]]:
    policy = load_policy(demo_model(), delta_mask=CONTRACT.delta_mask)
    robot = SimRobot()
    yield Engine(policy, steps=5), robot
    robot.close()


def test_success_and_time_count_from_the_event(demo: tuple[Engine, SimRobot]) -> None:
    """The first target is reached before the switch, which must not end the episode."""
    session = Session(*demo, CONTRACT, Timing(4, 4))
    plain = session.play(REACH[0], 0, ask_every=None)
    assert plain.success and plain.time_s < 2.0
    switched = session.play(REACH[0], 0, ask_every=None, event=SwitchedTarget(at_s=2.5))
    assert switched.success and switched.task in {t.instruction for t in REACH[1:]}
    assert switched.time_s < 2.5


def test_guided_chunks_of_the_demo_policy_continue_what_is_commanded(demo: tuple[Engine, SimRobot]) -> None:
    """With an inference of 8 steps; and they arrive where the others do."""

    def episodes(mode: str) -> list[Episode]:
        session = Session(*demo, CONTRACT, Timing(8, 8), Handover(mode))
        return [session.play(task, seed, ask_every=None) for seed, task in enumerate(REACH)]

    guided, free = episodes("rtc"), episodes("async")
    assert all(episode.success for episode in guided + free)
    assert np.mean([e.seam for e in guided]) < 0.6 * np.mean([e.seam for e in free])


def test_chunks_begin_with_noise_of_the_seed_and_their_number(
    engine: Engine, robot: SimRobot, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[np.ndarray] = []
    submit = Scheduler.submit

    def noting(self: Scheduler, request: Request) -> Request:
        begun.extend([request.act.noise] if request.want == ACT and request.act.noise is not None else [])
        return submit(self, request)

    monkeypatch.setattr(Scheduler, "submit", noting)
    Session(engine, robot, CONTRACT, Timing(4, 4)).play(REACH[0], 3, ask_every=None)
    assert len(begun) > 10
    for number, noise in enumerate(begun):
        np.testing.assert_array_equal(noise, fresh(3, number, begun[0].shape))


def test_a_staggered_chunk_continues_the_last_that_was_finished_when_it_began(
    demo: tuple[Engine, SimRobot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One begun in every frame, each done four frames later."""
    told: list[tuple[int, int | None]] = []
    made = RealTimeChunking.made

    def noting(self: RealTimeChunking, request: Request) -> None:
        previous = None if request.act.agreement is None else request.act.agreement.previous
        told.append((request.number, previous))
        made(self, request)

    monkeypatch.setattr(RealTimeChunking, "made", noting)
    session = Session(*demo, CONTRACT, Timing(period=1, latency=4), Handover("rtc"))
    assert session.play(REACH[0], 0, ask_every=None).success
    first = told[0][0]
    assert [(number - first, previous) for number, previous in told[:4]] == [(n, None) for n in range(4)]
    assert all(previous == number - 4 for number, previous in told[4:]) and len(told) > 8


def test_tasks_of_other_families_have_their_events_too(robot: SimRobot) -> None:
    task = Task.parse("put the red block on the white pad")
    robot.reset(task, 5)
    assert MovedTarget().happen(robot, 5) == task
    assert not robot.truth().success


def test_a_chunk_is_wanted_when_the_horizon_of_the_last_one_ends(engine: Engine, robot: SimRobot) -> None:
    """In force 4 frames after its image, and 3 frames before the last action: every 20 - 7 frames."""
    stamps: list[int] = []

    class Noting(Session):
        def observe(self, instruction: str, now_ns: int, blank: bool = False) -> Observation:
            stamps.append(now_ns)
            return super().observe(instruction, now_ns, blank)

    timing, handover = Timing(4, 4, on_demand=True), Handover(horizon="static:20+elastic:4")
    episode = Noting(engine, robot, CONTRACT, timing, handover).play(REACH[0], 3, ask_every=None)
    assert {round((b - a) / (FRAME_S * 1e9)) for a, b in pairwise(stamps)} == {13} and len(stamps) > 5
    assert episode.horizon == 20 and episode.chunks_per_s == pytest.approx(30 / 13, rel=0.1)


def test_what_is_no_horizon_is_refused_before_an_episode() -> None:
    with pytest.raises(ValueError, match=r"'often'.* static"):
        Handover(horizon="often")
