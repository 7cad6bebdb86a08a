"""What a policy's actions are, judged by where actions and states lay in training.

A checkpoint rarely says it, and the wrong reading moves a robot to the wrong place. Absolute targets lie
where the joints were. Targets relative to the joints, velocities, and displacements of a hand lie about zero,
wherever the state was. The means tell the two apart in every number whose state was away from zero, in units
of the state's own deviation; elsewhere nothing is decided. They do not tell the three others apart: only who
trained the policy knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ABSOLUTE, DELTA, UNDECIDED = "absolute", "delta", ""
OTHERS = (
    "targets relative to the joints (actions: joints, with action: delta), velocities of the joints (action: "
    "velocity), or a hand's displacement or pose (actions: hands, or actions: twist for MoveIt Servo)"
)
_NEAR, _FAR = 1.0, 2.0
"""Deviations of the state within which an action's mean belongs to zero or to the state's mean, and by which
it must miss the other one."""
_STILL = 1e-6


@dataclass(frozen=True)
class Reading:
    """action: ABSOLUTE; DELTA for whatever lies about zero and not at the state; UNDECIDED. numbers: the
    evidence in words."""

    action: str
    numbers: str


def read_actions(state: np.ndarray, actions: np.ndarray) -> list[Reading]:
    """One reading for each number that both have. state, actions: mean and deviation, float64 [2, D] each."""
    readings = []
    for (centre, spread), mean in zip(state.T, actions[0], strict=False):
        unit = max(float(spread), _STILL)
        to_zero, to_state = abs(mean) / unit, abs(mean - centre) / unit
        action = UNDECIDED
        if to_zero <= _NEAR and to_state >= _FAR:
            action = DELTA
        elif to_state <= _NEAR and to_zero >= _FAR:
            action = ABSOLUTE
        numbers = (
            f"action mean {round(mean, 3):g}, state mean {round(centre, 3):g} +- {round(spread, 3):g}: "
            f"{to_zero:.1f} from zero, {to_state:.1f} from the state in those deviations"
        )
        readings.append(Reading(action, numbers))
    return readings
