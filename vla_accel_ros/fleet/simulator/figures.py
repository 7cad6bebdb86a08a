"""Figures of a simulated run."""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_accel_ros.fleet.simulator.simulation import Outcome

PERCENTILES = (25, 50, 95, 99)


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a run. latency_s: from a task's first request to the end of its last action.
    stall_s: how long a robot stood still within its task. observation_age_s: at the arrival of each chunk.
    gpu_load: share of the run that each replica computed. rounds: of a task. batch: mean size. beyond: share
    of actions executed beyond the horizon.

    Raises ValueError if no task ended.
    """
    if not outcome.robots:
        raise ValueError("no task ended; give one or more.")
    robots = outcome.robots
    latency_s = [end_s - robot.began_s for robot, end_s in zip(robots, outcome.ends_s, strict=True)]
    ages_s = [age_s for robot in robots for age_s in robot.ages_s]
    begun_s = min(robot.began_s for robot in robots)
    run_s = outcome.ended_s - begun_s
    return {
        "tasks": len(robots),
        "run_s": run_s,
        "latency_s": _spread(latency_s),
        "stall_s": _spread([robot.stalled_s for robot in robots]),
        "first_wait_s": _spread([robot.task.first_waited_s for robot in robots]),
        "observation_age_s": _spread(ages_s),
        "gpu_load": {lane: busy_s / run_s for lane, busy_s in outcome.busy_s.items()},
        "rounds": sum(robot.rounds for robot in robots) / len(robots),
        "batch": float(np.mean(outcome.batches)),
        "beyond": sum(robot.beyond for robot in robots) / sum(robot.script.actions for robot in robots),
    }


def _spread(values: list[float]) -> dict[str, float]:
    found = np.percentile(values, PERCENTILES)
    spread = {f"p{q}": float(value) for q, value in zip(PERCENTILES, found, strict=True)}
    return {"avg": float(np.mean(values)), **spread}
