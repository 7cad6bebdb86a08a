"""The bundled policy's actions on frames of simulated tasks, and how far other engines' are from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Observation

STEP_DT_S = 1 / 30


def frames(count: int, seed: int = 0) -> Iterator[Observation]:
    """So many observations of the expert at its tasks, a few of each episode. seed: of the first episode."""
    from vla_accel_ros.sim.demonstrations import draw_task, record_episode
    from vla_accel_ros.sim.expert import Expert
    from vla_accel_ros.sim.robot import SimRobot
    from vla_accel_ros.tools.demo_policy.recipe import CAMERAS

    robot, number = SimRobot(), 0
    expert = Expert(robot)
    while number < count:
        seed += 1
        task = draw_task(np.random.default_rng(seed))
        for sample in record_episode(task, seed, robot=robot, expert=expert)[::4][: count - number]:
            images = {image: getattr(sample, camera) for image, camera in CAMERAS.items()}
            number += 1
            yield Observation(images, sample.state, sample.instruction, number)


def record(path: Path, count: int) -> None:
    """Write this many observations to a file, for a GPU without the simulation."""
    observations = list(frames(count))
    names = observations[0].images
    images = {f"image {name}": np.stack([each.images[name] for each in observations]) for name in names}
    np.savez_compressed(
        path,
        state=np.stack([observation.state for observation in observations]),
        instruction=np.array([observation.instruction for observation in observations]),
        **images,  # type: ignore[arg-type]  # one argument each
    )


def recorded(path: Path, most: int) -> list[Observation]:
    """At most this many observations of such a file."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    images = {name.removeprefix("image "): arrays[name] for name in arrays if name.startswith("image ")}
    return [
        Observation({name: each[row] for name, each in images.items()}, state, str(words), row + 1)
        for row, (state, words) in enumerate(zip(arrays["state"], arrays["instruction"], strict=True))
    ][:most]


def chunks(engine: Engine, observations: Sequence[Observation]) -> np.ndarray:
    """float32 [observations, H, D] rad, from the same noise for every engine."""
    config, actions = engine.policy.config, []
    for seed, observation in enumerate(observations):
        noise = np.random.default_rng(seed).standard_normal((config.horizon, config.action_dim), np.float32)
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix, noise=noise).actions)
    return np.stack(actions)


def apart(actions: np.ndarray, expected: np.ndarray, states: np.ndarray) -> dict[str, float]:
    """Errors of actions [N, H, D] in milliradians and relative to how far they move from joints [N, 1, D],
    and the cosine of all and of the worst observation."""
    off, moved = actions - expected, expected - states
    errors = {
        "rms_mrad": 1e3 * float(np.sqrt(np.mean(off**2))),
        "max_mrad": 1e3 * float(np.abs(off).max()),
        "over_moved": float(np.linalg.norm(off) / np.linalg.norm(moved)),
    }
    each = [cosine(ours, other) for ours, other in zip(actions - states, moved, strict=True)]
    rounded = {name: float(f"{value:.4g}") for name, value in errors.items()}
    return {
        **rounded,
        "cosine": float(f"{cosine(actions - states, moved):.7f}"),
        "worst": float(f"{min(each):.7f}"),
    }


def moved_rms_mrad(expected: np.ndarray, states: np.ndarray) -> float:
    """How far they move, in milliradians."""
    return round(1e3 * float(np.sqrt(np.mean((expected - states) ** 2))), 2)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two arrays of a shape."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
