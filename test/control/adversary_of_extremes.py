"""A random adversary of robots and parameters at the ends of what a contract and the nodes allow.

    python test/control/adversary_of_extremes.py --events N

It plays what adversary_of_many.py does with joints that are slow and hard to stop, or fast; with ranges of a
few degrees and of several turns; with limits of age that are short and long; with lead_s, blend_s,
watchdog_hz and execution_horizon at the ends of what may be set. Options are those of adversary.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from adversary import main
from adversary_of_many import EpisodeOfMany
from adversary_scene import MODES, Case, Robot, S
from world import Parameters

from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.limits.joint_limits import JointLimits

LEADS_S = (0.0, 0.01, 0.1, 0.3)


class EpisodeOfExtremes(EpisodeOfMany):
    """With what is above."""

    def __init__(self, case: Case) -> None:
        self._extreme = random.Random(f"extremes {case.seed}")
        self._watchdog_hz = self._extreme.choice((5, 20, 50, 200))
        super().__init__(case)

    def _robot(self, kind: str) -> Robot:
        robot, rng = super()._robot(kind), self._extreme
        d = len(robot.joints)

        def numbers(least: float, most: float) -> np.ndarray:
            return np.array([10.0 ** rng.uniform(least, most) for _ in range(d)])

        lower = np.array([rng.uniform(-10.0, 1.0) for _ in range(d)])
        velocity, acceleration = numbers(-1.5, 1.0), numbers(0.0, 2.5)
        limits = JointLimits(
            lower, lower + numbers(-1.0, 1.3), np.minimum(velocity, 5.0 * acceleration), acceleration
        )
        return replace(
            robot,
            limits=limits,
            home=(limits.lower + limits.upper) / 2,
            chunk_age_s=rng.choice((0.15, 0.5, 2.0)),
            joints_age_s=rng.choice((0.1, 0.5, 2.0)),
        )

    def _parameters(self) -> Parameters:
        rng = self._extreme
        mode, blend_s, lead_s = rng.choice(MODES), rng.choice((0.0, 0.05, 0.5, 2.0)), rng.choice(LEADS_S)
        return Parameters(Options(mode, blend_s, rng.choice((0, 1, 2, 8, 100))), lead_s)

    def _every(self, period_ns: int, happen: Callable[[], None]) -> None:
        super()._every(S // self._watchdog_hz if happen == self._watch else period_ns, happen)


if __name__ == "__main__":
    sys.exit(main(EpisodeOfExtremes, __doc__))
