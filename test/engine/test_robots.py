"""Robots that share an engine: each is served to the bit as by an engine of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_policy
from embodiments import (
    COUNT,
    JOINTS,
    STEP_S,
    STEPS,
    TRAINED,
    WORDS,
    alone,
    assert_equal,
    make_robots,
    observation,
)
from frame_stream import FrameStream, held_slots
from guiding import guidance_to
from openvla_builders import ACTIONS, make_openvla_folder, make_openvla_observation

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.scheduler import Stream
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import ActionStats, OpenVLAPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Agreement, Chunk, Observation


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return replace(make_policy(request.param), trained_delay=TRAINED)


@pytest.fixture(scope="module")
def openvla(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    policy = load_policy(make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=4))
    assert isinstance(policy, OpenVLAPolicy)
    return policy


def make_token_robots(policy: OpenVLAPolicy, tokens: int) -> dict[str, Embodiment]:
    low = np.random.default_rng(2).uniform(-1.5, -0.2, tokens)
    stats = ActionStats(low, low + 1.0, np.ones(tokens, bool))
    right = replace(policy, stats=stats, delta_mask=np.zeros(tokens, bool))
    return {"left": Embodiment(policy, STEP_S["left"]), "right": Embodiment(right, STEP_S["right"])}


def token_frame(robot: str, number: int) -> Observation:
    words = {"left": "lift the red cup", "right": "take the cup"}[robot]
    return replace(make_openvla_observation(number // 3, words), stamp_ns=1000 + number, robot=robot)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_every_chunk_is_that_of_an_engine_of_the_robots_own(policy: Policy, fast: bool) -> None:
    robots = make_robots(policy)
    options: dict[str, Any] = {"fast": fast, "seed": 5}
    engine = Engine(policy, steps=STEPS, robots=robots, **options)
    prefixes = {name: engine.observe(observation(name)) for name in robots}
    state = {name: observation(name, 9).state for name in robots}
    made = {name: engine.act(prefixes[name], state[name], 3) for name in ("right", "left")}
    for name, robot in robots.items():
        own = alone(robot, **options)
        with own.observe(observation(name)) as prefix:
            assert_equal(made[name], own.act(prefix, state[name], 3))
        assert made[name].actions.shape == (8, JOINTS[name]) and made[name].step_dt_s == STEP_S[name]
    assert not np.allclose(made["left"].actions[:, :4], made["right"].actions)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
def test_robots_share_the_seats_of_every_step(policy: Policy, fast: bool) -> None:
    robots = make_robots(policy)
    options: dict[str, Any] = {"fast": fast, "staggered": COUNT, "slots": COUNT + 5}
    engine = Engine(policy, steps=STEPS, robots=robots, **options)
    streams = {name: FrameStream(engine, name) for name in robots}
    batches = []
    for number in range(6):
        name = ("left", "right")[number % 2]
        streams[name].frame(observation(name, number), observation(name, 9 + number).state)
        batches.append({one.robot for one in engine.scheduler.requests if one.begun})
    assert batches.count({"left", "right"}) >= 4
    streams["left"].run()
    for name, robot in robots.items():
        assert len(streams[name].chunks) == 3 and not streams[name].errors
        own = alone(robot, **options)
        for chunk in streams[name].chunks:
            with own.observe(observation(name, chunk.stamp_ns - 10**9)) as prefix:
                assert_equal(chunk, own.act(prefix, chunk.state, chunk.request_id))


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("method", ["guidance", "trained"])
def test_agreement_is_in_the_robots_own_units_and_steps(policy: Policy, fast: bool, method: str) -> None:
    robots = make_robots(policy)
    engine = Engine(policy, steps=STEPS, robots=robots, fast=fast)
    for name, robot in robots.items():
        rest = np.random.default_rng(1).uniform(-0.4, 0.4, (5, JOINTS[name])).astype(np.float32)
        agreement = Agreement("guidance", rest, 2, 4, "LINEAR", "identity", STEPS, 7)
        if method == "trained":
            agreement = Agreement("trained", rest[:TRAINED], 2, TRAINED, "", "", 0.0, 7)
        own = alone(robot, fast=fast)
        with engine.observe(observation(name)) as ours, own.observe(observation(name)) as theirs:
            made = engine.act(ours, noise=3, agreement=agreement)
            assert_equal(made, own.act(theirs, noise=3, agreement=agreement))
            free = engine.act(ours, noise=3)
            near, far = (np.abs(one.actions[:2] - rest[:2]).mean() for one in (made, free))
            assert near < far


def test_a_chunk_of_another_robot_guides_nothing(policy: Policy) -> None:
    robots = make_robots(policy)
    engine = Engine(policy, steps=STEPS, robots=robots, slots=6)
    with engine.observe(observation("left")) as left, engine.observe(observation("right")) as right:
        chunk = engine.act(left)
        guidance = guidance_to(engine, left, chunk, delay=1)
        restored = policy.actions(guidance.previous, left.state)
        np.testing.assert_allclose(restored, chunk.rest(left.stamp_ns), atol=1e-5)
        with pytest.raises(ValueError, match=r"6 numbers, .* 4"):
            guidance_to(engine, right, chunk, delay=1)


def test_words_of_a_frame_are_read_with_its_robots_statistics() -> None:
    """pi0.5 writes the normalised state into its prompt, also of a question."""
    policy = make_policy("pi05")
    robots = make_robots(policy)
    engine = Engine(policy, robots=robots, slots=6)
    seen = {name: observation(name) for name in robots}
    right = robots["right"].policy.prompt(WORDS["right"], seen["right"].state)
    assert right != policy.prompt(WORDS["right"], seen["right"].state), "else this shows nothing"
    prefixes = {name: engine.observe(seen[name]) for name in robots}
    said = {}
    for name, robot in robots.items():
        for question in (None, WORDS["left"] + " to hold"):
            own = alone(robot)
            with own.observe(seen[name]) as prefix, own.ask(prefix, question, max_tokens=8) as answer:
                theirs = "".join(answer), answer.tokens
            with engine.ask(prefixes[name], question, max_tokens=8) as answer:
                assert ("".join(answer), answer.tokens) == theirs
            said[name, question] = theirs
    assert len({text for text, _ in said.values()}) > 1


@pytest.mark.parametrize("tokens", [ACTIONS - 3, ACTIONS + 2])
@pytest.mark.parametrize(
    ("mode", "fast"),
    [("sequential", False), ("sequential", True), ("pipelined", False), ("speculative", False)],
)
def test_actions_of_tokens_are_those_of_an_engine_of_the_robots_own(
    openvla: OpenVLAPolicy, mode: str, fast: bool, tokens: int
) -> None:
    """Actions of different numbers of tokens share forwards; drafts are a robot's own."""
    robots = make_token_robots(openvla, tokens)
    engine = Engine(openvla, token_mode=mode, token_prefer="rate", fast=fast, robots=robots)
    streams = {name: FrameStream(engine, name) for name in robots}
    drafts: dict[str, set[int]] = {name: set() for name in robots}

    def note(batch: MicroBatch, began_s: float) -> None:
        drafts[batch.requests[-1].robot].add(len(batch.draft))

    engine.scheduler.streams["left"] = Stream(on_ran=note)
    for number in range(20 if mode != "sequential" else 8):
        name = ("left", "right")[number % 2]
        streams[name].frame(token_frame(name, number))
    for stream in streams.values():
        stream.run()
    for name, robot in robots.items():
        own = Engine(robot.policy, step_dt_s=robot.step_dt_s)
        assert len(streams[name].finished) >= 3 and not streams[name].errors
        for request in streams[name].finished:
            chunk = request.result
            assert isinstance(chunk, Chunk) and len(request.tokens) == robot.policy.joints
            with own.observe(token_frame(name, chunk.stamp_ns - 1000)) as prefix:
                want = own.act(prefix)
            np.testing.assert_array_equal(chunk.actions, want.actions)
            assert (chunk.stamp_ns, chunk.step_dt_s) == (want.stamp_ns, want.step_dt_s)
            assert mode != "pipelined" or streams[name].counts[request] == robot.policy.joints, (
                "no forward more than it needs"
            )
        assert drafts[name] == ({0, robot.policy.joints - 1} if mode == "speculative" else {0})
    engine.scheduler.forget()
    assert held_slots(engine, robots=2) == 0


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_a_robot_of_more_tokens_than_there_is_room_for_is_refused(openvla: OpenVLAPolicy, mode: str) -> None:
    engine = Engine(openvla, token_mode=mode)
    longer = make_token_robots(openvla, ACTIONS + 1)["right"]
    with pytest.raises(ValueError, match="'right' has 8 tokens"):
        engine.runner.robots.add("right", longer)
    shorter = make_token_robots(openvla, ACTIONS - 1)["right"]
    engine.runner.robots.add("right", shorter)
    with engine.observe(token_frame("right", 0)) as prefix:
        assert engine.act(prefix).actions.shape == (1, ACTIONS - 1)


