"""An OpenVLA whose frames share forwards: the same actions, each with the stamp of its own frame."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from frame_stream import FrameStream, held_slots
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import ACTIONS, make_openvla_folder, make_openvla_observation
from stepped_streams import World
from torch import Tensor

from vla_accel_ros.engine.actors.tokens import PackedTokenActor
from vla_accel_ros.engine.config import PREFERENCES, TOKEN_MODES
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Act, Ask, Pace, Request, Waits
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.types import Chunk, Observation

FRAMES = 12
WORDS = ("lift the red cup", "lift the cup", "take the red cup")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    return cast(OpenVLAPolicy, load_policy(make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=4)))


@pytest.fixture(scope="module")
def alone(policy: OpenVLAPolicy) -> Alone:
    return Alone(policy)


class Alone:
    """What the plain engine makes of one frame by itself: its action, and the tokens that say it."""

    def __init__(self, policy: OpenVLAPolicy) -> None:
        self._engine = Engine(policy)
        self._made: dict[tuple[bytes, str], Request] = {}

    def request(self, observation: Observation) -> Request:
        (image,) = observation.images.values()
        key = image.tobytes(), observation.instruction
        if key not in self._made:
            with self._engine.observe(observation) as prefix:
                request = self._engine.scheduler.submit(Request(Act(), prefix=prefix))
                self._made[key] = self._engine.scheduler.wait(request)
        return self._made[key]

    def __call__(self, observation: Observation) -> np.ndarray:
        chunk = self.request(observation).result
        assert isinstance(chunk, Chunk)
        return chunk.actions


def assert_each_is_its_own_frames(
    alone: Alone, stream: FrameStream, seen: Mapping[int, Observation] | Sequence[Observation]
) -> None:
    """What a stream finished is what each frame gives by itself. seen: frames by version."""
    assert stream.finished and not stream.errors
    for request in stream.finished:
        chunk = request.result
        assert isinstance(chunk, Chunk)
        frame = seen[chunk.kv_version]
        assert request.tokens == alone.request(frame).tokens
        np.testing.assert_array_equal(chunk.actions, alone(frame))
        assert chunk.stamp_ns == frame.stamp_ns
    assert versions(stream.chunks) == sorted(set(versions(stream.chunks)))


def frames(count: int = FRAMES) -> list[Observation]:
    """Frames of which some are alike, as when the robot stands still."""
    return [replace(make_openvla_observation(i // 3), stamp_ns=1000 + i) for i in range(count)]


def versions(chunks: Sequence[Chunk]) -> list[int]:
    return [chunk.kv_version for chunk in chunks]


def fail_once(engine: Engine, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward number `at` from now on raises."""
    actor = engine.runner.actor
    assert isinstance(actor, PackedTokenActor)
    forward, count = actor._forward, itertools.count()

    def failing(segments: Sequence[Segment]) -> list[Tensor]:
        if next(count) == at:
            raise RuntimeError("out of memory")
        return forward(segments)

    monkeypatch.setattr(actor, "_forward", failing)


@pytest.mark.parametrize(
    ("mode", "prefer", "fast"),
    [
        *((mode, prefer, False) for mode in TOKEN_MODES for prefer in PREFERENCES),
        ("sequential", "rate", True),
        ("speculative", "rate", True),
    ],
)
def test_actions_are_those_of_the_plain_engine_in_every_mode(
    policy: OpenVLAPolicy, alone: Alone, mode: str, prefer: str, fast: bool
) -> None:
    engine = Engine(policy, token_mode=mode, token_prefer=prefer, fast=fast)
    assert isinstance(engine.runner.actor, PackedTokenActor) == (mode != "sequential" or fast)
    stream = FrameStream(engine)
    stream.frames(frames())
    assert_each_is_its_own_frames(alone, stream, frames())
    assert all(chunk.request_id == chunk.kv_version for chunk in stream.chunks)
    engine.scheduler.forget()
    assert held_slots(engine) == 0


def test_a_pipeline_gives_an_action_a_frame_once_it_is_full(policy: OpenVLAPolicy) -> None:
    brought = FrameStream(Engine(policy, token_mode="pipelined")).frames(frames())
    assert [versions(one) for one in brought] == [[]] * (ACTIONS - 1) + [[n] for n in range(FRAMES - 6)]


