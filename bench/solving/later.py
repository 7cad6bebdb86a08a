"""An experiment: steps that get shorter towards the actions, t = (1 - i / S) ** POWER.

Second-order Adams-Bashforth with steps of any sizes: with the ratio r of a step to the one before, the
velocity is (1 + r / 2) v - r / 2 v_before.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from vla_accel_ros.models.flow.sampling import Velocity
from vla_accel_ros.models.flow.solver import AB2, EULER
from vla_accel_ros.tools.bench.solvers import Integrate

POWER = 1.5
WAYS = ((EULER, 10), (AB2, 4), (AB2, 5), (AB2, 6))


def ways() -> dict[str, Integrate]:
    """By their names in the table."""
    return {f"{solver} {steps}, later": _integrate(solver, steps) for solver, steps in WAYS}


def _integrate(solver: str, steps: int) -> Integrate:
    times = [(1.0 - i / steps) ** POWER for i in range(steps + 1)]

    def integrate(velocity: Velocity, noise: Tensor) -> Tensor:
        x, before, last = noise, noise, 0.0
        for t, end in pairwise(times):
            v, size = velocity(x, t), end - t
            ratio = size / last if solver == AB2 and last else 0.0
            x = x + size * ((1.0 + ratio / 2.0) * v - ratio / 2.0 * before)
            before, last = v, size
        return x

    return integrate
