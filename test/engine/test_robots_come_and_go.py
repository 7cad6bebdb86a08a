"""Robots that are added, described anew, refused and removed while others act."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_embodiment, make_observation, make_policy
from embodiments import COUNT, JOINTS, STEP_S, STEPS, TRAINED, alone, assert_equal, make_robots, observation
from frame_stream import FrameStream, held_slots

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.robots import Embodiment, Robots
from vla_accel_ros.models.policy import Policy


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return replace(make_policy(request.param), trained_delay=TRAINED)


def make_third(policy: Policy) -> Embodiment:
    return make_embodiment(policy, JOINTS["third"], STEP_S["third"], seed=21)


REFUSED: Mapping[str, tuple[str, Callable[[Policy], Embodiment], str]] = {
    "no name": ("", lambda policy: Embodiment(policy, 0.1), "a robot without a name"),
    "network": ("b", lambda policy: Embodiment(make_policy(), 0.1), "a network of its own; make it of the"),
    "delay": (
        "b",
        lambda policy: Embodiment(replace(policy, trained_delay=2), 0.1),
        "delay .*'b' is 2, .* 0",
    ),
    "time": ("b", lambda policy: Embodiment(policy, 0.0), r"step_dt_s is 0\.0; give the time"),
    "infinite": ("b", lambda policy: Embodiment(policy, float("inf")), "step_dt_s is inf"),
}


def test_a_robot_is_added_while_another_acts(policy: Policy) -> None:
    """Its chunks take seats beside those that have begun, which notice nothing of it."""
    robots = make_robots(policy)
    engine = Engine(policy, steps=STEPS, staggered=COUNT, slots=COUNT + 5, robots=robots)
    left, third = FrameStream(engine, "left"), FrameStream(engine, "third")
    left.frame(observation("left", 0))
    engine.runner.robots.add("third", make_third(policy))
    third.frame(observation("third", 1))
    assert {one.robot for one in engine.scheduler.requests} == {"left", "third"}
    left.run()
    for stream, robot in ((left, robots["left"]), (third, make_third(policy))):
        (chunk,) = stream.chunks
        own = alone(robot)
        with own.observe(observation(stream.robot, chunk.stamp_ns - 10**9)) as prefix:
            assert_equal(chunk, own.act(prefix, noise=chunk.request_id))


def test_robots_come_and_go_while_a_lane_runs() -> None:
    """Every chunk of the one that stays is what it is without the others."""
    policy = make_policy("pi05")
    robots = make_robots(policy)
    engine, own = Engine(policy, steps=STEPS, robots=robots, slots=8), alone(robots["left"])
    come_and_gone = threading.Event()

    def others() -> None:
        for number in range(3):
            engine.runner.robots.add("third", make_third(policy))
            with engine.observe(observation("third", number)) as prefix:
                assert engine.act(prefix).actions.shape == (8, JOINTS["third"])
            engine.runner.remove("third")
        come_and_gone.set()

    thread = threading.Thread(target=others)
    engine.scheduler.start()
    thread.start()
    number = 0
    while number < 3 or (not come_and_gone.is_set() and thread.is_alive()):
        with engine.observe(observation("left", number)) as prefix:
            chunk = engine.act(prefix, noise=number)
        with own.observe(observation("left", number)) as prefix:
            assert_equal(chunk, own.act(prefix, noise=number))
        number += 1
    thread.join()
    engine.scheduler.stop()
    assert come_and_gone.is_set() and held_slots(engine) == 0


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_a_bad_observation_ends_its_own_requests_alone(policy: Policy, fast: bool) -> None:
    """One that is refused when it is seen, and one that fails when the seats' last step is taken."""
    robots = make_robots(policy)
    engine = Engine(policy, steps=STEPS, staggered=COUNT, slots=COUNT + 5, robots=robots, fast=fast)
    left, right = FrameStream(engine, "left"), FrameStream(engine, "right")
    engine.observe(observation("left", 0)).release()
    engine.observe(replace(observation("right", 1), state=np.zeros(2, np.float32))).release()
    for stream in (right, left):
        with engine.runner.prefixes.newest(stream.robot) as prefix:
            stream.want(prefix=engine.runner.prefixes.hold(prefix))
    for broken in (np.full(4, np.nan, np.float32), np.zeros(9, np.float32)):
        with pytest.raises(ValueError, match=r"observation\.state"):
            engine.observe(replace(observation("right", 2), state=broken))
    left.run()
    (chunk,) = left.chunks
    own = alone(robots["left"], fast=fast, staggered=COUNT, slots=COUNT + 5)
    with own.observe(observation("left", 0)) as prefix:
        assert_equal(chunk, own.act(prefix, noise=chunk.request_id))
    assert not right.chunks and "the state has 2 values" in str(right.errors[0])
    assert not engine.scheduler.requests


