"""From one velocity of the flow to the next x: by Euler, or by Adams-Bashforth of second order.

A step of Euler goes on with the velocity at its beginning. Adams-Bashforth extrapolates to the middle of the
step from that velocity and the one before (Hairer, Norsett and Wanner, "Solving Ordinary Differential
Equations I", III.1), so that its error falls with the square of the step, for one more buffer and no more
evaluations; its first step is Euler's. What is extrapolated is the network's velocity alone. Guidance is
added as it is at the step's beginning: it closes up to all of a difference in a step, and extrapolated it
would swing about its target for ever. So it closes what it closes with Euler (models.flow.rtc.kept).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

EULER, AB2 = "euler", "ab2"
SOLVERS = (EULER, AB2)


class Rate(NamedTuple):
    """What a step adds to the velocity: more * the network's own - carry * the one before."""

    more: float
    carry: float


def rates(solver: str, steps: int) -> list[Rate]:
    """Of each of `steps` equal steps. Raises ValueError for an unknown solver."""
    if solver not in SOLVERS:
        raise ValueError(f"solver is '{solver}'; use one of {SOLVERS}.")
    first, others = Rate(0.0, 0.0), Rate(0.0, 0.0) if solver == EULER else Rate(0.5, 0.5)
    return [first] + [others] * (steps - 1)


def extrapolated(
    found: Tensor, own: Tensor, before: Tensor, more: float | Tensor, carry: float | Tensor
) -> Tensor:
    """The velocity that a step goes on with, all [..., H, A]. found: with guidance; own: without; before: own
    of the step before, finite, and of no account in the first."""
    return found + (more * own - carry * before)
