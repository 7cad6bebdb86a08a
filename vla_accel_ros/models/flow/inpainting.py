"""What one chunk must agree with, in the form that captured denoising steps take.

There are two ways to make a chunk continue another one. Guidance pulls a noisy chunk to its target in every
step (models/flow/rtc.py, identity Jacobian); committed actions are input at flow time 0 and stay
(models/flow/committed.py). A chunk has one or the other, in the same numbers, so that a stage has one set of
inputs. Guidance by the true Jacobian has no such form: it needs the derivative of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import MAX_WEIGHT, Guidance, guidance_weight


@dataclass(frozen=True)
class Inpainting:
    """Given actions of one chunk, and how they hold.

    target float [H, A], normalised as the network sees actions, on the host or the device; weights float32
    [H], on the host: of the correction, 0 = free; max_weight: its greatest strength, see
    models.flow.rtc.Guidance;
    committed: so many leading actions of target are the chunk's own. Raises ValueError for shapes that differ
    and if all actions are committed.
    """

    target: Tensor
    weights: Tensor
    max_weight: float = MAX_WEIGHT
    committed: int = 0

    def __post_init__(self) -> None:
        if self.target.ndim != 2 or self.weights.shape != self.target.shape[:1]:
            raise ValueError(
                f"inpainting.target has shape {list(self.target.shape)} and weights "
                f"{list(self.weights.shape)}; give [H, A] and [H]."
            )
        if not 0 <= self.committed < len(self.target):
            raise ValueError(
                f"inpainting.committed is {self.committed}; it must be from 0 to below the chunk's "
                f"{len(self.target)} actions."
            )

    @classmethod
    def of(cls, given: Guidance | Committed, horizon: int, dims: int) -> Inpainting:
        """For a chunk of that many actions of that many numbers.

        Raises ValueError if it does not fit, is for several chunks, or needs the exact Jacobian.
        """
        if isinstance(given, Committed):
            start = given.begin(given.actions.new_zeros(1, horizon, dims))[0]
            return cls(start, torch.zeros(horizon), committed=given.delay)
        if given.jacobian != "identity":
            raise ValueError(
                f"guidance.jacobian is '{given.jacobian}', which captured steps do not have; use 'identity'."
            )
        target, weights = given.target((1, horizon, dims))
        return cls(target[0], weights, given.max_weight)

    def strengths(self, times: Sequence[float]) -> list[float]:
        """Of the correction at each flow time."""
        return [guidance_weight(t, self.max_weight) for t in times]

    def held(self, velocity: Tensor) -> Tensor:
        """The velocity float32 [1, H, A] with 0 for committed actions."""
        if not self.committed:
            return velocity
        held = velocity[:, : self.committed]
        return torch.cat((torch.zeros_like(held), velocity[:, self.committed :]), dim=1)

    def guided(self, velocity: Tensor, x: Tensor, t: float) -> Tensor:
        """The velocity of x, both float32 [1, H, A], at flow time t, as it is for this chunk: what
        models.flow.rtc or models.flow.committed makes of it. target and weights must be on its device."""
        if self.committed:
            return self.held(velocity)
        strength = guidance_weight(t, self.max_weight)
        pulled = velocity - strength * (self.target - (x - t * velocity)) * self.weights[:, None]
        return torch.where(self.weights[:, None] != 0.0, pulled, velocity)