def test_names_are_free_until_a_robot_is_described() -> None:
    policy = make_policy()
    engine = Engine(policy, step_dt_s=0.2)
    seen = replace(make_observation(), robot="anybody")
    with engine.observe(seen) as prefix:
        assert engine.act(prefix).step_dt_s == 0.2
    engine.runner.robots.add("right", make_robots(policy)["right"])
    with pytest.raises(ValueError, match="'anybody'"):
        engine.observe(seen)
    with engine.observe(make_observation()) as prefix:
        assert engine.act(prefix).step_dt_s == 0.2
    with engine.observe(observation("right")) as prefix:
        assert engine.act(prefix).step_dt_s == STEP_S["right"]
    engine.runner.remove("right")
    for name in ("right", "anybody"):
        with pytest.raises(ValueError, match=f"'{name}' is not known here"):
            engine.observe(replace(seen, robot=name))


def test_a_frame_keeps_the_statistics_that_it_was_computed_with(policy: Policy) -> None:
    robots = make_robots(policy)
    engine = Engine(policy, steps=STEPS, robots=robots)
    other = Embodiment(make_embodiment(policy, seed=31).policy, 0.2)
    with engine.observe(observation("right")) as old:
        engine.runner.robots.add("right", other)
        with engine.observe(observation("right")) as new:
            chunks = [engine.act(prefix, noise=3) for prefix in (old, new)]
    for chunk, robot in zip(chunks, (robots["right"], other), strict=True):
        own = alone(robot)
        with own.observe(observation("right")) as prefix:
            assert_equal(chunk, own.act(prefix, noise=3))


def test_a_robot_that_goes_gives_its_frame_back() -> None:
    policy = make_policy()
    engine = Engine(policy, robots=make_robots(policy), slots=4)
    assert engine.runner.pool.slots == 6, "one for each robot that it is made with"
    engine.observe(observation("left")).release()
    held = engine.observe(observation("right"))
    engine.runner.remove("right")
    assert engine.runner.pool.free == 4 and engine.runner.prefixes.newest("right") is None
    engine.act(held)
    held.release()
    assert engine.runner.pool.free == 5
    engine.runner.remove("right")


def test_too_many_robots_for_the_slots_are_told_so() -> None:
    policy = make_policy()
    engine, robots = Engine(policy, slots=2), make_robots(policy)
    for name, robot in robots.items():
        engine.runner.robots.add(name, robot)
        engine.observe(observation(name)).release()
    with pytest.raises(PoolExhausted, match="all 2 KV slots"):
        engine.observe(observation("left"))


@pytest.mark.parametrize("case", REFUSED)
def test_who_cannot_be_served_is_refused(case: str) -> None:
    name, make, sentence = REFUSED[case]
    policy = make_policy()
    robots = Robots(Embodiment(policy, 0.1))
    with pytest.raises(ValueError, match=sentence):
        robots.add(name, make(policy))
    assert robots.names == () and robots.of("anybody") is robots.own
    with pytest.raises(ValueError, match=sentence):
        Engine(policy, robots={name: make(policy)})


@pytest.mark.gpu
@pytest.mark.parametrize("staggered", [0, COUNT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_chunk_is_that_of_an_engine_of_the_robots_own_on_a_gpu(
    kind: str, dtype: torch.dtype, staggered: int
) -> None:
    """From graphs that serve both robots, in batches of both."""
    policy = make_policy(kind, device="cuda", dtype=dtype)
    robots = make_robots(policy)
    options: dict[str, Any] = {"fast": True, "staggered": staggered, "slots": COUNT + 5}
    engine = Engine(policy, steps=STEPS, robots=robots, **options)
    streams = {name: FrameStream(engine, name) for name in robots}
    for number in range(8):
        name = ("left", "right")[number % 2]
        streams[name].frame(observation(name, number), observation(name, 9 + number).state)
    streams["left"].run()
    for name, robot in robots.items():
        assert len(streams[name].chunks) == 4 and not streams[name].errors
        own = alone(robot, **options)
        for chunk in streams[name].chunks:
            with own.observe(observation(name, chunk.stamp_ns - 10**9)) as prefix:
                assert_equal(chunk, own.act(prefix, chunk.state, chunk.request_id))