def test_speculation_for_freshness_is_never_behind(policy: OpenVLAPolicy) -> None:
    brought = FrameStream(Engine(policy, token_mode="speculative", token_prefer="freshness")).frames(frames())
    assert [versions(one) for one in brought] == [[number] for number in range(FRAMES)]


def test_another_instruction_drops_what_is_under_way(policy: OpenVLAPolicy) -> None:
    stream = FrameStream(Engine(policy, token_mode="pipelined"))
    before = stream.frames(frames(9))
    after = stream.frames(replace(one, instruction="lift the cup", stamp_ns=5000) for one in frames(8))
    assert before[-1]
    assert after[: ACTIONS - 1] == [[]] * (ACTIONS - 1)
    assert all(chunk.stamp_ns == 5000 for brought in after[ACTIONS - 1 :] for chunk in brought)
    assert all(after[ACTIONS - 1 :])
    assert [request.number for request in stream.dropped] == list(range(3, 9)), "each is told so once"


def test_a_frame_that_a_newer_one_overtook_is_dropped(policy: OpenVLAPolicy) -> None:
    """A right draft finishes the newer one first; an older chunk after it is of no use to a robot."""
    engine = Engine(policy, token_mode="speculative", token_prefer="rate")
    stream, (still, moved) = FrameStream(engine), (make_openvla_observation(seed) for seed in (0, 2))
    while not stream.chunks:  # what it says of the still scene is the draft from then on
        stream.frames([still])
    stream.engine.scheduler.forget()
    stream.finished.clear()
    first, second = stream.frames([moved, still])
    assert (first, len(second)) == ([], 1)
    assert [request.number for request in stream.dropped][-1] == second[0].request_id - 1
    assert not stream.under_way and held_slots(engine) == 0


def test_a_frame_alone_is_computed_at_any_time_and_nothing_else(policy: OpenVLAPolicy, alone: Alone) -> None:
    """As a replay does, and a warm-up."""
    engine = Engine(policy, token_mode="pipelined")
    stream = FrameStream(engine)
    stream.frames(frames(3))
    with engine.observe(frames(1)[0]) as prefix:
        np.testing.assert_array_equal(engine.act(prefix).actions, alone(frames(1)[0]))
        with pytest.raises(ValueError, match="act was given steps"):
            engine.act(prefix, steps=3)
        with pytest.raises(ValueError, match="token_mode sequential"):
            engine.scheduler.submit(Request(Ask(), prefix=prefix))
    assert versions(stream.chunks) == [0, 1, 2], "what had begun rode along to its end"
    assert_each_is_its_own_frames(alone, stream, frames())


