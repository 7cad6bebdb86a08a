"""A whole run from a few options: workload, rule, load or number of robots, seed.

A load is relative to the rate of the first replica at static horizons in full batches: at 1.0, as many rounds
arrive in a second as it computes. Tasks arrive as a Poisson process, at the same times for every rule and
horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.fleet.rules.rule import FleetRule, FleetSetup, ReplicaProfile
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
