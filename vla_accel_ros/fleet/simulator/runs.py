"""A whole run from a few words: workload, policy, load or number of robots, seed.

A load is relative to what the first replica can serve at static horizons in full batches: at 1.0 as many
rounds come in a second as it computes. Arrivals of tasks are Poisson, and the same for every policy and
horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.fleet.policies.policy import FleetPolicy, FleetSetup, ReplicaProfile
from vla_accel_ros.fleet.simulator.simulation import Outcome, Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import STATIC, Script, Workload, draw

Make = Callable[[FleetSetup], FleetPolicy]


@dataclass(frozen=True)
class Load:
    """What a fleet does. scripts: tasks at the horizon that is simulated. static: the same at static
    horizons, which loads are relative to. seed: of the arrivals. arrived_s: when tasks came, if that was
    recorded."""

    scripts: Sequence[Script]
    static: Sequence[Script]
    seed: int = 0
    arrived_s: Sequence[float] | None = None

    @classmethod
    def of(cls, workload: Workload, seed: int, horizon: str = STATIC, tasks: int | None = None) -> Load:
        """Drawn with a seed."""
        return cls(draw(workload, seed, horizon, tasks), draw(workload, seed, STATIC, tasks), seed)

    def arrivals_s(self, load: float, replica: ReplicaProfile) -> np.ndarray:
        """When tasks come. Raises ValueError for a load that is not positive."""
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
    """Tasks come by themselves, each with its robot. load: None for when they were recorded. Raises
    ValueError where they were not."""
    if load is not None:
        first = next(iter(replicas.values()))
        arrivals_s = what.arrivals_s(load, first).tolist()
    elif what.arrived_s is not None:
        arrivals_s = list(what.arrived_s)
    else:
        raise ValueError("when the tasks came was not recorded; give a load.")
    return Simulation(replicas, make, settings).open(what.scripts, arrivals_s)


def closed_fleet(
    what: Load,
    make: Make,
    robots: int,
    replicas: Mapping[str, ReplicaProfile],
    settings: Settings | None = None,
) -> Outcome:
    """So many robots do the tasks back to back. Raises ValueError for less than one robot."""
    if robots < 1:
        raise ValueError(f"there are {robots} robots; give 1 or more.")
    return Simulation(replicas, make, settings).closed(what.scripts, robots)