def test_a_draft_may_be_longer_than_the_actions_of_a_robot_that_was_described_anew(
    openvla: OpenVLAPolicy,
) -> None:
    robots = make_token_robots(openvla, ACTIONS)
    engine = Engine(openvla, token_mode="speculative", token_prefer="freshness", robots=robots)
    stream, seen = FrameStream(engine, "right"), token_frame("right", 0)
    stream.frame(seen)
    stream.run()
    shorter = make_token_robots(openvla, 3)["right"]
    engine.runner.robots.add("right", shorter)
    stream.frame(seen)
    stream.run()
    first, second = stream.finished
    assert len(first.tokens) == ACTIONS and second.tokens == first.tokens[:3]
    assert stream.counts[second] == 1, "the draft was right"
    assert second.result.actions.shape == (1, 3)


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_a_frame_that_cannot_become_an_action_ends_alone(openvla: OpenVLAPolicy, mode: str) -> None:
    """Its action is relative to a state that it does not have; it rides in the same forwards."""
    robots = make_token_robots(openvla, ACTIONS)
    broken = replace(openvla, delta_mask=np.ones(ACTIONS, bool))
    robots["right"] = replace(robots["right"], policy=broken)
    engine = Engine(openvla, token_mode=mode, robots=robots)
    streams = {name: FrameStream(engine, name) for name in robots}
    for number in range(10 * ACTIONS):
        name = ("left", "right")[number % 2]
        streams[name].frame(token_frame(name, number))
    assert streams["left"].finished and not streams["left"].errors
    assert streams["right"].errors and not streams["right"].finished
    assert "the state has 0 values" in str(streams["right"].errors[0])
