"""Observations to measure a checkpoint on: from a bag, or of the simulated arm that it moves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo_policy.rollout import Session, Timing
from vla_accel_ros.tools.replay.moments import Moments, contract_file
from vla_accel_ros.types import Observation

TIMING = Timing(period=3, latency=4)
EVERY = 4
"""One in so many of the simulated arm's observations is kept."""


def recorded(path: Path, most: int) -> tuple[list[Observation], Path, Contract]:
    """Return at most `most` observations, spread over a bag, with the checkpoint and contract of its first
    session.

    Raises ValueError if the bag has no session, or no complete observation in it.
    """
    moments = Moments(Bag(path))
    session = next(iter(moments.sessions.values()))
    with tempfile.TemporaryDirectory() as folder:
        contract = Contract.load(contract_file(session, Path(folder)))
    names = {camera.name: camera.image for camera in contract.cameras}
    stride = max(1, moments.counts["observations"] // most)
    found: list[Observation] = []
    for number, moment in enumerate(moments.of([session.id])):
        if number % stride == 0 and len(found) < most:
            images = {names[camera]: pixels for camera, pixels in moment.images.items()}
            found.append(Observation(images, moment.state, moment.instruction, moment.stamp_ns))
    if not found:
        raise ValueError(f"{path} has no observation with all its images; record the cameras, too.")
    return found, Path(session.model), contract


def simulated(engine: Engine, contract: Contract, count: int) -> list[Observation]:
    """Return `count` observations of the simulated arm, moved by the policy in tasks of all families
    in turn."""
    session, seed = _Watched(engine, SimRobot(), contract, TIMING), 0
    while len(session.seen) < count * EVERY:
        choices = tasks(FAMILIES[seed % len(FAMILIES)])
        session.play(choices[seed // len(FAMILIES) % len(choices)], seed, ask_every=None)
        seed += 1
    return session.seen[::EVERY][:count]


class _Watched(Session):
    """Keeps all observations of the robot."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[Observation] = []

    def observe(self, instruction: str, now_ns: int, blank: bool = False) -> Observation:
        found = super().observe(instruction, now_ns, blank)
        self.seen.append(
            Observation(
                {name: np.array(pixels) for name, pixels in found.images.items()},
                found.state,
                found.instruction,
                found.stamp_ns,
            )
        )
        return found
