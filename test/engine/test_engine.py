"""One prefix, many readers: what observe and act compute, hold and refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, JOINTS, make_observation, make_policy
from guiding import guidance_to

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.policy import Policy

KINDS = ("pi0", "pi05")
POLICIES = {kind: make_policy(kind) for kind in KINDS}
RELATIVE = {kind: make_policy(kind, delta_mask=np.ones(JOINTS, bool)) for kind in KINDS}
NOISE = np.random.default_rng(7).standard_normal((8, 8), dtype=np.float32)


@pytest.fixture(params=KINDS)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]


@pytest.fixture
def engine(policy: Policy) -> Engine:
    return Engine(policy)


def test_a_chunk_is_the_models_own_result_in_the_robots_units(engine: Engine, policy: Policy) -> None:
    """Written out: encode, prefix, ten flow steps, unnormalise."""
    observation, model = make_observation(), policy.model
    with torch.no_grad():
        inputs = policy.inputs(observation)
        embs = torch.cat((model.encode(inputs.images).flatten(0, 1), model.embed_tokens(inputs.tokens)))[None]
        _, kv = model.prefix(embs)
        flow = sample(
            lambda x, t: model.velocity(x, torch.tensor([t]), inputs.state[None], kv),
            torch.tensor(NOISE)[None],
        )
    with engine.observe(observation) as prefix:
        chunk = engine.act(prefix, noise=NOISE)
        assert prefix.n_tokens == embs.shape[1]
    assert chunk.actions.dtype == np.float32
    assert np.array_equal(chunk.actions, policy.actions(flow.actions[0], observation.state))
    expected = flow.update[0, :, :JOINTS].square().mean(-1).sqrt().numpy()
    assert np.array_equal(chunk.update_magnitudes, expected)


def test_a_chunk_says_where_it_comes_from(policy: Policy) -> None:
    engine = Engine(policy, step_dt_s=0.02)
    with (
        engine.observe(make_observation(stamp_ns=5)) as first,
        engine.observe(make_observation(stamp_ns=9)) as second,
    ):
        chunks = [engine.act(second), engine.act(first), engine.act(second)]
    assert [chunk.stamp_ns for chunk in chunks] == [9, 5, 9]
    assert [chunk.kv_version for chunk in chunks] == [second.version, first.version, second.version]
    assert [chunk.request_id for chunk in chunks] == [0, 1, 2]
    assert second.version > first.version
    assert {chunk.step_dt_s for chunk in chunks} == {0.02}
    assert chunks[0].actions.shape == (8, JOINTS)


def test_noise_depends_on_seed_and_request_alone(policy: Policy) -> None:
    def chunks(seed: int, extra_frames: int) -> list[np.ndarray]:
        engine = Engine(policy, seed=seed)
        for index in range(extra_frames):
            engine.observe(make_observation(index)).release()
        with engine.observe(make_observation(3)) as prefix:
            return [engine.act(prefix).actions for _ in range(2)]

    first, again, other = chunks(0, 0), chunks(0, 3), chunks(1, 0)
    assert np.array_equal(first, again)
    assert not np.allclose(first[0], first[1])
    assert not np.allclose(first[0], other[0])


@pytest.mark.parametrize("cameras", [CAMERAS[:1], CAMERAS[1:]])
def test_an_absent_camera_is_left_out_and_equals_a_masked_one(
    policy: Policy, cameras: tuple[str, ...]
) -> None:
    """The reference feeds -1 everywhere and masks it; here its tokens are not even computed."""
    observation, model = make_observation(cameras=cameras), policy.model
    engine = Engine(policy)
    with engine.observe(observation) as prefix:
        ours = engine.act(prefix, noise=NOISE)
    tokens = model.config.vision.tokens
    assert prefix.n_tokens == engine.policy.inputs(make_observation()).tokens.numel() + tokens
    inputs = policy.inputs(observation)
    present = torch.tensor([name in cameras for name in CAMERAS])
    images = torch.full((2, 3, 28, 28), -1.0)
    images[present] = inputs.images
    with torch.no_grad():
        embs = torch.cat((model.encode(images).flatten(0, 1), model.embed_tokens(inputs.tokens)))[None]
        valid = torch.cat(
            (present.repeat_interleave(tokens), torch.ones(inputs.tokens.numel(), dtype=torch.bool))
        )
        _, kv = model.prefix(embs, (valid[:, None] & valid)[None], valid.cumsum(0)[None] - 1)
        flow = sample(
            lambda x, t: model.velocity(x, torch.tensor([t]), inputs.state[None], kv, valid[None]),
            torch.tensor(NOISE)[None],
        )
    np.testing.assert_allclose(ours.actions, policy.actions(flow.actions[0], observation.state), atol=1e-5)


def test_pi0_acts_from_the_newest_state_and_pi05_from_its_prompts() -> None:
    """Relative actions are relative to the state that the network was given."""
    newer = np.full(JOINTS, 0.25, np.float32)
    for kind, policy in RELATIVE.items():
        engine = Engine(policy)
        with engine.observe(make_observation()) as prefix:
            plain = engine.act(prefix, noise=NOISE).actions
            moved = engine.act(prefix, newer, noise=NOISE).actions
        if kind == "pi05":
            assert np.array_equal(plain, moved)
            continue
        observed = dataclasses.replace(make_observation(), state=newer)
        with engine.observe(observed) as prefix:
            assert np.array_equal(engine.act(prefix, noise=NOISE).actions, moved)
        assert not np.allclose(plain, moved)


def test_a_refused_observation_costs_no_slot_and_no_version(policy: Policy) -> None:
    engine = Engine(policy)
    for _ in range(10):
        with pytest.raises(ValueError, match=r"observation\.images is empty"):
            engine.observe(make_observation(cameras=()))
    assert engine.runner.prefixes.newest() is None
    assert engine.runner.pool.free == engine.runner.pool.slots
    with engine.observe(make_observation()) as prefix:
        assert prefix.version == 0


def test_releasing_twice_takes_nobody_elses_reference(engine: Engine) -> None:
    mine = engine.observe(make_observation())
    theirs = engine.runner.prefixes.newest()
    assert theirs is not None
    for _ in range(3):
        mine.release()
    engine.act(theirs)
    with pytest.raises(ValueError, match="prefix 0 was released"):
        engine.act(mine)
    with pytest.raises(ValueError, match="prefix 0 was released"):
        engine.ask(mine)
    theirs.release()


def test_the_caller_may_change_its_arrays_afterwards(engine: Engine) -> None:
    observation = make_observation()
    with engine.observe(observation) as prefix:
        before = engine.act(prefix, noise=NOISE).actions
        observation.state[:] = 9
        for image in observation.images.values():
            image[:] = 0
        assert np.array_equal(engine.act(prefix, noise=NOISE).actions, before)


def test_nothing_of_the_pool_is_allocated_after_construction(engine: Engine) -> None:
    places = (engine.runner.pool.k.data_ptr(), engine.runner.pool.v.data_ptr())
    for seed in range(6):
        with engine.observe(make_observation(seed)) as prefix:
            engine.act(prefix)
    assert (engine.runner.pool.k.data_ptr(), engine.runner.pool.v.data_ptr()) == places


@pytest.mark.parametrize("jacobian", ["identity", "exact"])
def test_guidance_pulls_a_chunk_towards_the_one_being_executed(jacobian: str) -> None:
    """Nine steps later, in the robot's units and, for relative actions, from another state."""
    for policy in (*POLICIES.values(), *RELATIVE.values()):
        engine = Engine(policy, step_dt_s=0.1)
        with engine.observe(make_observation(0, stamp_ns=0)) as first:
            previous = engine.act(first, noise=NOISE)
        with engine.observe(make_observation(1, stamp_ns=200_000_000)) as second:
            guidance = guidance_to(engine, second, previous, delay=3, jacobian=jacobian)
            free = engine.act(second, noise=NOISE[::-1].copy())
            guided = engine.act(second, noise=NOISE[::-1].copy(), guidance=guidance)
        rest = previous.actions[2:]
        assert guidance.previous.shape == (6, 8)
        restored = policy.actions(guidance.previous, second.state)
        np.testing.assert_allclose(restored, rest, atol=1e-5)
        assert np.abs(guided.actions[:3] - rest[:3]).mean() < np.abs(free.actions[:3] - rest[:3]).mean()


