"""Frames of several robots in one forward: each is the frame that it would be alone, but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from builders import make_embodiment, make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import Act, Observe, Request, Waits
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation

STEPS = 2
WORDS = ("reach", "reach the red block", "put the red block on the green one")


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param)


def make_engine(policy: Policy, **options: Any) -> Engine:
    engine = Engine(policy, **{"steps": STEPS, "fast": True, "slots": 20, **options})
    for robot in range(len(WORDS)):
        joints = 4 + robot
        engine.runner.robots.add(str(robot), make_embodiment(policy, joints))
    return engine


def seen(number: int) -> Observation:
    robot = number % len(WORDS)
    state = np.random.default_rng(number).uniform(-0.5, 0.5, 4 + robot).astype(np.float32)
    made = make_observation(number, instruction=WORDS[robot], stamp_ns=1000 + number)
    return replace(made, state=state, robot=str(robot))


def observe(observation: Observation) -> Request:
    return Request(Observe(observation), observation.robot, waits=Waits.ROOM)


def served(engine: Engine, observations: Sequence[Observation]) -> list[Chunk]:
    """Of each observation by the engine's own queue, in order."""
    scheduler = engine.scheduler
    frames = [scheduler.submit(observe(one)) for one in observations]
    chunks = []
    for frame in frames:
        prefix = cast(Prefix, scheduler.wait(frame).result)
        request = Request(Act(noise=int(prefix.stamp_ns)), frame.robot, prefix=prefix, waits=Waits.ROOM)
        chunks.append(scheduler.submit(request))
    made = [cast(Chunk, scheduler.wait(chunk).result) for chunk in chunks]
    for frame in frames:
        cast(Prefix, frame.result).release()
        engine.runner.prefixes.remove(frame.robot)
    assert engine.runner.pool.free == engine.runner.pool.slots
    return made


def test_chunks_are_those_of_frames_computed_alone(policy: Policy) -> None:
    together = make_engine(policy, staggered=6, frames_together=4, scheduling="throughput")
    numbers: list[int] = []
    run = together.runner.frames.run_together

    def counted(requests: Sequence[Request]) -> None:
        numbers.append(len(requests))
        run(requests)

    together.runner.frames.run_together = counted  # type: ignore[method-assign]
    observations = [seen(number) for number in range(7)]
    chunks = served(together, observations)
    assert numbers == [4, 2], "and the last alone"
    alone = make_engine(policy)
    for observation, chunk in zip(observations, chunks, strict=True):
        with alone.observe(observation) as prefix:
            theirs = alone.act(prefix, noise=observation.stamp_ns)
        assert chunk.stamp_ns == observation.stamp_ns
        assert chunk.actions.shape == (policy.config.horizon, len(observation.state))
        np.testing.assert_allclose(chunk.actions, theirs.actions, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("seats", "by_load"), [(16, False), (16, True), (20, False), (24, False), (32, False), (32, True)]
)
def test_chunks_in_many_seats_are_those_of_one_at_a_time(policy: Policy, seats: int, by_load: bool) -> None:
    """Several at the same step, on prefixes of different lengths; to the bit, if all seats are computed."""
    options = {"scheduling": "throughput", "slots": seats + 8, "staggered": seats, "seats_by_load": by_load}
    engine, observations = make_engine(policy, **options), [seen(number) for number in range(seats + 1)]
    chunks = served(engine, observations)
    for observation, chunk in zip(observations[:5], chunks[:5], strict=True):
        with engine.observe(observation) as prefix:
            again = engine.act(prefix, noise=observation.stamp_ns)
        if by_load:
            np.testing.assert_allclose(chunk.actions, again.actions, atol=1e-4, rtol=1e-4)
        else:
            np.testing.assert_array_equal(chunk.actions, again.actions)


def test_a_frame_that_cannot_be_computed_fails_alone(policy: Policy) -> None:
    engine = make_engine(policy, staggered=4, frames_together=4, scheduling="throughput")
    good, wrong = seen(0), replace(seen(1), state=np.zeros(9, np.float32))
    frames = [engine.scheduler.submit(observe(one)) for one in (good, wrong, seen(2), seen(3))]
    with pytest.raises(ValueError, match="state"):
        engine.scheduler.wait(frames[1])
    for frame in (frames[0], frames[2], frames[3]):
        cast(Prefix, engine.scheduler.wait(frame).result).release()


def test_frames_wait_until_there_are_slots(policy: Policy) -> None:
    """More frames than slots: those that found none wait, and are computed when one is given back."""
    engine = make_engine(policy, staggered=2, frames_together=4, scheduling="throughput", slots=8)
    with engine.runner.pool.holding(5):
        frames = [engine.scheduler.submit(observe(seen(number))) for number in range(4)]
        first = [engine.scheduler.wait(frame) for frame in frames[:3]]
        assert not frames[3].finished and not frames[3].begun
        for frame in first:
            cast(Prefix, frame.result).release()
            engine.runner.prefixes.remove(frame.robot)
        cast(Prefix, engine.scheduler.wait(frames[3]).result).release()


def test_what_cannot_be_together_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="several frames"):
        Engine(policy, frames_together=2)
    with pytest.raises(ValueError, match="slots is 10"):
        Engine(policy, fast=True, staggered=6, frames_together=4, slots=10)
