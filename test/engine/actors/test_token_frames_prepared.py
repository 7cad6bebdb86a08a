"""The forwards that frames of an OpenVLA share are made before the first frame, for any prompt and mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frame_stream import FrameStream, held_slots
from openvla_builders import ACTIONS, make_openvla_folder, make_openvla_observation

from vla_accel_ros.engine.config import AUTO, FRESHNESS, PIPELINED, RATE, SEQUENTIAL, SPECULATIVE
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.packed_stage import PackedStage
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy

FRAMES = 2 * ACTIONS
WORDS = ("lift", "lift the red cup and put it down", "lift the red cup and put it on the green plate again")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    policy = load_policy(make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=4))
    assert isinstance(policy, OpenVLAPolicy)
    return policy


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PackedStage]:
    """Every packed stage that is made."""
    stages: list[PackedStage] = []
    make = PackedStage.__init__

    def noted(stage: PackedStage, *given: object) -> None:
        make(stage, *given)  # type: ignore[arg-type]
        stages.append(stage)

    monkeypatch.setattr(PackedStage, "__init__", noted)
    return stages


@pytest.mark.parametrize(
    ("mode", "prefer"),
    [
        (SEQUENTIAL, RATE),
        (PIPELINED, RATE),
        (PIPELINED, FRESHNESS),
        (SPECULATIVE, FRESHNESS),
        (AUTO, RATE),
    ],
)
def test_no_forward_is_made_once_the_engine_is_prepared(
    policy: OpenVLAPolicy, made: list[PackedStage], mode: str, prefer: str
) -> None:
    engine = Engine(policy, token_mode=mode, token_prefer=prefer, fast=True)
    engine.prepare([1], range(1, policy.config.max_prompt + 1))
    ready = len(made)
    assert ready
    stream = FrameStream(engine)
    for words in WORDS:
        for frame in range(FRAMES):  # some alike, so that drafts are right for a while
            stream.frames([replace(make_openvla_observation(frame // 3), instruction=words)])
            if frame % 5 == 0:
                newest = engine.runner.prefixes.newest()
                assert newest is not None
                with newest as prefix:
                    engine.act(prefix)
    assert stream.chunks and not stream.errors
    assert len(made) == ready


def test_only_what_the_prompts_and_the_mode_need_is_made(
    policy: OpenVLAPolicy, made: list[PackedStage]
) -> None:
    whole = range(1, policy.config.max_prompt + 1)

    def count(mode: str, prompts: range) -> int:
        made.clear()
        Engine(policy, token_mode=mode, token_prefer="rate", fast=True).prepare([1], prompts)
        return len(made)

    alone, pipelined = count("sequential", whole), count("pipelined", whole)
    assert alone < pipelined <= count("speculative", whole)
    assert count("sequential", range(9, 10)) == 2, "a prefill and a decode"
    assert alone <= 2 + (policy.config.max_prompt + 15) // 16


def test_every_number_of_rows_is_told_once(policy: OpenVLAPolicy) -> None:
    told: list[tuple[str, int, int]] = []
    engine = Engine(policy, token_mode="pipelined", fast=True)
    engine.prepare([1], range(1, policy.config.max_prompt + 1), lambda *progress: told.append(progress))
    names, done, totals = zip(*told)
    assert list(done) == list(range(len(told))) and set(totals) == {len(told)}
    assert len(set(names)) == len(names) and names[-1] == "decodes"
    assert held_slots(engine, robots=0) == 0


def test_without_fast_stages_there_is_nothing_to_make(policy: OpenVLAPolicy, made: list[PackedStage]) -> None:
    told: list[str] = []
    engine = Engine(policy, token_mode="pipelined")
    engine.prepare([1], range(1, policy.config.max_prompt + 1), lambda name, done, total: told.append(name))
    assert not made and not told
