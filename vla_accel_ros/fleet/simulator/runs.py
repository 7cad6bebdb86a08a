"""A whole run from a few options: workload, rule, load or number of robots, seed; its figures, and
whether they would be the same in a longer one.

A load is relative to the rate of the first replica at static horizons in full batches: at 1.0, as many rounds
arrive in a second as it computes. Tasks arrive as a Poisson process, at the same times for every rule and
horizon.

Little's law: in a stationary system the number of tasks under way is the rate at which they end, times their
mean latency. It is checked over the time in which new tasks come, without its first quarter. If it is off by
more than 1 %, the figures depend on the length of the run: a queue grows (a load above 1), some tasks are put
off until the end, or the run is too short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.simulator.robot import Robot
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import STATIC, Script, Workload, draw

Make = Callable[[FleetSetup], FleetRule]


@dataclass(frozen=True)
class Load:
    """What a fleet does. scripts: tasks with the simulated horizon. static: the same tasks with static
    horizons, to which loads are relative. seed: of the arrivals. arrived_s: recorded arrival times, if
    any."""

    scripts: Sequence[Script]
    static: Sequence[Script]
    seed: int = 0
    arrived_s: Sequence[float] | None = None

    @classmethod
    def of(cls, workload: Workload, seed: int, horizon: str = STATIC, tasks: int | None = None) -> Load:
        """Draw tasks from a seed."""
        return cls(draw(workload, seed, horizon, tasks), draw(workload, seed, STATIC, tasks), seed)

    def arrivals_s(self, load: float, replica: ReplicaProfile) -> np.ndarray:
        """Return the arrival times of the tasks. Raises ValueError if the load is not positive."""
        if not load > 0:
            raise ValueError(f"the load is {load}; give a number above 0, 1 for as much as can be served.")
        rounds = sum(script.rounds for script in self.static) / len(self.static)
        batch_s = replica.serves_s(replica.limit) - replica.network_s
        tasks_s = load * replica.limit / batch_s / rounds
        return np.random.default_rng([self.seed, 3]).exponential(1.0 / tasks_s, len(self.scripts)).cumsum()


def open_loop(
    what: Load,
    make: Make,
    load: float | None,
    replicas: Mapping[str, ReplicaProfile],
    settings: Settings | None = None,
) -> Outcome:
    """Run tasks that arrive on their own, each with its own robot. load: None uses the recorded arrival
    times. Raises ValueError if there are none."""
    if load is not None:
        first = next(iter(replicas.values()))
        arrivals_s = what.arrivals_s(load, first).tolist()
    elif what.arrived_s is not None:
        arrivals_s = list(what.arrived_s)
    else:
        raise ValueError("the trace has no arrival times; give a load.")
    return Simulation(replicas, make, settings).open(what.scripts, arrivals_s)


def closed_fleet(
    what: Load,
    make: Make,
    robots: int,
    replicas: Mapping[str, ReplicaProfile],
    settings: Settings | None = None,
) -> Outcome:
    """Run the tasks back to back on a fixed number of robots. Raises ValueError for fewer than one robot."""
    if robots < 1:
        raise ValueError(f"there are {robots} robots; give 1 or more.")
    return Simulation(replicas, make, settings).closed(what.scripts, robots)


PERCENTILES = (25, 50, 95, 99)
WARM_UP = 0.25
"""Share of the time in which tasks begin that is left out."""
TOLERANCE = 0.01
"""Of Little's law."""


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a run. latency_s: from a task's first request to the end of its last action.
    first_wait_s: of it, until the first chunk came. stall_s: of it, how long the robot stood still later; the
    rest is motion. observation_age_s: at the arrival of each chunk. gpu_load: share of the run that each
    replica computed. rounds: of a task. batch: mean size. beyond: share of actions executed beyond the
    horizon. tasks_per_robot: 1 where each task has its own robot. tasks_per_min: that end, without warm-up.
    little: the rate of ends times the mean latency, over the number under way (see the module). stationary:
    whether it is 1 within 1 %.

    Of a fleet whose robots do tasks back to back, only tasks are counted that ended while all robots had work
    and after the warm-up, if there are any; else all.

    Raises ValueError if no task ended.
    """
    if not outcome.robots:
        raise ValueError("no task ended; give one or more.")
    begun_s = min(robot.began_s for robot in outcome.robots)
    last_s = max(robot.began_s for robot in outcome.robots)
    since_s = begun_s + WARM_UP * (last_s - begun_s)
    every = list(zip(outcome.robots, outcome.ends_s, strict=True))
    steady = [(robot, end_s) for robot, end_s in every if since_s < end_s <= last_s]
    little = _little(every, steady, since_s, last_s)
    counted = steady if outcome.fleet and steady else every
    robots = [robot for robot, _ in counted]
    run_s = outcome.ended_s - begun_s
    return {
        "tasks": len(every),
        "tasks_per_robot": len(every) / (outcome.fleet or len(every)),
        "run_s": run_s,
        "tasks_per_min": 60.0 * len(steady) / (last_s - since_s) if steady else 0.0,
        "little": little,
        "stationary": abs(little - 1.0) <= TOLERANCE,
        "latency_s": _spread([end_s - robot.began_s for robot, end_s in counted]),
        "first_wait_s": _spread([robot.first_wait_s for robot in robots]),
        "stall_s": _spread([robot.stalled_s for robot in robots]),
        "observation_age_s": _spread([age_s for robot in robots for age_s in robot.ages_s]),
        "gpu_load": {lane: busy_s / run_s for lane, busy_s in outcome.busy_s.items()},
        "rounds": sum(robot.rounds for robot in robots) / len(robots),
        "batch": float(np.mean(outcome.batches)),
        "beyond": sum(robot.beyond for robot in robots) / sum(robot.script.actions for robot in robots),
    }


def _little(
    every: list[tuple[Robot, float]], steady: list[tuple[Robot, float]], since_s: float, until_s: float
) -> float:
    """Return the rate of ends times the mean latency, over the mean number of tasks under way, from since_s
    to until_s; 0 if nothing ended then."""
    if not steady:
        return 0.0
    latencies_s = sum(end_s - robot.began_s for robot, end_s in steady)
    under_way_s = sum(max(0.0, min(end_s, until_s) - max(robot.began_s, since_s)) for robot, end_s in every)
    return latencies_s / under_way_s


def _spread(values: list[float]) -> dict[str, float]:
    quantiles = np.percentile(values, PERCENTILES)
    spread = {f"p{q}": float(value) for q, value in zip(PERCENTILES, quantiles, strict=True)}
    return {"avg": float(np.mean(values)), **spread}