def test_a_previous_chunk_is_read_between_its_actions(engine: Engine, policy: Policy) -> None:
    """Cameras and actions have their own clocks: the new chunk begins 2.25 actions later."""
    with engine.observe(make_observation(stamp_ns=0)) as first:
        previous = engine.act(first)
    later = round(2.25 * previous.step_dt_s * 1e9)
    with engine.observe(make_observation(stamp_ns=later)) as second:
        guidance = guidance_to(engine, second, previous, delay=1)
    restored = policy.actions(guidance.previous, second.state)
    assert restored.shape == (5, JOINTS)
    expected = 0.75 * previous.actions[2:7] + 0.25 * previous.actions[3:8]
    np.testing.assert_allclose(restored, expected, atol=1e-5)


def test_guidance_needs_an_overlap(engine: Engine) -> None:
    with engine.observe(make_observation(stamp_ns=10**9)) as prefix:
        chunk = engine.act(prefix)
        for stamp, sentence in ((0, "begins 30 actions after"), (10**10, "ends before the new one begins")):
            late = dataclasses.replace(prefix, stamp_ns=stamp)
            with pytest.raises(ValueError, match=sentence):
                guidance_to(engine, late, chunk, delay=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fewer_steps_and_lower_precision_stay_finite(dtype: torch.dtype) -> None:
    for kind in KINDS:
        engine = Engine(make_policy(kind, dtype=dtype), steps=5, time_rule="lerobot")
        with engine.observe(make_observation()) as prefix:
            for steps in (None, 1, 3):
                chunk = engine.act(prefix, steps=steps)
                assert np.isfinite(chunk.actions).all()
                assert chunk.actions.dtype == chunk.update_magnitudes.dtype == np.float32


@pytest.mark.parametrize(
    ("fact", "given"),
    [
        (r"noise .*\[8, 6\]", {"noise": np.zeros((8, 6))}),
        (r"guidance\.previous", {"guidance": Guidance(torch.zeros(2, 3), 1, 2)}),
        ("steps is -1", {"steps": -1}),
        ("steps is 0", {"steps": 0}),
    ],
)
def test_arguments_are_checked(engine: Engine, fact: str, given: dict[str, Any]) -> None:
    with engine.observe(make_observation()) as prefix:
        with pytest.raises(ValueError, match=fact):
            engine.act(prefix, **given)
        assert isinstance(engine.act(prefix), object)
    assert engine.runner.pool.free == engine.runner.pool.slots - 1


def test_a_chunk_is_made_of_the_state_that_it_records() -> None:
    """A state in float64 is rounded before anything is computed of it."""
    engine = Engine(RELATIVE["pi0"])
    for seed in range(5):
        with engine.observe(make_observation()) as prefix:
            state = np.random.default_rng(seed).uniform(-0.5, 0.5, JOINTS)
            chunk = engine.act(prefix, state, NOISE)
            again = engine.act(prefix, chunk.state, NOISE)
            assert again.state.dtype == chunk.state.dtype == np.float32
        np.testing.assert_array_equal(chunk.actions, again.actions)
        np.testing.assert_array_equal(chunk.state, again.state)


def test_a_prefix_of_another_engine_is_refused(policy: Policy) -> None:
    engine, other = Engine(policy), Engine(policy)
    with engine.observe(make_observation()) as prefix, other.observe(make_observation(1)):
        for use in (other.act, other.ask, lambda prefix: other.ask(prefix, "reach")):
            with pytest.raises(ValueError, match="prefix 0 is another engine's"):
                use(prefix)
        engine.act(prefix)


def test_a_prefix_can_be_compared_and_printed(engine: Engine) -> None:
    with engine.observe(make_observation()) as prefix:
        assert isinstance(prefix, Prefix)
        assert "instruction='reach the red block'" in repr(prefix)
        assert "Engine" not in repr(prefix)


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu(kind: str) -> None:
    chunks, answers = [], []
    for device in ("cpu", "cuda"):
        engine = Engine(make_policy(kind, device=device))
        with engine.observe(make_observation()) as prefix:
            chunks.append(engine.act(prefix).actions)
            answers.append("".join(engine.ask(prefix, temperature=1.0)))
    np.testing.assert_allclose(chunks[0], chunks[1], atol=2e-5)
    assert answers[0] == answers[1]
