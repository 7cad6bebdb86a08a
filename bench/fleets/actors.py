"""A replica that a Ray actor makes for itself: full-size random weights from a seed, without a file or a
network."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fleets.serving import as_observation, make_engine, make_robots
from shared.models import config_of
from shared.policies import random_policy
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.types import Observation


@dataclass(frozen=True)
class Making:
    """Makes a replica in the actor's process, on the GPU that Ray gives it. kind, small: which model;
    setting: of the engine; robots, views, size, seed: see make_robots, which makes the same ones in every
    process."""

    kind: str
    small: bool
    setting: str
    robots: int
    views: int
    size: tuple[int, int]
    seed: int

    def __call__(self) -> tuple[LocalReplica, Observation]:
        """A replica, and what it is measured with."""
        device, dtype = torch.device("cuda"), torch.bfloat16
        if self.small:
            torch.set_num_threads(1)
            device, dtype = torch.device("cpu"), torch.float32
        policy = random_policy(config_of(self.kind, self.small), device, dtype)
        robots = make_robots(policy, self.robots, self.views, self.size, self.seed)
        engine = make_engine(policy, self.setting, robots, self.views)
        for name, embodiment in robots.embodiments.items():
            engine.runner.robots.add(name, embodiment)
        return LocalReplica(engine, robots.embody), as_observation(robots, robots.names[0])
