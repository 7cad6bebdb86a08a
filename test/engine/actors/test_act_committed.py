"""A chunk that begins with what the robot executes meanwhile: for policies trained so, and for no others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from builders import JOINTS, make_observation, make_policy
from guiding import guidance_to

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Chunk

NOISE = np.random.default_rng(7).standard_normal((8, 8), dtype=np.float32)


def make_engine(kind: str, relative: bool = False, device: str = "cpu", trained_delay: int = 5) -> Engine:
    policy = make_policy(kind, device=device, delta_mask=np.full(JOINTS, relative))
    return Engine(dataclasses.replace(policy, trained_delay=trained_delay))


def act(engine: Engine, committed: np.ndarray | None, seed: int = 0) -> Chunk:
    with engine.observe(make_observation(seed)) as prefix:
        return engine.act(prefix, noise=NOISE, committed=committed)


@pytest.mark.parametrize("relative", [False, True])
def test_the_chunk_begins_with_exactly_what_is_executed(kind: str, relative: bool, device: str) -> None:
    engine = make_engine(kind, relative, device)
    free = act(engine, None)
    committed = act(engine, None, seed=1).actions[:3] + np.float32(0.123)
    chunk = act(engine, committed)
    assert np.array_equal(chunk.actions[:3], committed)
    assert (chunk.update_magnitudes[:3] == 0).all()
    assert (chunk.update_magnitudes[3:] > 0).all()
    assert np.isfinite(chunk.actions).all()
    assert not np.array_equal(chunk.actions[3:], free.actions[3:])


def test_the_network_is_given_them_normalised(kind: str, device: str) -> None:
    engine, given = make_engine(kind, True, device), []
    model = engine.policy.model
    velocity = model.velocity

    def noted(x, t, *rest):
        given.append((x, t))
        return velocity(x, t, *rest)

    model.velocity = noted
    observation = make_observation()
    committed = act(engine, None, seed=1).actions[:2]
    given.clear()
    act(engine, committed)
    expected = engine.policy.raw_actions(committed, observation.state)
    for x, t in given:
        assert torch.equal(x[0, :2].cpu(), expected)
        assert t[0, :2].tolist() == [0, 0]


def test_a_policy_that_was_not_trained_so_refuses() -> None:
    committed = np.zeros((3, JOINTS), np.float32)
    with pytest.raises(ValueError, match=r"3 actions .* 2"):
        act(make_engine("pi05", trained_delay=2), committed)
    with pytest.raises(ValueError, match="at most 0"):
        act(Engine(make_policy("pi05")), committed[:1])


def test_arguments_are_checked() -> None:
    engine = make_engine("pi0")
    for shape in ((3, JOINTS - 1), (JOINTS,)):
        with pytest.raises(ValueError, match=r"committed has shape .*\[d, 6\]"):
            act(engine, np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match=r"committed\.actions .*finite"):
        act(engine, np.full((1, JOINTS), np.nan, np.float32))
    with engine.observe(make_observation()) as prefix:
        chunk = engine.act(prefix)
        guidance = guidance_to(engine, prefix, chunk, 1)
        with pytest.raises(ValueError, match="guidance and committed"):
            engine.act(prefix, guidance=guidance, committed=chunk.actions[:1])
        assert engine.runner.pool.free == engine.runner.pool.slots - 1
