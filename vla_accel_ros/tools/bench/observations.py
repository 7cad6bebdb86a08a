"""Observations to measure a checkpoint on: from a bag, or of the simulated arm that it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.recording.robots import chosen_robot, contract_of
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo_policy.rollout import Session, Timing
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.types import Observation

TIMING = Timing(period=3, latency=4)
EVERY = 4
"""One in so many of the simulated arm's observations is kept."""


def recorded(path: Path, limit: int, robot: str = "") -> tuple[list[Observation], Path, Contract]:
    """Return at most `most` observations of a robot, spread over a bag, with the checkpoint and contract of
    its first session. Its sessions with others are left out.

    robot: its namespace, "/" for none; it may be empty if there is only one. Raises ValueError if the bag has
    no session, several robots and none is named, or no complete observation.
    """
    bag = Bag(path)
    moments = Moments(bag)
    sessions = moments.sessions_of(chosen_robot(bag, robot))
    contract = contract_of(sessions[0])
    same = [
        session.id
        for session in sessions
        if (session.model, session.contract) == (sessions[0].model, sessions[0].contract)
    ]
    cameras = {picture.name: picture for picture in contract.pictures}
    count = moments.complete(same)
    numbers = set(np.linspace(0, count - 1, min(limit, count)).astype(int).tolist())
    observations: list[Observation] = []
    for number, moment in enumerate(moments.of(same)):
        if number in numbers:
            images = {cameras[n].image: cameras[n].view(pixels) for n, pixels in moment.images.items()}
            observations.append(Observation(images, moment.state, moment.instruction, moment.stamp_ns))
    if not observations:
        raise ValueError(f"{path} has no observation with all its images; record the cameras, too.")
    return observations, Path(sessions[0].model), contract


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
        observation = super().observe(instruction, now_ns, blank)
        self.seen.append(
            Observation(
                {name: np.array(pixels) for name, pixels in observation.images.items()},
                observation.state,
                observation.instruction,
                observation.stamp_ns,
            )
        )
        return observation
