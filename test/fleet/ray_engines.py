"""Engines of a small random policy for Ray's actors, which import this file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from builders import make_embodiment, make_observation, make_policy

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.types import Observation

STEP_S = 1 / 30
CAMERAS = {"front": "base_0_rgb", "wrist": "left_wrist_0_rgb"}
JOINTS = {"/left": 6, "/right": 4}


def make() -> tuple[LocalReplica, Observation]:
    """Of robots /left and /right."""
    policy = make_policy("pi0")
    arm = Contract.load(Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml")
    cameras = tuple(replace(arm.cameras[0], name=name, image=image) for name, image in CAMERAS.items())
    known = {"/left": Embodiment(policy, STEP_S), "/right": make_embodiment(policy, JOINTS["/right"], STEP_S)}

    def embody(robot: RobotDescription) -> tuple[Contract, Embodiment]:
        if robot.robot not in known:
            raise ValueError(f"there are no statistics of {robot.robot}")
        joints = arm.joints[:1] * JOINTS[robot.robot]
        return replace(arm, cameras=cameras, joints=joints), known[robot.robot]

    engine = Engine(policy, step_dt_s=STEP_S, seed=5, slots=4, steps=4)
    return LocalReplica(engine, embody), make_observation(0)


def refused() -> tuple[LocalReplica, Observation]:
    """Does not fit."""
    raise ValueError("the model has no camera base_0_rgb")


class Failing:
    """As nodes.fleet.engines.Making; the first `times` attempts fail. folder: counts them for all
    processes."""

    load = SimpleNamespace(device="cpu")

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def __call__(self) -> tuple[LocalReplica, Observation]:
        for number in range(self.times):
            with suppress(FileExistsError):
                (self.folder / str(number)).touch(exist_ok=False)
                raise RuntimeError(f"attempt {number}: CUDA out of memory")
        return make()


def seen(robot: str, number: int = 0) -> EncodedObservation:
    """Noise."""
    observation = make_observation(number, stamp_ns=10**9 + number)
    images = {name: observation.images[image] for name, image in CAMERAS.items()}
    state = np.random.default_rng(number).uniform(-0.5, 0.5, JOINTS[robot]).astype(np.float32)
    stamp_ns = 10**9 + number
    return EncodedObservation(images, dict.fromkeys(images, stamp_ns), state, "reach the red block", stamp_ns)
