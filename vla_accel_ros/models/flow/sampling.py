"""Integration of the flow, from noise at t = 1 to actions at t = 0.

The state x stays float32 whatever the network's dtype, because the last updates are small against it. Two
published rules for the time of a step change actions by up to 5e-5: openpi adds dt in float32, lerobot takes
1 + i * dt. Both are here, so that either reference can be met exactly. The velocity is a function argument,
so that guidance can wrap it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.flow.solver import EULER, extrapolated, rates

TIME_RULES = ("openpi", "lerobot")
SUMMED = "summed"
"""A family's rule: as openpi's, but each sum is in float64 before it is float32 (mimic-video)."""
SHIFTED = "shifted:"
"""A family's rule of unequal steps, with its number s: t = s u / (1 + (s - 1) u) for u from 1 in equal steps
(Esser et al., 2024, "Scaling Rectified Flow Transformers", 5.3.2)."""

Velocity = Callable[[Tensor, float], Tensor]
"""(x float32 [B, H, A], flow time t) -> velocity float32 [B, H, A]."""

Guide = Callable[[Velocity], Velocity]
"""Wraps the network's velocity function, as models.flow.rtc.Guidance.guide does."""


class Flow(NamedTuple):
    """actions float32 [B, H, A], normalised. update float32 [B, H, A]: what the last step added to them."""

    actions: Tensor
    update: Tensor


class Samples(NamedTuple):
    """Sampled chunks on the host: actions float32 [B, H, A], normalised; magnitudes float32 [S, B, H]: how
    far each step moved each action, see kernels.reference.flow.Magnitudes."""

    actions: np.ndarray
    magnitudes: np.ndarray

    @classmethod
    def of(cls, flow: Flow, moved: Sequence[Tensor]) -> Samples:
        """Copies of a flow's actions and of each step's magnitudes [B, H]."""
        parts = flow.actions, torch.stack([*moved])
        return cls(*(part.detach().float().cpu().numpy() for part in parts))


class Pending:
    """Samples that may still be on their way to the host; these are there."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        return True

    def wait(self) -> Samples:
        """Returns the samples, which the caller owns; the same object each time."""
        return self._samples


def flow_times(steps: int, rule: str = "openpi") -> list[float]:
    """Return the time of each velocity evaluation: 1 first and, where steps are equal, 1 / steps (or a
    rounding of it) last. Raises ValueError if steps is below 1 or the rule is unknown."""
    if steps < 1:
        raise ValueError(f"steps is {steps}; sampling needs at least 1.")
    if rule.startswith(SHIFTED):
        shift = float(rule.removeprefix(SHIFTED))
        equal = [1.0 - i / steps for i in range(steps)]
        return [shift * u / (1.0 + (shift - 1.0) * u) for u in equal]
    if rule not in (*TIME_RULES, SUMMED):
        raise ValueError(f"time_rule is '{rule}'; use one of {TIME_RULES}.")
    if rule == "lerobot":
        return [1.0 + i * (-1.0 / steps) for i in range(steps)]
    wide: type[np.floating[Any]] = np.float64 if rule == SUMMED else np.float32
    t, dt, times = np.float32(1.0), wide(-1.0 / steps), []
    for _ in range(steps):
        times.append(float(t))
        t = np.float32(t + dt)
    return times


def flow_steps(steps: int, rule: str = "openpi") -> list[float]:
    """Return the size of each step, negative: equal but for a shifted rule. Raises ValueError as flow_times
    does."""
    times = flow_times(steps, rule)
    if not rule.startswith(SHIFTED):
        return [-1.0 / steps] * steps
    return [after - before for before, after in zip(times, [*times[1:], 0.0], strict=True)]


def sample(
    velocity: Velocity,
    noise: Tensor,
    steps: int = 10,
    time_rule: str = "openpi",
    solver: str = EULER,
    guide: Guide = lambda velocity: velocity,
    told: Callable[[Tensor], object] = lambda update: None,
) -> Flow:
    """Integrate from noise float32 [B, H, A] in `steps` steps, equal unless the time rule is shifted.

    solver: see models.flow.solver. guide: wraps the velocity; the solver does not extrapolate its correction.
    told: called with the update of each step.
    Raises ValueError if the time rule or solver is unknown.
    """
    times, sizes = flow_times(steps, time_rule), flow_steps(steps, time_rule)
    x = noise.to(torch.promote_types(noise.dtype, torch.float32))
    update = plain = torch.zeros_like(x)

    def network(x: Tensor, t: float) -> Tensor:
        nonlocal plain
        v = velocity(x, t)
        plain = v.detach()
        return v

    guided = guide(network)
    for time, dt, rate in zip(times, sizes, rates(solver, steps), strict=True):
        last = plain
        pulled = guided(x, time)
        update = dt * (pulled if solver == EULER else extrapolated(pulled, plain, last, *rate))
        x = x + update
        told(update)
    return Flow(x, update)
