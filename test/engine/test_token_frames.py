"""An OpenVLA whose frames share forwards: the same actions, each with the stamp of its own frame."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from builders import make_observation, make_policy
from openvla_builders import ACTIONS, make_openvla_folder, make_openvla_observation
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.in_turn import InTurn
from vla_accel_ros.engine.loops import InferenceLoops, Pace, Ports
from vla_accel_ros.engine.mode import MODES, PREFERENCES
from vla_accel_ros.engine.token_pipeline import TokenPipeline
from vla_accel_ros.engine.types import Chunk, Observation
from vla_accel_ros.models.checkpoint import load_policy
from vla_accel_ros.models.openvla_policy import OpenVLAPolicy
from vla_accel_ros.models.packed import Segment

FRAMES = 12


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    return load_policy(make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=3))


def frames(count: int = FRAMES) -> list[Observation]:
    """Frames of which some are alike, as when the robot stands still."""
    return [replace(make_openvla_observation(i // 3), stamp_ns=1000 + i) for i in range(count)]


def sequential(policy: OpenVLAPolicy, observations: list[Observation]) -> dict[int, np.ndarray]:
    """stamp -> action, by the plain engine."""
    engine, actions = Engine(policy), {}
    for observation in observations:
        with engine.observe(observation) as prefix:
            actions[observation.stamp_ns] = engine.act(prefix).actions
    return actions


def in_turn(engine: Engine, observations: list[Observation]) -> list[Chunk | None]:
    made = []
    for observation in observations:
        with engine.observe(observation) as prefix:
            made.append(engine.act_in_turn(prefix))
    return made


def fail_once(pipeline: TokenPipeline, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward number `at` from now on raises."""
    forward, count = pipeline._forward, itertools.count()

    def failing(segments: list[Segment]) -> list[Tensor]:
        if next(count) == at:
            raise RuntimeError("out of memory")
        return forward(segments)

    monkeypatch.setattr(pipeline, "_forward", failing)


@pytest.mark.parametrize(
    ("mode", "prefer", "fast"),
    [
        *((mode, prefer, False) for mode in MODES for prefer in PREFERENCES),
        ("sequential", "rate", True),
        ("speculative", "rate", True),
    ],
)
def test_actions_are_those_of_the_plain_engine_in_every_mode(
    policy: OpenVLAPolicy, mode: str, prefer: str, fast: bool
) -> None:
    expected = sequential(policy, frames())
    engine = Engine(policy, turns=InTurn(mode, prefer), fast=fast)
    if mode == "sequential" and not fast:
        assert not engine.acts_in_turn
        with (
            engine.observe(make_openvla_observation()) as prefix,
            pytest.raises(ValueError, match="frames are not computed in turn"),
        ):
            engine.act_in_turn(prefix)
        return
    chunks = [chunk for chunk in in_turn(engine, frames()) if chunk is not None]
    assert chunks
    for number, chunk in enumerate(chunks):
        np.testing.assert_array_equal(chunk.actions, expected[chunk.stamp_ns])
        assert (chunk.kv_version, chunk.request_id) == (chunk.stamp_ns - 1000, number)
    assert [c.kv_version for c in chunks] == sorted({c.kv_version for c in chunks})
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_a_pipeline_gives_an_action_a_frame_once_it_is_full(policy: OpenVLAPolicy) -> None:
    made = in_turn(Engine(policy, turns=InTurn("pipelined")), frames())
    assert [chunk and chunk.kv_version for chunk in made] == [None] * (ACTIONS - 1) + list(range(FRAMES - 6))


def test_speculation_for_freshness_is_never_behind(policy: OpenVLAPolicy) -> None:
    made = in_turn(Engine(policy, turns=InTurn("speculative", "freshness")), frames())
    assert [chunk and chunk.kv_version for chunk in made] == list(range(FRAMES))


