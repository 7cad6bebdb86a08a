"""GR00T in the engine: chunks as its micro-requests give them, robots of several embodiments, captured
stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from groot_builders import KINDS, OTHER, TAG, add_embodiment, make_groot_folder
from guiding import guidance_to

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.checkpoints.checkpoint import load_policy, with_statistics
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.types import Observation

pytestmark = pytest.mark.usefixtures("same_kernels")
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """N1.7 with two embodiments."""
    path = make_groot_folder(tmp_path_factory.mktemp("groot") / "folder")
    add_embodiment(path)
    return path


@pytest.fixture(scope="module", params=KINDS)
def policy(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> GrootPolicy:
    if request.param == "groot_n1_7":
        return load(folder)
    return load(make_groot_folder(tmp_path_factory.mktemp("old") / "folder", "groot_n1_5", "lerobot"), None)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def load(folder: Path, tag: str | None = TAG, device: str = "cpu") -> GrootPolicy:
    policy = load_policy(folder, device, statistics=tag)
    assert isinstance(policy, GrootPolicy)
    return policy


def frame(
    policy: GrootPolicy, seed: int, robot: str = "", size: tuple[int, int] = (72, 96), turned: bool = False
) -> Observation:
    """turned: the last camera's height is the others' width."""
    rng, names = np.random.default_rng(seed), policy.config.image_names
    images = {name: rng.integers(0, 256, (*size, 3), np.uint8) for name in names}
    if turned:
        images[names[-1]] = images[names[-1]].swapaxes(0, 1).copy()
    state = rng.uniform(-0.3, 0.6, policy.settings.units.state.size).astype(np.float32)
    return Observation(images, state, f"pick up cube {seed}", stamp_ns=seed, robot=robot)


def chunk_of(policy: GrootPolicy, observation: Observation, noise: np.ndarray) -> np.ndarray:
    """Joint targets without an engine."""
    inputs = policy.inputs(observation)
    encoded = policy.encode(inputs.images, inputs.more["sizes"])
    prefix: Any = policy.prefill(encoded["seen"], encoded["taps"], inputs.tokens, inputs.more["sizes"])
    x = torch.from_numpy(noise)[None]
    for t in flow_times(STEPS, policy.time_rule):
        state, number = inputs.state[None], inputs.more["embodiment"]
        v = policy.denoise(x, torch.full((1,), t), **prefix, state=state, embodiment=number)
        x = x + (-1.0 / STEPS) * v
    return policy.actions(x[0], observation.state)


def act(engine: Engine, observation: Observation, **arguments: Any) -> np.ndarray:
    with engine.observe(observation) as prefix:
        return engine.act(prefix, **arguments).actions


def test_a_chunk_is_what_the_micro_requests_give_one_after_another(policy: GrootPolicy) -> None:
    engine = Engine(policy, steps=STEPS)
    for seed in (0, 1):
        observation = frame(policy, seed)
        noise = engine.runner.actor.noise(seed)
        np.testing.assert_array_equal(
            act(engine, observation, noise=seed), chunk_of(policy, observation, noise)
        )


def test_a_chunk_has_the_embodiments_steps_and_is_the_same_again(policy: GrootPolicy) -> None:
    engine, observation = Engine(policy, steps=STEPS), frame(policy, 3)
    with engine.observe(observation) as prefix:
        chunk = engine.act(prefix, noise=5)
    steps = policy.settings.units.steps or policy.config.horizon
    assert chunk.actions.shape == (steps, policy.joints)
    assert chunk.update_magnitudes.shape == (steps,)
    np.testing.assert_array_equal(act(Engine(policy, steps=STEPS), observation, noise=5), chunk.actions)


def test_a_newer_state_moves_relative_actions(folder: Path) -> None:
    policy = load(folder)
    engine, observation = Engine(policy, steps=STEPS), frame(policy, 1)
    with engine.observe(observation) as prefix:
        old, new = (
            engine.act(prefix, state, noise=1).actions
            for state in (observation.state, observation.state + 0.2)
        )
    assert not np.allclose(old, new)


def test_robots_of_two_embodiments_share_one_engine(folder: Path) -> None:
    first = load(folder)
    second = with_statistics(first, folder, statistics=OTHER)
    assert isinstance(second, GrootPolicy)
    robots = {"arm": Embodiment(first, 0.02), "other": Embodiment(second, 0.05)}
    engine = Engine(first, steps=STEPS, robots=robots)
    for seed, (name, policy) in enumerate({"arm": first, "other": second, "arm again": first}.items()):
        name = name.split()[0]
        observation = frame(policy, seed, name)
        chunk = act(engine, observation, noise=seed)
        np.testing.assert_array_equal(chunk, chunk_of(policy, observation, engine.runner.actor.noise(seed)))
        assert chunk.shape == ((9, 17) if name == "arm" else (5, 3))


def test_cameras_of_different_shapes_are_taken_together(folder: Path) -> None:
    policy = load(folder)
    observation = frame(policy, 2, turned=True)
    engine = Engine(policy, steps=STEPS)
    np.testing.assert_array_equal(
        act(engine, observation, noise=2), chunk_of(policy, observation, engine.runner.actor.noise(2))
    )
    with pytest.raises(ValueError, match=r"72 x 400 pixels .* tokens"):
        engine.observe(frame(policy, 2, size=(72, 400)))


def test_guided_chunks_follow_the_chunk_before(policy: GrootPolicy) -> None:
    engine = Engine(policy, steps=STEPS)
    with engine.observe(frame(policy, 1)) as prefix:
        before = engine.act(prefix, noise=3)
        free = engine.act(prefix, noise=4)
        guidance = guidance_to(engine, prefix, before, 2, 4, "ZEROS", "identity")
        guided = engine.act(prefix, noise=4, guidance=guidance)
    near, far = (np.abs(chunk.actions[:2] - before.actions[:2]).mean() for chunk in (guided, free))
    assert near < 0.5 * far


def test_staggered_chunks_are_the_whole_ones(policy: GrootPolicy) -> None:
    whole = Engine(policy, steps=STEPS)
    seats = Engine(policy, steps=STEPS, scheduling="staggered", staggered=2, slots=8)
    plain, staggered = (act(engine, frame(policy, 4), noise=4) for engine in (whole, seats))
    np.testing.assert_array_equal(staggered, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_captured_stages_give_the_plain_bits(tmp_path: Path, kind: str, device: str) -> None:
    policy = load(square(tmp_path / "square"), device=device)
    if kind == "groot_n1_5":
        policy = load(make_groot_folder(tmp_path / "old", kind, "lerobot"), None, device)
    assert policy.chain.capturable
    engines = Engine(policy, steps=STEPS), Engine(policy, steps=STEPS, fast=True)
    engines[1].prepare([1, 2], range(1, policy.config.max_prompt + 1))
    for seed in (0, 1):
        plain, fast = (act(engine, frame(policy, seed), noise=seed) for engine in engines)
        np.testing.assert_array_equal(fast, plain)


def test_images_that_keep_their_shape_are_not_captured(folder: Path) -> None:
    with pytest.raises(ValueError, match="fast"):
        Engine(load(folder), steps=STEPS, fast=True)


def square(path: Path) -> Path:
    """N1.7 whose images become squares of two blocks."""
    import json

    folder = make_groot_folder(path)
    file = folder / "processor_config.json"
    data = json.loads(file.read_text())
    data["processor_kwargs"]["letter_box_transform"] = True
    file.write_text(json.dumps(data))
    return folder
