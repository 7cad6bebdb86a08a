"""The bundled policy's actions on frames of simulated tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Observation

STEP_DT_S = 1 / 30


def frames(count: int, seed: int = 0) -> Iterator[Observation]:
    """So many observations of the expert at its tasks, a few of each episode. seed: of the first episode."""
    sys.path.append(str(Path(__file__).parents[2]))
    from training.demonstrations import draw_task, record_episode
    from training.expert import Expert
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


def chunks(engine: Engine, observations: Sequence[Observation]) -> np.ndarray:
    """float32 [observations, H, D] rad, from the same noise for every engine."""
    config, actions = engine.policy.config, []
    for seed, observation in enumerate(observations):
        noise = np.random.default_rng(seed).standard_normal((config.horizon, config.action_dim), np.float32)
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix, noise=noise).actions)
    return np.stack(actions)


def moved_rms_mrad(expected: np.ndarray, states: np.ndarray) -> float:
    """How far they move, in milliradians."""
    return round(1e3 * float(np.sqrt(np.mean((expected - states) ** 2))), 2)
