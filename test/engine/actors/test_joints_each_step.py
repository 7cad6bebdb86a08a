"""Chunks whose every step is given the newest joints: they are the flow of those joints, and made again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import JOINTS, make_observation, make_policy
from frame_stream import FrameStream

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk

STEPS = 4


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy("pi0")


def make_engine(policy: Policy, fast: bool = False, each: bool = True) -> Engine:
    return Engine(policy, slots=9, steps=STEPS, seed=3, fast=fast, staggered=STEPS, joints_each_step=each)


class Joints:
    """Joints that are others whenever they are read, or missing."""

    def __init__(self, missing: tuple[int, ...] = (), failing: tuple[int, ...] = ()) -> None:
        self.read: list[np.ndarray] = []
        self._missing, self._failing, self._count = missing, failing, 0

    def __call__(self) -> tuple[np.ndarray, int] | None:
        self._count += 1
        if self._count in self._failing:
            raise OSError("the slot is gone")
        if self._count in self._missing:
            return None
        draw = np.random.default_rng(self._count)
        self.read.append(draw.uniform(-0.5, 0.5, JOINTS).astype(np.float32))
        return self.read[-1], self._count


def chunk_of(engine: Engine, joints: Joints) -> Chunk:
    """Of one frame."""
    stream = FrameStream(engine)
    stream.see(make_observation(1, stamp_ns=1001))
    stream.want(sense=joints)
    stream.run()
    assert not stream.errors
    return stream.chunks[0]


@torch.inference_mode()
def by_hand(policy: Policy, engine: Engine, states: np.ndarray) -> np.ndarray:
    """The actions float32 [H, D] of plain Euler steps, each with joints of its own."""
    with engine.observe(make_observation(1, stamp_ns=1001)) as prefix:
        kv = engine.runner.pool.view(prefix.slot, prefix.n_tokens)
        x = torch.from_numpy(fresh(3, 0, (policy.config.horizon, policy.config.action_dim)))[None]
        for time, state in zip(flow_times(STEPS, policy.time_rule), states, strict=True):
            given = policy.normalized_state(state)[None]
            x = x - policy.model.velocity(x, torch.full((1,), time), given, kv) / STEPS
    return policy.actions(x[0], states[0])


@pytest.mark.parametrize("fast", [False, True])
def test_every_step_has_the_newest_joints_and_a_chunk_tells_which(policy: Policy, fast: bool) -> None:
    engine, joints = make_engine(policy, fast), Joints()
    chunk = chunk_of(engine, joints)
    assert chunk.state is not None and chunk.step_states is not None
    np.testing.assert_array_equal(chunk.state, joints.read[-1 - STEPS])
    np.testing.assert_array_equal(chunk.step_states, joints.read[-STEPS:])
    states = chunk.step_states.copy()
    wanted = by_hand(policy, engine, states)
    # Relative actions are relative to what the chunk began with.
    none = torch.zeros(wanted.shape)
    wanted += policy.actions(none, chunk.state) - policy.actions(none, states[0])
    np.testing.assert_allclose(chunk.actions, wanted, atol=2e-5)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_it_is_made_again_to_the_bit(policy: Policy, fast: bool, each: bool) -> None:
    """Also by an engine that would not take newer joints itself."""
    chunk, engine = chunk_of(make_engine(policy, fast), Joints()), make_engine(policy, fast, each)
    with engine.observe(make_observation(1, stamp_ns=1001)) as prefix:
        again = engine.act(prefix, chunk.state, chunk.request_id, step_states=chunk.step_states)
        other = engine.act(prefix, chunk.state, chunk.request_id)
    np.testing.assert_array_equal(chunk.actions, again.actions)
    np.testing.assert_array_equal(chunk.update_magnitudes, again.update_magnitudes)
    np.testing.assert_array_equal(chunk.step_states, again.step_states)
    assert np.abs(chunk.actions - other.actions).max() > 1e-4 and other.step_states is None


def test_joints_that_are_missing_stay_what_they_were(policy: Policy) -> None:
    joints = Joints(missing=(3,), failing=(4,))  # the first was what it began with
    chunk = chunk_of(make_engine(policy), joints)
    assert chunk.step_states is not None
    first, *held, last = chunk.step_states
    assert all(np.array_equal(state, first) for state in held) and not np.array_equal(last, first)


def test_robots_beside_each_other_have_their_own(policy: Policy) -> None:
    engine = make_engine(policy)
    streams = {name: FrameStream(engine, name) for name in "ab"}
    given = {"a": Joints(), "b": Joints(missing=tuple(range(3, 40)))}
    for name, stream in streams.items():
        stream.see(replace(make_observation(1, stamp_ns=1001), robot=name))
        stream.want(sense=given[name])
    streams["a"].run()
    moved, stood = (streams[name].chunks[0].step_states for name in "ab")
    assert moved is not None and len(np.unique(moved, axis=0)) == STEPS
    assert stood is not None and len(np.unique(stood, axis=0)) == 1


class TestRefused:
    def test_joints_of_other_steps(self, policy: Policy) -> None:
        engine = make_engine(policy)
        with engine.observe(make_observation(1)) as prefix:
            with pytest.raises(ValueError, match=r"step_states has shape \[3, 6\]"):
                engine.act(prefix, step_states=np.zeros((3, 6), np.float32))
            with pytest.raises(ValueError, match=r"step_states .*seats"):
                engine.act(prefix, steps=2, step_states=np.zeros((4, 6), np.float32))


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "wrong", [np.full(JOINTS, np.nan), np.zeros(0), np.zeros(JOINTS + 1), np.full(JOINTS, 1e39)]
)
def test_joints_that_are_no_state_end_no_chunk_of_another_robot(
    policy: Policy, wrong: np.ndarray, fast: bool
) -> None:
    engine, joints = make_engine(policy, fast), Joints(missing=tuple(range(3, 40)))
    streams, count = {name: FrameStream(engine, name) for name in "ab"}, itertools.count()

    def breaks() -> tuple[np.ndarray, int]:
        number = next(count)
        return wrong if number > 3 else np.full(JOINTS, number / 10, np.float32), number

    for name, sense in (("a", breaks), ("b", joints)):
        streams[name].see(make_observation(1, stamp_ns=1001))
        streams[name].want(sense=sense)
    streams["b"].run()
    assert not streams["b"].errors and len(streams["b"].chunks) == 1 and not streams["a"].errors
    chunk = streams["a"].chunks[0]
    with engine.observe(make_observation(1, stamp_ns=1001)) as prefix:
        again = engine.act(prefix, chunk.state, chunk.request_id, step_states=chunk.step_states)
    np.testing.assert_array_equal(chunk.actions, again.actions)
    streams["a"].see(make_observation(2))
    streams["a"].want(sense=breaks)
    streams["a"].run()
    assert "observation.state" in str(streams["a"].errors[0])


def test_a_state_of_another_size_than_the_action_is_recorded_and_made_again(policy: Policy) -> None:
    engine, count = make_engine(policy), itertools.count()
    seen = replace(make_observation(1, stamp_ns=1001), state=np.zeros(JOINTS - 2, np.float32))
    stream = FrameStream(engine)
    stream.see(seen)
    stream.want(sense=lambda: (np.full(JOINTS - 2, next(count) / 10, np.float32), next(count)))
    stream.run()
    chunk = stream.chunks[0]
    assert chunk.step_states is not None and chunk.step_states.shape == (STEPS, JOINTS - 2)
    with engine.observe(seen) as prefix:
        again = engine.act(prefix, chunk.state, chunk.request_id, step_states=chunk.step_states)
        np.testing.assert_array_equal(chunk.actions, again.actions)
        with pytest.raises(ValueError, match=r"state\[0\] is nan"):
            engine.act(prefix, chunk.state, step_states=np.full((STEPS, JOINTS - 2), np.nan))
