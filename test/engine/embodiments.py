"""Robots with their own joints, words and step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from builders import make_embodiment, make_observation

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation

STEPS, COUNT, TRAINED = 4, 3, 3


WORDS = {"left": "reach the red block", "right": "put the green block on the pad", "third": "follow the pad"}


JOINTS = {"left": 6, "right": 4, "third": 7}


STEP_S = {"left": 1 / 30, "right": 0.05, "third": 0.02}


def make_robots(policy: Policy) -> dict[str, Embodiment]:
    """Two robots: of the policy's own statistics, and of four joints, of which some are relative."""
    relative = np.array([True, False, True, True])
    right = make_embodiment(policy, JOINTS["right"], STEP_S["right"], delta_mask=relative)
    return {"left": Embodiment(policy, STEP_S["left"]), "right": right}


def observation(robot: str, number: int = 0, stamp_ns: int = 0) -> Observation:
    state = np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS[robot]).astype(np.float32)
    seen = make_observation(number, instruction=WORDS[robot], stamp_ns=stamp_ns or 10**9 + number)
    return replace(seen, state=state, robot=robot)


def alone(robot: Embodiment, **options: Any) -> Engine:
    """An engine that serves nobody else."""
    return Engine(robot.policy, step_dt_s=robot.step_dt_s, steps=STEPS, **options)


def assert_equal(ours: object, theirs: object) -> None:
    """All of a chunk but the version of its frame and its number."""
    assert isinstance(ours, Chunk) and isinstance(theirs, Chunk)
    assert (ours.stamp_ns, ours.step_dt_s) == (theirs.stamp_ns, theirs.step_dt_s)
    for name in ("actions", "update_magnitudes", "step_magnitudes", "state"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
