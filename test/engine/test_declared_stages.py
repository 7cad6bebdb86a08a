"""A family that declares all eight micro-requests runs in the engine, which knows none of its names: in plain
torch, and by captured functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_embodiment, make_observation
from eight_stages import TIMES, EightStages, make_eight
from frame_stream import FrameStream
from recorded_graphs import recorded_graphs

from shared.decoding import decode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Act, Observe, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.types import Chunk, Observation

STEPS = 4
OTHER = "put the green block on the pad"
Make = Callable[..., Engine]


@pytest.fixture
def policy() -> Iterator[EightStages]:
    with torch.inference_mode():
        yield make_eight()


@pytest.fixture(params=["plain", "captured", "recorded"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """recorded: with graphs on a CPU."""
    with recorded_graphs() if request.param == "recorded" else nullcontext():
        yield partial(Engine, fast=request.param != "plain")


def frame_of(policy: EightStages, observation: Observation) -> dict[str, Any]:
    """What its micro-requests leave of a frame, one after another without an engine."""
    given = policy.inputs(observation)
    arm, text = given.more["arm"], policy.text_encode(given.tokens)["text"]
    seen, latents = policy.encode(given.images)["seen"], policy.vae_encode(given.images)["latents"]
    video = None
    for index in range(TIMES):
        video = policy.video_denoise(latents, video, text, index, arm)["video"]
    assert video is not None
    return {"video": video, "text": text, "arm": arm, **policy.prefill(seen, video, given.tokens)}


def chunk_of(policy: EightStages, frame: dict[str, Any], state: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Joint targets of a frame with these joints: Euler steps from noise at 1 to actions at 0."""
    normal = policy.normalized_state(state)
    coarse = policy.forward(frame["video"], frame["text"], normal, frame["arm"])["coarse"]
    x = torch.from_numpy(noise)[None]
    for t in flow_times(STEPS):
        x = x + (-1.0 / STEPS) * policy.denoise(x, torch.full((1,), t), coarse, frame["kv"])
    return policy.actions(x[0], state)


def text_of(policy: EightStages, frame: dict[str, Any], count: int) -> list[int]:
    kv: KV = frame["kv"]
    steps = decode(policy.model, kv, frame["hidden"][None], count)
    tokens = [int(step.tokens) for step in steps]
    eos = policy.tokenizer.eos
    return tokens[: tokens.index(eos)] if eos in tokens else tokens


def test_a_chunk_is_what_the_micro_requests_give_one_after_another(policy: EightStages, make: Make) -> None:
    engine = make(policy, steps=STEPS)
    for seed, cameras in ((0, CAMERAS), (1, CAMERAS[:1])):
        observation = make_observation(seed, cameras)
        state = observation.state + 0.1
        with engine.observe(observation) as prefix:
            chunks = engine.act(prefix), engine.act(prefix, state)
        frame = frame_of(policy, observation)
        for chunk, joints in zip(chunks, (observation.state, state), strict=True):
            noise = engine.runner.actor.noise(chunk.request_id)
            np.testing.assert_array_equal(chunk.actions, chunk_of(policy, frame, joints, noise))
        assert not np.array_equal(chunks[0].actions, chunks[1].actions)


@pytest.mark.parametrize("make", ["plain", "captured"], indirect=True)
def test_each_is_computed_as_often_as_it_says(policy: EightStages, make: Make) -> None:
    """Text once an instruction, a frame's once a frame, the coarse chunk once a chunk."""
    engine = make(policy, steps=STEPS, slots=2)
    for seed in range(4):
        with engine.observe(make_observation(seed, instruction=OTHER if seed == 2 else "reach")) as prefix:
            engine.act(prefix)
            engine.act(prefix)
    assert policy.runs == Counter(
        text_encode=2,
        encode=4,
        vae_encode=4,
        video_denoise=4 * TIMES,
        prefill=4,
        forward=8,
        denoise=8 * STEPS,
    )


def test_others_run_between_two_steps_of_a_video(policy: EightStages, make: Make) -> None:
    robots = {name: Embodiment(policy, 0.02) for name in "ab"}
    engine = make(policy, steps=STEPS, robots=robots, scheduling="staggered", staggered=2)
    ran: list[tuple[str, str]] = []
    run = engine.runner.run

    def noted(batch: Any) -> Any:
        ran.extend((request.robot, batch.stage) for request in batch.requests)
        return run(batch)

    engine.runner.run = noted  # type: ignore[method-assign]
    scheduler = engine.scheduler
    with engine.observe(replace(make_observation(0), robot="a")) as prefix:
        ran.clear()
        frame = scheduler.submit(Request(Observe(replace(make_observation(1), robot="b")), "b"))
        scheduler.step()
        assert frame.stage == "video_denoise" and not frame.finished
        urgent = scheduler.submit(Request(Act(steps=1), "a", prefix, priority=1))
        scheduler.wait(urgent)
        assert not frame.finished
        scheduler.wait(frame)
    assert ran[0] == ("b", "encode") and ("a", "denoise") in ran[1:-1]
    assert [stage for robot, stage in ran if robot == "b"] == [
        "encode",
        *["video_denoise"] * TIMES,
        "prefill",
    ]
    assert isinstance(frame.result, object)
    frame.result.release()


