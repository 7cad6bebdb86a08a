"""Scheduling policies and the other options: each combination serves an engine, or is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_observation, make_policy
from openvla_builders import make_openvla_folder, make_openvla_observation
from scheduled import in_thread, joined

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.extensions import BUILT_IN, POLICIES
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.types import Chunk

NAMES = [name for name in BUILT_IN[POLICIES] if name != "tokens"]


def act(engine: Engine, observation: Any) -> np.ndarray:
    """The actions of a frame. Fails if the scheduler never chooses them."""
    chunks: list[Chunk] = []

    def serve() -> None:
        with engine.observe(observation) as prefix:
            chunks.append(engine.act(prefix, noise=7 if engine.policy.acts == "flow" else None))

    joined(in_thread(serve))
    return chunks[0].actions


@pytest.mark.parametrize("staggered", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_flow_policy_acts_whatever_the_scheduling(name: str, staggered: int) -> None:
    policy, frame = make_policy("pi0"), make_observation()
    engine = Engine(policy, scheduling=name, staggered=staggered, slots=8, steps=3)
    np.testing.assert_array_equal(act(engine, frame), act(Engine(policy, steps=3), frame))


@pytest.mark.parametrize("mode", ["sequential", "pipelined"])
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_acts_by_tokens_does_too(name: str, mode: str, tmp_path: Path) -> None:
    policy, frame = load_policy(make_openvla_folder(tmp_path, seed=4)), make_openvla_observation(0)
    engine = Engine(policy, scheduling=name, token_mode=mode)
    np.testing.assert_array_equal(act(engine, frame), act(Engine(policy), frame))


def test_tokens_are_refused_where_frames_share_no_forwards(tmp_path: Path) -> None:
    for policy in (make_policy("pi0"), load_policy(make_openvla_folder(tmp_path))):
        with pytest.raises(ValueError, match="scheduling is 'tokens', but frames share no forwards"):
            Engine(policy, scheduling="tokens")