def test_another_instruction_forgets_what_is_under_way(policy: OpenVLAPolicy) -> None:
    engine = Engine(policy, turns=InTurn("pipelined"))
    before = in_turn(engine, frames(9))
    after = in_turn(
        engine, [replace(frame, instruction="lift the cup", stamp_ns=5000) for frame in frames(8)]
    )
    assert before[-1] is not None
    assert after[: ACTIONS - 1] == [None] * (ACTIONS - 1)
    assert all(chunk.stamp_ns == 5000 for chunk in after[ACTIONS - 1 :])


def test_what_was_under_way_before_a_pause_is_forgotten(policy: OpenVLAPolicy) -> None:
    engine = Engine(policy, turns=InTurn("pipelined"))
    in_turn(engine, frames(ACTIONS - 1))
    engine.forget_turns()
    made = in_turn(engine, frames(ACTIONS))
    assert [chunk and chunk.kv_version for chunk in made] == [None] * (ACTIONS - 1) + [ACTIONS - 1]


def test_a_frame_alone_is_computed_at_any_time_and_nothing_else(policy: OpenVLAPolicy) -> None:
    """As a replay does, and a warm-up."""
    expected = sequential(policy, frames(1))[1000]
    engine = Engine(policy, turns=InTurn("pipelined"))
    in_turn(engine, frames(3))
    with engine.observe(frames(1)[0]) as prefix:
        np.testing.assert_array_equal(engine.act(prefix).actions, expected)
        with pytest.raises(ValueError, match="act was given steps"):
            engine.act(prefix, steps=3)
        for ask in (engine.ask, lambda prefix: engine.reword(prefix, "lift")):
            with pytest.raises(ValueError, match="nothing continues them; use mode sequential"):
                ask(prefix)
    assert not engine.runner.text.places and not engine.speak()


@pytest.mark.parametrize("failing", range(ACTIONS))
def test_a_frame_whose_forward_failed_is_not_acted_on_later(
    policy: OpenVLAPolicy, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failing: which forward of the frame."""
    expected = sequential(policy, frames(4))
    engine = Engine(policy, turns=InTurn("pipelined"))
    fail_once(engine._in_turn._alone, failing, monkeypatch)
    for number, observation in enumerate((frames(4)[0], frames(4)[3])):
        with engine.observe(observation) as prefix:
            if number == 0:
                with pytest.raises(RuntimeError, match="out of memory"):
                    engine.act(prefix)
            else:
                np.testing.assert_array_equal(engine.act(prefix).actions, expected[1003])


def test_frames_in_turn_are_forgotten_when_a_forward_fails(
    policy: OpenVLAPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sequential(policy, frames())
    engine = Engine(policy, turns=InTurn("pipelined"))
    in_turn(engine, frames(2))
    fail_once(engine._in_turn._pipeline, 0, monkeypatch)
    with pytest.raises(RuntimeError, match="out of memory"):
        in_turn(engine, frames(1))
    made = in_turn(engine, frames(ACTIONS + 1))
    assert [chunk and chunk.stamp_ns for chunk in made] == [None] * (ACTIONS - 1) + [1000, 1001]
    for chunk in made[ACTIONS - 1 :]:
        np.testing.assert_array_equal(chunk.actions, expected[chunk.stamp_ns])


def test_the_loops_drive_it_down_the_same_path(policy: OpenVLAPolicy) -> None:
    observations, chunks = frames(), []

    def nothing(*_: object) -> None:
        return None

    ports = Ports(
        lambda: observations.pop(0) if observations else None,
        nothing,
        nothing,
        lambda chunk, _: chunks.append(chunk),
        nothing,
        nothing,
    )
    loops = InferenceLoops(Engine(policy, turns=InTurn("pipelined")), ports, Pace(10.0), Pace(10.0), None)
    while observations:
        assert loops.see() and loops.act() and not loops.act()
    assert [chunk.kv_version for chunk in chunks] == list(range(FRAMES - 6))


def test_modes_of_tokens_are_refused_for_a_flow() -> None:
    with pytest.raises(ValueError, match="mode is 'pipelined', but a pi05 policy does not act by tokens"):
        Engine(make_policy("pi05"), turns=InTurn("pipelined"))
    with Engine(make_policy("pi05")).observe(make_observation()) as prefix:
        assert prefix.version == 0