@pytest.mark.parametrize("failing", range(ACTIONS))
def test_a_frame_whose_forward_failed_is_not_acted_on_later(
    policy: OpenVLAPolicy, alone: Alone, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failing: which forward of the frame."""
    engine = Engine(policy, token_mode="pipelined")
    fail_once(engine, failing, monkeypatch)
    for number, observation in enumerate((frames(4)[0], frames(4)[3])):
        with engine.observe(observation) as prefix:
            if number == 0:
                with pytest.raises(RuntimeError, match="out of memory"):
                    engine.act(prefix)
            else:
                np.testing.assert_array_equal(engine.act(prefix).actions, alone(observation))
    assert held_slots(engine) == 0


def test_frames_that_share_a_forward_are_dropped_when_it_fails(
    policy: OpenVLAPolicy, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(policy, token_mode="pipelined")
    stream = FrameStream(engine)
    stream.frames(frames(2))
    fail_once(engine, 0, monkeypatch)
    stream.frames(frames(1))
    assert [str(error) for error in stream.errors] == ["out of memory"] * 3
    assert not stream.under_way and held_slots(engine) == 0
    brought = stream.frames(frames(ACTIONS + 1))
    assert [[chunk.stamp_ns for chunk in one] for one in brought] == [[]] * (ACTIONS - 1) + [[1000], [1001]]
    for chunk in stream.chunks:
        np.testing.assert_array_equal(chunk.actions, alone(frames()[chunk.stamp_ns - 1000]))


@settings(max_examples=20)
@given(
    data=st.data(), mode=st.sampled_from(TOKEN_MODES), prefer=st.sampled_from(PREFERENCES), fast=st.booleans()
)
def test_any_schedule_gives_the_actions_of_each_frame_alone(
    policy: OpenVLAPolicy, alone: Alone, data: st.DataObject, mode: str, prefer: str, fast: bool
) -> None:
    """Two robots' frames come, are told other words, are paused, or somebody acts on the newest by itself."""
    engine = Engine(policy, token_mode=mode, token_prefer=prefer, fast=fast)
    streams = {robot: FrameStream(engine, robot) for robot in "ab"}
    seen: dict[int, Observation] = {}
    words = dict.fromkeys(streams, WORDS[0])
    for event in data.draw(
        st.lists(st.sampled_from(["frame"] * 4 + ["words", "pause", "alone"]), max_size=14)
    ):
        robot = data.draw(st.sampled_from(sorted(streams)), label=event)
        stream, stamp = streams[robot], 1000 + len(seen)
        if event == "pause":
            engine.scheduler.forget(robot)
            assert not stream.under_way
        elif event == "alone" and (newest := engine.runner.prefixes.newest(robot)) is not None:
            with newest as prefix:
                np.testing.assert_array_equal(engine.act(prefix).actions, alone(seen[prefix.version]))
        elif event in ("frame", "words"):
            if event == "words":
                words[robot] = data.draw(st.sampled_from(WORDS))
            scene = data.draw(st.integers(0, 2), label="scene")
            frame = replace(make_openvla_observation(scene), stamp_ns=stamp, instruction=words[robot])
            seen[len(seen)] = frame
            others = [request for one in streams.values() if one is not stream for request in one.dropped]
            stream.frames([frame])
            assert others == [
                request for one in streams.values() if one is not stream for request in one.dropped
            ]
            assert {request.instruction for request in stream.under_way} <= {words[robot]}
        robots = len(
            {robot for robot, one in streams.items() if engine.runner.prefixes.newest_version(robot) >= 0}
        )
        assert held_slots(engine, robots) <= len(engine.scheduler.requests)
        assert all(request.begun for request in engine.scheduler.requests)
    for robot, stream in streams.items():
        assert not stream.errors
        if stream.finished:
            assert_each_is_its_own_frames(alone, stream, seen)
        engine.scheduler.forget(robot)
    assert engine.runner.pool.free >= engine.runner.pool.slots - len(streams)
    assert not engine.scheduler.requests and not getattr(engine.runner.actor, "_slots", {})


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
def test_a_running_stream_goes_down_the_same_path(policy: OpenVLAPolicy, alone: Alone, mode: str) -> None:
    """Frames without end; what comes of them, and that nothing is asked, or left when it stops."""
    world, endless, seen = World(), itertools.cycle(frames()), dict[int, Observation]()
    ports = replace(
        world.ports(),
        observe=lambda: next(endless),
        on_prefix=lambda prefix, observation: seen.update({prefix.version: observation}),
    )
    engine = Engine(policy, token_mode=mode)
    streaming = Streaming(engine, ports, Pace(100.0), Pace(100.0), Pace(10.0))
    streaming.start()
    world.wait(lambda: len(world.chunks) >= ACTIONS, "chunks")
    streaming.stop()
    assert versions(world.chunks) == sorted(set(versions(world.chunks)))
    for chunk in world.chunks:
        np.testing.assert_array_equal(chunk.actions, alone(seen[chunk.kv_version]))
    assert not world.texts and not world.errors
    assert not engine.scheduler.requests and held_slots(engine) == 0
    assert [stats.name for stats in streaming.stats()] == ["vision", "action"]


def test_a_request_of_a_stream_names_no_frame_or_its_newest(policy: OpenVLAPolicy, alone: Alone) -> None:
    """Given a frame, it is that one which must be new to its robot, whatever was seen since."""
    engine = Engine(policy, token_mode="speculative", token_prefer="freshness")
    with engine.observe(frames()[0]) as first, engine.observe(frames()[3]):
        requests = [Request(Act(), prefix=first, waits=Waits.NEWS) for _ in range(2)]
        for request in requests:
            engine.scheduler.submit(request)
        engine.scheduler.wait(requests[0])
        np.testing.assert_array_equal(requests[0].result.actions, alone(frames()[0]))
        assert engine.scheduler.step() == () and not requests[1].begun
