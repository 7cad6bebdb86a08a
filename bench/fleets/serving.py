"""A full-size engine as a fleet's replica, and robots of two kinds with their own words and states."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from shared.models import read_options
from shared.policies import WORD
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.interpreter import keep_loaded
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.types import Observation

STEPS = 10
STEP_DT_S = 1 / 30
JOINTS = (7, 6)
"""Of each kind of robot."""
WORDS = (4, 8, 12, 16)
"""In the instructions of robots, one after another."""
OBSERVATIONS = 3
"""Different ones of each robot."""


@dataclass(frozen=True)
class Camera:
    """The part of a contract's camera that a replica reads."""

    name: str
    image: str
    max_pixels: int = 3840 * 2160

    def view(self, picture: np.ndarray) -> np.ndarray:
        """The whole picture, uint8 [H, W, 3]."""
        return picture


@dataclass(frozen=True)
class Arm:
    """The part of a robot's contract that a replica reads, so that none has to be parsed."""

    cameras: tuple[Camera, ...]
    joints: tuple[str, ...]

    @property
    def pictures(self) -> tuple[Camera, ...]:
        return self.cameras

    @property
    def joint_names(self) -> tuple[str, ...]:
        return self.joints

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.joints


@dataclass(frozen=True)
class Robots:
    """Names of robots, their embodiments, and their observations in the form in which they travel, pixels as
    arrays."""

    arms: dict[str, Arm]
    embodiments: dict[str, Embodiment]
    seen: dict[str, tuple[EncodedObservation, ...]]
    prompts: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arms)

    def embody(self, description: RobotDescription) -> tuple[Any, Embodiment]:
        """See LocalReplica."""
        return self.arms[description.robot], self.embodiments[description.robot]

    def observed(self, robot: str, number: int) -> EncodedObservation:
        """Its next observation, taken now."""
        observations = self.seen[robot]
        now_ns = time.monotonic_ns()
        observation = observations[number % len(observations)]
        return replace(observation, stamp_ns=now_ns, stamps_ns=dict.fromkeys(observation.images, now_ns))


def make_robots(policy: Policy, count: int, views: int, size: tuple[int, int], seed: int = 0) -> Robots:
    """Every second robot has another number of joints, with its own statistics; instructions have four
    lengths."""
    rng = np.random.default_rng(seed)
    images = policy.config.image_names[:views]
    cameras = tuple(Camera(f"camera {index}", image) for index, image in enumerate(images))
    kinds = [_kind(policy, joints, rng) for joints in JOINTS]
    arms, embodiments, observations, prompts = {}, {}, {}, set()
    for index in range(count):
        name, embodiment = f"/robot{index}", kinds[index % len(kinds)]
        words = " ".join([WORD] * WORDS[index % len(WORDS)])
        joints = tuple(f"joint {joint}" for joint in range(embodiment.policy.joints))
        arms[name], embodiments[name] = Arm(cameras, joints), embodiment
        variants = []
        for _ in range(OBSERVATIONS):
            state = rng.uniform(-1.0, 1.0, len(joints)).astype(np.float32)
            pixels = {camera.name: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for camera in cameras}
            variants.append(EncodedObservation(pixels, {}, state, words, 0))
            prompts.add(len(embodiment.policy.prompt(words, state)))
        observations[name] = tuple(variants)
    return Robots(arms, embodiments, observations, tuple(sorted(prompts)))


def _kind(policy: Policy, joints: int, rng: np.random.Generator) -> Embodiment:
    mean, spread = rng.uniform(-0.1, 0.1, joints), rng.uniform(0.9, 1.1, joints)
    normalizer = Normalizer.quantile(mean - spread, mean + spread)
    mask = np.zeros(joints, np.bool_)
    adapted = replace(policy, state_normalizer=normalizer, action_normalizer=normalizer, delta_mask=mask)
    return Embodiment(adapted, STEP_DT_S)


def options_of(setting: str) -> dict[str, Any]:
    """Options of the engine, "staggered=20,lanes=two". Raises ValueError for what is none."""
    settings = read_options(setting.split(","), setting)
    EngineConfig(fast=True, **settings)
    return settings


def make_engine(policy: Policy, setting: str, robots: Robots, views: int) -> Engine:
    """An engine with all stages that these robots need."""
    options = options_of(setting) if setting else {}
    slots = options.get("staggered", 1) + options.get("frames_together", 1) + 4
    engine = Engine(policy, **{"fast": True, "steps": STEPS, "slots": slots, **options})
    engine.prepare([views], robots.prompts)
    return engine


@contextmanager
def serving(policy: Policy, setting: str, robots: Robots, views: int) -> Iterator[LocalReplica]:
    """A replica that knows the robots."""
    replica = LocalReplica(make_engine(policy, setting, robots, views), robots.embody)
    try:
        for name in robots.names:
            replica.describe(RobotDescription("bench", name, "")).result(60)
        keep_loaded()  # as a node does: a look at all that is loaded holds up every robot
        yield replica
    finally:
        gc.unfreeze()
        replica.close()
        del replica
        gc.collect()


def round_of(robot: str, number: int) -> Round:
    return Round("bench", robot, 0, number)


def as_observation(robots: Robots, robot: str) -> Observation:
    """As the engine takes it."""
    observation, arm = robots.observed(robot, 0), robots.arms[robot]
    images = {camera.image: cast(np.ndarray, observation.images[camera.name]) for camera in arm.cameras}
    return Observation(images, observation.state, observation.instruction, observation.stamp_ns, robot=robot)


def mixed(robots: Robots, number: int) -> Sequence[str]:
    """So many names, one robot after another."""
    return [robots.names[index % len(robots.names)] for index in range(number)]
