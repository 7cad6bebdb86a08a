"""Tasks that a fleet could have done: of a few kinds, with the time of each chunk."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.fleet.simulator.traces import RecordedRound
from vla_accel_ros.fleet.simulator.workloads import SPREAD

KINDS, CHUNK, STEP_S = 6, 50, 1.0 / 30.0
HORIZON, ACTIONS, SERVED_S = (15, 40), (100, 400), 0.3
"""Of a kind: what is executed of a chunk, the mean length; what a chunk takes in the mean."""


def make_tasks(tasks: int, load: float, seed: int) -> list[RecordedRound]:
    """Rounds of so many tasks, which come as a Poisson process. load: of a replica that computes one chunk
    at a time."""
    chance = np.random.default_rng(seed)
    horizons = chance.integers(HORIZON[0], HORIZON[1] + 1, KINDS)
    lengths = np.exp(chance.uniform(np.log(ACTIONS[0]), np.log(ACTIONS[1]), KINDS))
    rounds, at_s, between_s = [], 0.0, float(np.mean(lengths / horizons)) * SERVED_S / load
    for number in range(tasks):
        kind = int(chance.integers(KINDS))
        left = max(1, round(lengths[kind] * chance.lognormal(0.0, SPREAD)))
        place = 0
        while left > 0:
            actions = min(int(horizons[kind]), left)
            served_s = SERVED_S * chance.lognormal(0.0, SPREAD)
            rounds.append(
                RecordedRound(
                    f"/r{number}",
                    f"{kind}",
                    actions,
                    CHUNK,
                    f"/r{number}",
                    place,
                    asked_s=at_s,
                    served_s=served_s,
                    step_s=STEP_S,
                )
            )
            left, place = left - actions, place + 1
        at_s += chance.exponential(between_s)
    return rounds
