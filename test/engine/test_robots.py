"""Robots that share an engine: each is served to the bit as by an engine of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_embodiment, make_observation, make_policy
from frame_stream import FrameStream, held_slots
from openvla_builders import ACTIONS, make_openvla_folder, make_openvla_observation

from vla_accel_ros.engine.actors.guidance import guidance_to
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import PoolExhausted
from vla_accel_ros.engine.lanes.lane import Stream
from vla_accel_ros.engine.policies.policy import Policy as SchedulingPolicy
from vla_accel_ros.engine.request import ENCODE, OBSERVE, MicroBatch, Request, by_priority
from vla_accel_ros.engine.robots import Embodiment, Robots
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import ActionStats, OpenVLAPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Agreement, Chunk, Observation

STEPS, COUNT, TRAINED = 4, 3, 3
WORDS = {"left": "reach the red block", "right": "put the green block on the pad", "third": "follow the pad"}
JOINTS = {"left": 6, "right": 4, "third": 7}
STEP_S = {"left": 1 / 30, "right": 0.05, "third": 0.02}


@pytest.fixture(scope="module", params=["pi0", "pi05"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return replace(make_policy(request.param), trained_delay=TRAINED)


def make_robots(policy: Policy) -> dict[str, Embodiment]:
    """Two robots: of the policy's own statistics, and of four joints, of which some are relative."""
    relative = np.array([True, False, True, True])
    right = make_embodiment(policy, JOINTS["right"], STEP_S["right"], delta_mask=relative)
    return {"left": Embodiment(policy, STEP_S["left"]), "right": right}


def make_third(policy: Policy) -> Embodiment:
    return make_embodiment(policy, JOINTS["third"], STEP_S["third"], seed=21)


def observation(robot: str, number: int = 0, stamp_ns: int = 0) -> Observation:
    state = np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS[robot]).astype(np.float32)
    seen = make_observation(number, instruction=WORDS[robot], stamp_ns=stamp_ns or 10**9 + number)
    return replace(seen, state=state, robot=robot)


def alone(robot: Embodiment, **options: Any) -> Engine:
    """An engine that serves nobody else."""
    return Engine(robot.policy, step_dt_s=robot.step_dt_s, steps=STEPS, **options)


def assert_equal(ours: object, theirs: object) -> None:
    """All of a chunk but the version of its frame and its number."""
    assert isinstance(ours, Chunk) and isinstance(theirs, Chunk)
    assert (ours.stamp_ns, ours.step_dt_s) == (theirs.stamp_ns, theirs.step_dt_s)
    for name in ("actions", "update_magnitudes", "step_magnitudes", "state"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("noise", ["fresh", "coherent"])
def test_every_chunk_is_that_of_an_engine_of_the_robots_own(policy: Policy, fast: bool, noise: str) -> None:
    robots = make_robots(policy)
    options: dict[str, Any] = {"fast": fast, "noise": noise, "seed": 5}
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
    twin = replace(robots["left"], step_dt_s=0.1)
    engine = Engine(policy, steps=STEPS, robots={**robots, "twin": twin}, slots=6)
    with engine.observe(observation("left")) as left, engine.observe(observation("right")) as right:
        chunk = engine.act(left)
        guidance = guidance_to(engine, left, chunk, delay=1)
        restored = policy.actions(guidance.previous, left.state)
        np.testing.assert_allclose(restored, chunk.rest(left.stamp_ns), atol=1e-5)
        with pytest.raises(ValueError, match=r"actions are 0\.0333333 s apart, the robot's 0\.05 s"):
            guidance_to(engine, right, chunk, delay=1)
        other = replace(chunk, step_dt_s=0.05)
        with pytest.raises(ValueError, match="has actions of 6 numbers, the robot's have 4"):
            guidance_to(engine, right, other, delay=1)
    seen = replace(observation("left"), robot="twin")
    with engine.observe(seen) as prefix, pytest.raises(ValueError, match=r"the robot's 0\.1 s"):
        guidance_to(engine, prefix, chunk, delay=1)


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

    engine.scheduler.streams.running["left"] = Stream(on_ran=note)
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
            assert mode != "pipelined" or request.done == robot.policy.joints, "no forward more than it needs"
        assert drafts[name] == ({0, robot.policy.joints - 1} if mode == "speculative" else {0})
    engine.scheduler.forget()
    assert held_slots(engine, robots=2) == 0


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_a_robot_of_more_tokens_than_there_is_room_for_is_refused(openvla: OpenVLAPolicy, mode: str) -> None:
    engine = Engine(openvla, token_mode=mode)
    longer = make_token_robots(openvla, ACTIONS + 1)["right"]
    with pytest.raises(ValueError, match="'right' has 8 tokens, but there is room for 7; give the engine"):
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
    assert second.done == 1, "the draft was right"
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
    for stream in (left, right):
        with engine.scheduler.newest(stream.robot) as prefix:
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


class Together(SchedulingPolicy):
    """A policy that has all frames that wait computed in one micro-batch."""

    def next(self, lane, ready, now_s, due_s=0.0):
        seen = by_priority([request for request in ready if request.want == OBSERVE])
        return MicroBatch(ENCODE, tuple(seen)) if seen else None


def test_frames_of_one_micro_batch_fail_alone() -> None:
    policy = make_policy()
    engine = Engine(policy, robots=make_robots(policy))
    engine.scheduler.policy = Together()
    bad = replace(observation("right"), images={})
    requests = [Request(OBSERVE, seen.robot, seen) for seen in (bad, observation("left"))]
    for request in requests:
        engine.scheduler.submit(request)
    assert len(engine.scheduler.step()) == 2
    assert "images is empty" in str(requests[0].error) and requests[0].result is None
    assert requests[1].error is None and requests[1].result is not None


def test_names_are_free_until_a_robot_is_described() -> None:
    policy = make_policy()
    engine = Engine(policy, step_dt_s=0.2)
    seen = replace(make_observation(), robot="anybody")
    with engine.observe(seen) as prefix:
        assert engine.act(prefix).step_dt_s == 0.2
    engine.runner.robots.add("right", make_robots(policy)["right"])
    with pytest.raises(ValueError, match=r"'anybody' is not known here, but \['right'\] are"):
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
    assert engine.runner.pool.free == 4 and engine.scheduler.newest("right") is None
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
    with pytest.raises(PoolExhausted, match="all 2 KV slots are held"):
        engine.observe(observation("left"))


REFUSED: Mapping[str, tuple[str, Callable[[Policy], Embodiment], str]] = {
    "no name": ("", lambda policy: Embodiment(policy, 0.1), "a robot without a name"),
    "network": ("b", lambda policy: Embodiment(make_policy(), 0.1), "a network of its own; make it of the"),
    "delay": (
        "b",
        lambda policy: Embodiment(replace(policy, trained_delay=2), 0.1),
        "trained_delay of the robot 'b' is 2, the engine's is 0",
    ),
    "time": ("b", lambda policy: Embodiment(policy, 0.0), r"step_dt_s is 0\.0; give the time"),
    "infinite": ("b", lambda policy: Embodiment(policy, float("inf")), "step_dt_s is inf"),
}


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
@pytest.mark.parametrize("kind", ["pi0", "pi05"])
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
