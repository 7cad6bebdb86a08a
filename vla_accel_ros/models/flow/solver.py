"""One integration step of the flow: Euler, or second-order Adams-Bashforth.

Euler uses the velocity at the beginning of the step. Adams-Bashforth extrapolates to the middle of the step
from that velocity and the one before (Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations
I", III.1), so its error falls with the square of the step, for one more buffer and no more evaluations; its
first step is Euler's. Only the network's own velocity is extrapolated. Guidance is added as it is at the
beginning of the step: it can close a whole difference in one step and, extrapolated, would oscillate about
its target. So it closes as much as with Euler (models.flow.rtc.kept).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

EULER, AB2 = "euler", "ab2"
SOLVERS = (EULER, AB2)


class Rate(NamedTuple):
    """What a step adds to the velocity: more * the network's present one - carry * the one before."""

    more: float
    carry: float


def rates(solver: str, steps: int) -> list[Rate]:
    """Return the rate of each of `steps` equal steps. Raises ValueError if the solver is unknown."""
    if solver not in SOLVERS:
        raise ValueError(f"solver is '{solver}'; use one of {SOLVERS}.")
    first, later = Rate(0.0, 0.0), Rate(0.0, 0.0) if solver == EULER else Rate(0.5, 0.5)
    return [first] + [later] * (steps - 1)


def extrapolated(
    found: Tensor, own: Tensor, before: Tensor, more: float | Tensor, carry: float | Tensor
) -> Tensor:
    """Return the velocity of a step, all [..., H, A]. found: guided. own: unguided. before: `own` of the step
    before; it must be finite even in the first step, which ignores it."""
    return found + (more * own - carry * before)
