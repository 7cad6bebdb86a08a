"""Euler integration of the flow, from noise at t = 1 to actions at t = 0.

The state x stays float32 whatever the network's dtype, because the last updates are small against it. Two
published rules for the time of a step differ by up to 5e-5 in the action: openpi adds dt in float32, lerobot
takes 1 + i * dt. Both are here so that either reference can be met exactly. What computes a velocity is a
function, so that guidance composes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TIME_RULES = ("openpi", "lerobot")

Velocity = Callable[[Tensor, float], Tensor]
"""(x float32 [B, H, A], flow time t) -> velocity float32 [B, H, A]."""


class Flow(NamedTuple):
    """actions float32 [B, H, A], normalised; update float32 [B, H, A]: what the last step added to them."""

    actions: Tensor
    update: Tensor


def flow_times(steps: int, rule: str = "openpi") -> list[float]:
    """The time at which each velocity is taken: 1 first, 1 / steps (or a rounding of it) last."""
    if steps < 1:
        raise ValueError(f"steps is {steps}; sampling needs at least 1.")
    if rule not in TIME_RULES:
        raise ValueError(f"time_rule is '{rule}'; use one of {TIME_RULES}.")
    if rule == "lerobot":
        return [1.0 + i * (-1.0 / steps) for i in range(steps)]
    t, dt, times = np.float32(1.0), np.float32(-1.0 / steps), []
    for _ in range(steps):
        times.append(float(t))
        t = t + dt
    return times


def sample(velocity: Velocity, noise: Tensor, steps: int = 10, time_rule: str = "openpi") -> Flow:
    """Integrate from noise float32 [B, H, A] in `steps` equal steps. Raises ValueError for unknown rules."""
    x = noise.to(torch.promote_types(noise.dtype, torch.float32))
    dt = -1.0 / steps
    update = torch.zeros_like(x)
    for time in flow_times(steps, time_rule):
        update = dt * velocity(x, time)
        x = x + update
    return Flow(x, update)