def test_frames_in_progress_at_once_do_not_mix(policy: EightStages, make: Make) -> None:
    engine = make(policy, steps=STEPS)
    observations = make_observation(0), make_observation(1, CAMERAS, OTHER)
    prefill: Any = engine.runner.prefill
    with engine.runner.pool.holding(2) as slots:
        frames = [prefill.begin(o, policy, slot) for o, slot in zip(observations, slots, strict=True)]
        while frames[0].stage:
            for frame in frames:
                prefill.advance(frame)
        for observation, slot in zip(observations, slots, strict=True):
            results, expected = prefill.results.of(slot), frame_of(policy, observation)
            assert torch.equal(results["video"], expected["video"])
            assert torch.equal(results["kv"].v, expected["kv"].v)
            assert torch.equal(results["text"], expected["text"])


def test_a_frame_that_is_dropped_halfway_frees_its_slot(policy: EightStages, make: Make) -> None:
    engine = make(policy, steps=STEPS)
    frame = engine.scheduler.submit(Request(Observe(make_observation())))
    engine.scheduler.step()
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
    engine.scheduler.cancel(frame)
    engine.scheduler.step()
    assert engine.runner.pool.free == engine.runner.pool.slots


def test_text_is_that_of_the_prefix_and_other_words_see_the_same_frame_and_video(
    policy: EightStages, make: Make
) -> None:
    """Of other words only what reads them is computed again."""
    engine = make(policy, steps=STEPS, slots=6)
    observation = make_observation(3)
    with engine.observe(observation) as prefix:
        before = Counter(policy.runs)
        answers = engine.ask(prefix, max_tokens=5), engine.ask(prefix, OTHER, max_tokens=5)
        for answer in answers:
            list(answer)
    assert policy.runs - before == Counter(text_encode=1, video_denoise=TIMES, prefill=1)
    told = [
        frame_of(policy, replace(observation, instruction=words))
        for words in (observation.instruction, OTHER)
    ]
    assert [answer.tokens for answer in answers] == [text_of(policy, frame, 5) for frame in told]
    assert answers[0].tokens != answers[1].tokens


@pytest.mark.parametrize("options", [{}, {"staggered": STEPS}])
def test_a_stream_acts_on_each_frame_and_again_on_newer_joints(
    policy: EightStages, make: Make, options: dict[str, Any]
) -> None:
    engine = make(policy, steps=STEPS, slots=8, **options)
    stream = FrameStream(engine)
    observations = [make_observation(seed, stamp_ns=1000 + seed) for seed in range(3)]
    for brought, observation in zip(stream.frames(observations), observations, strict=True):
        assert [chunk.stamp_ns for chunk in brought] == [observation.stamp_ns]
    joints = observations[-1].state + 0.2
    stream.want(sense=lambda: (joints, 5))
    stream.run()
    assert not stream.errors and len(stream.chunks) == 4
    frame = frame_of(policy, observations[-1])
    for chunk, state in zip(stream.chunks[2:], (observations[-1].state, joints), strict=True):
        noise = engine.runner.actor.noise(chunk.request_id)
        np.testing.assert_array_equal(chunk.actions, chunk_of(policy, frame, state, noise))


@pytest.mark.parametrize("scheduling", ["staggered", "throughput", "batches"])
def test_robots_with_their_own_arms_share_micro_batches(
    policy: EightStages, make: Make, scheduling: str
) -> None:
    """In each batch of steps there are several robots, and each gets what it would get alone."""
    arms = {"a": policy, "b": replace(policy, arm=7), "c": make_embodiment(policy, 4).policy}
    robots = {name: Embodiment(arm, 0.02) for name, arm in arms.items()}
    engine = make(policy, steps=STEPS, staggered=3, scheduling=scheduling, robots=robots)
    observations = {
        name: replace(make_observation(number), robot=name, instruction=OTHER if name == "b" else "reach")
        for number, name in enumerate(arms)
    }
    observations["c"] = replace(observations["c"], state=observations["c"].state[:4])
    widths: list[int] = []
    prefixes = {name: engine.observe(observation) for name, observation in observations.items()}
    requests = [Request(Act(), name, prefix) for name, prefix in prefixes.items()]
    for request in requests:
        engine.scheduler.submit(request)
    while batch := engine.scheduler.step():
        widths.append(len(batch))
    assert max(widths) == 3
    for request in requests:
        arm, name = arms[request.robot], request.robot
        assert isinstance(arm, EightStages) and isinstance(request.result, Chunk)
        noise = engine.runner.actor.noise(request.number)
        observation = observations[name]
        expected = chunk_of(arm, frame_of(arm, observation), observation.state, noise)
        np.testing.assert_array_equal(request.result.actions, expected)
    for prefix in prefixes.values():
        prefix.release()
