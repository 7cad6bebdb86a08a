"""A policy that acts by tokens runs like any other: one observation, actions and answers from its prefix."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from openvla_builders import (
    ACTIONS,
    make_openvla_folder,
    make_openvla_observation,
)

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.request import Act, Request
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy

STATE = np.linspace(-0.3, 0.3, ACTIONS).astype(np.float32)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenVLAPolicy:
    policy = load_policy(make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=4), request.param)
    assert isinstance(policy, OpenVLAPolicy)
    return policy


@pytest.fixture
def engine(policy: OpenVLAPolicy) -> Iterator[Engine]:
    yield Engine(policy, slots=3, step_dt_s=0.2)


def greedy(policy: OpenVLAPolicy, seed: int) -> list[int]:
    """Without a cache: one pass over everything for each token."""
    model, inputs = policy.model, policy.inputs(make_openvla_observation(seed))
    said: list[int] = []
    with torch.no_grad():
        prompt = policy.embed(inputs)
        for _ in range(policy.joints):
            ids = torch.tensor([said], dtype=torch.int64, device=policy.device)
            hidden, _ = model.prefix(torch.cat((prompt, model.embed_tokens(ids)), dim=1))
            said.append(int(model.logits(hidden[0, -1]).argmax()))
    return said


@pytest.mark.parametrize("seed", range(3))
def test_an_action_is_the_likeliest_tokens_in_the_robots_units(
    engine: Engine, policy: OpenVLAPolicy, seed: int
) -> None:
    observation = make_openvla_observation(seed)
    with engine.observe(observation) as prefix:
        chunk = engine.act(prefix)
        again = engine.act(prefix)
    expected = policy.actions(torch.tensor([greedy(policy, seed)]), STATE)
    assert chunk.actions.shape == (1, ACTIONS) and chunk.actions.dtype == np.float32
    np.testing.assert_array_equal(chunk.actions, expected)
    np.testing.assert_array_equal(again.actions, chunk.actions)
    assert (chunk.horizon, chunk.step_dt_s, chunk.stamp_ns) == (1, 0.2, observation.stamp_ns)
    assert chunk.due_ns(0) == observation.stamp_ns + 200_000_000
    assert (chunk.request_id, again.request_id, chunk.kv_version) == (0, 1, prefix.version)
    assert chunk.update_magnitudes.tolist() == [0.0]


def test_relative_actions_are_relative_to_the_observed_state(tmp_path_factory) -> None:
    folder = make_openvla_folder(tmp_path_factory.mktemp("openvla"), seed=4)
    mask = np.arange(ACTIONS) < 5
    plain, relative = (Engine(load_policy(folder, delta_mask=given)) for given in (None, mask))
    observation = replace(make_openvla_observation(), state=STATE)
    actions = []
    for engine in (plain, relative):
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix, state=STATE + 9).actions)  # the prefix's own counts
    np.testing.assert_allclose(actions[1], actions[0] + STATE * mask, rtol=1e-6)


def test_a_prefix_is_read_and_not_written(engine: Engine) -> None:
    """Many act and ask on one prefix at once; each gets what it gets alone."""
    with engine.observe(make_openvla_observation()) as prefix:
        alone, text = engine.act(prefix).actions, list(engine.ask(prefix, max_tokens=5))
        before = engine.runner.pool.k.clone(), engine.runner.pool.v.clone()
        found: list[np.ndarray] = []
        threads = [
            threading.Thread(target=lambda: found.extend(engine.act(prefix).actions for _ in range(5)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert list(engine.ask(prefix, max_tokens=5)) == text
        for thread in threads:
            thread.join()
        assert len(found) == 10
        assert all(np.array_equal(actions, alone) for actions in found)
        assert torch.equal(engine.runner.pool.k, before[0]) and torch.equal(engine.runner.pool.v, before[1])


def test_what_is_for_chunks_alone_is_refused(engine: Engine) -> None:
    with engine.observe(make_openvla_observation()) as prefix:
        for name, act in (
            ("noise", partial(engine.act, noise=np.zeros((1, ACTIONS)))),
            ("steps", partial(engine.act, steps=3)),
            ("committed", partial(engine.act, committed=np.zeros((1, ACTIONS)))),
            ("guidance", partial(engine.act, guidance=Guidance(torch.zeros(1, ACTIONS), 1, 1))),
        ):
            with pytest.raises(ValueError, match=f"act was given {name}, but the policy acts by tokens"):
                act(prefix)
        assert engine.policy.trained_delay == 0


def test_slots_come_back_whatever_happens(engine: Engine) -> None:
    for _ in range(10):
        with engine.observe(make_openvla_observation()) as prefix:
            with pytest.raises(ValueError):
                engine.act(prefix, steps=2)
            engine.act(prefix)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1
    held = [engine.observe(make_openvla_observation()) for _ in range(3)]
    with pytest.raises(PoolExhausted):
        engine.observe(make_openvla_observation())
    for prefix in held:
        prefix.release()


def test_as_many_requests_as_come_are_answered_each_with_its_own_frames_action(
    engine: Engine, policy: OpenVLAPolicy
) -> None:
    """From threads, which step the engine for one another, and queued by one that waits for the last."""
    made: dict[int, np.ndarray] = {}
    with (
        engine.observe(make_openvla_observation(0)) as first,
        engine.observe(make_openvla_observation(1)) as second,
    ):
        frames = (first, second)
        expected = [engine.act(prefix).actions for prefix in frames]

        def act(number: int) -> None:
            made[number] = engine.act(frames[number % 2]).actions

        threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        queued = [engine.scheduler.submit(Request(Act(), prefix=frames[n % 2])) for n in range(5)]
        engine.scheduler.wait(queued[-1])
    assert sorted(made) == list(range(8))
    for number, actions in made.items():
        np.testing.assert_array_equal(actions, expected[number % 2])
    for number, request in enumerate(queued):
        assert request.finished and request.tokens == greedy(policy, number % 2)


def test_it_can_be_asked_though_its_words_are_its_actions(engine: Engine, policy: OpenVLAPolicy) -> None:
    """Sampled answers are a function of their seed; a stream does not ask by itself."""
    with engine.observe(make_openvla_observation()) as prefix:
        answer = engine.ask(prefix, max_tokens=ACTIONS)
        assert "".join(answer) == policy.tokenizer.decode(answer.tokens)
        said = greedy(policy, 0)
        eos = policy.tokenizer.eos
        assert answer.tokens == (said[: said.index(eos)] if eos in said else said)
        drawn = [
            list(engine.ask(prefix, max_tokens=6, temperature=1.0, top_k=9, seed=seed)) for seed in (1, 1, 2)
        ]
    assert drawn[0] == drawn[1]
    assert not policy.chain.answers
