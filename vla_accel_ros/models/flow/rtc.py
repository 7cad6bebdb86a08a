"""Real-time chunking: guide a new chunk towards the part of the previous one that will be executed anyway.

While the network computes, the robot executes `delay` actions of the previous chunk. The new chunk must begin
with those and may deviate gradually until the execution horizon (Black et al., 2025, "Real-time execution of
action chunking flow policies", eq. 2-5). The correction is the error of the predicted clean chunk pulled back
to x, either through the identity (lerobot's published code) or through the true Jacobian (the paper's form).
The identity form is elementwise and part of the captured steps (Inpainting). The true Jacobian needs a
backward pass through the network and is computed eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.sampling import Velocity
from vla_accel_ros.types import Agreement

if TYPE_CHECKING:
    from vla_accel_ros.models.policies import AnyPolicy

SCHEDULES = ("LINEAR", "EXP", "ONES", "ZEROS")
JACOBIANS = ("identity", "exact")
MAX_WEIGHT = 10.0


def prefix_weights(schedule: str, delay: int, execution: int, horizon: int) -> Tensor:
    """Return how strongly each action must follow the previous chunk: float32 [horizon].

    1 for the first `delay` actions; then falling to 0 at `execution` (LINEAR, EXP), 1 until `execution`
    (ONES), or 0 at once (ZEROS). Raises ValueError if the schedule is unknown.
    """
    return _prefix_weights(schedule, delay, execution, horizon).clone()


@lru_cache(maxsize=256)
def _prefix_weights(schedule: str, delay: int, execution: int, horizon: int) -> Tensor:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is '{schedule}'; use one of {SCHEDULES}.")
    execution = min(execution, horizon)
    delay = min(delay, execution)
    weights = torch.zeros(horizon)
    weights[: delay if schedule == "ZEROS" else execution] = 1.0
    if schedule in ("LINEAR", "EXP"):
        falling = torch.linspace(1.0, 0.0, execution - delay + 2)[1:-1]
        weights[delay:execution] = (
            falling * torch.expm1(falling) / (math.e - 1) if schedule == "EXP" else falling
        )
    return weights


@lru_cache(maxsize=4096)
def guidance_weight(t: float, most: float = MAX_WEIGHT) -> float:
    """Return the strength of the correction at flow time t, at most `most`; the paper's tau is 1 - t.

    Every operation is rounded to float32, as in the published code: the strength is large early on, so its
    last bit shows in the action.
    """
    if t <= 0.0 or t >= 1.0:
        return most
    tau = np.float32(1.0 - t)
    clean = np.float32(1.0) - tau
    return min(most, float((clean / tau) * ((clean * clean + tau * tau) / (clean * clean))))


@dataclass(frozen=True)
class Guidance:
    """The previous chunk that a new chunk must agree with.

    previous: float [h, A] or [B, h, A], h <= H: its unexecuted rest, so that previous[..., i, :] is due
        together with action i of the new chunk; normalised as the network takes actions.
    delay: number of leading actions that will have been executed before the new chunk can take over.
    execution: number of actions after which the new chunk is free (at most h counts).
    schedule: one of SCHEDULES. jacobian: "identity" (lerobot) or "exact" (vector-Jacobian product, which the
        captured stages do not have).
    max_weight: greatest strength. The number of sampling steps is the largest value that does not overshoot,
        since a step of dt corrects an action of weight 1 by dt * strength of its error (the paper has 5 of
        both).
    """

    previous: Tensor
    delay: int
    execution: int
    schedule: str = "LINEAR"
    jacobian: str = "identity"
    max_weight: float = MAX_WEIGHT

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"guidance.schedule is '{self.schedule}'; use one of {SCHEDULES}.")
        if self.jacobian not in JACOBIANS:
            raise ValueError(f"guidance.jacobian is '{self.jacobian}'; use one of {JACOBIANS}.")
        if self.previous.ndim not in (2, 3):
            raise ValueError(
                f"guidance.previous has shape {list(self.previous.shape)}; give [h, A] or [B, h, A]."
            )
        if self.delay < 0 or self.execution < 0:
            raise ValueError(
                f"guidance.delay {self.delay} and execution {self.execution} must not be negative."
            )
        if not self.max_weight > 0:
            raise ValueError(f"guidance.max_weight is {self.max_weight}; give the number of sampling steps.")

    @classmethod
    def of(cls, policy: AnyPolicy, agreement: Agreement, state: np.ndarray, horizon: int) -> Guidance:
        """Make it for a chunk of `horizon` actions. state: the origin of relative actions, see Committed.of.

        Raises ValueError if the number of joints differs, or if the previous chunk has nothing left.
        """
        agreed = agreement.actions[:horizon]
        if agreed.shape[1] != policy.joints:
            raise ValueError(
                f"the previous chunk has actions of {agreed.shape[1]} numbers, the robot's have "
                f"{policy.joints}; guide only with a chunk of the same robot."
            )
        if not len(agreed):
            raise ValueError(
                "the previous chunk ends before the new one begins; guide only with a chunk that overlaps."
            )
        raw, strength = policy.raw_actions(agreed, state), agreement.max_weight
        return cls(raw, agreement.delay, agreement.end, agreement.schedule, agreement.jacobian, strength)

    @classmethod
    def continuing(
        cls, policy: AnyPolicy, rows: np.ndarray, delay: int, end: int, state: np.ndarray, steps: int
    ) -> dict[str, Any]:
        """Return arguments of Engine.act for a chunk that continues others' actions, float [n, D]: the first
        `delay` are committed if the policy was trained for so many, and all guide it otherwise."""
        if delay and delay <= policy.trained_delay:
            return {"committed": rows[:delay]}
        agreement = Agreement("guidance", rows, delay, end, "LINEAR", "identity", float(steps), -1)
        return {"guidance": cls.of(policy, agreement, state, policy.config.horizon)}

    def target(self, chunk: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the target of a chunk of shape [B, H, A], float [1 or B, H, A], and its weights, float32
        [H].

        Raises ValueError if the previous chunk does not fit that shape.
        """
        batch, horizon, dims = chunk
        previous = self.previous if self.previous.ndim == 3 else self.previous[None]
        length = previous.shape[1]
        if previous.shape[0] not in (1, batch) or length > horizon or previous.shape[2] != dims:
            raise ValueError(
                f"guidance.previous has shape {list(self.previous.shape)}; the chunk is {list(chunk)}."
            )
        target = F.pad(previous, (0, 0, 0, horizon - length))
        return target, prefix_weights(self.schedule, self.delay, min(self.execution, length), horizon)

    def guide(self, velocity: Velocity, noise: Tensor) -> Velocity:
        """Return the guided velocity function for samples shaped like noise [B, H, A]: v - weight(t) *
        correction."""
        target, weights = self.target(noise.shape)
        target, weights = target.to(noise), weights.to(noise)[:, None]
        exact = self.jacobian == "exact"

        def guided(x: Tensor, t: float) -> Tensor:
            strength = guidance_weight(t, self.max_weight)
            if not exact:
                v = velocity(x, t)
                return v - strength * (target - (x - t * v)) * weights
            with torch.enable_grad():
                start = x.detach().requires_grad_(True)
                v = velocity(start, t)
                clean = start - t * v
                error = ((target - clean) * weights).detach()
                (correction,) = torch.autograd.grad(clean, start, error)
            return v.detach() - strength * correction

        return guided


@dataclass(frozen=True)
class Inpainting:
    """What one chunk must agree with, in the form that captured denoise steps take.

    Guidance pulls a noisy chunk towards its target in every step; committed actions are inputs at flow time 0
    and stay. A chunk has one or the other, in the same fields, so a stage has one set of inputs.

    target: float [H, A], normalised as the network takes actions, on the host or the device. weights: float32
    [H] of the correction, on the host, 0 = free. max_weight: see Guidance. committed: how many leading
    actions of target are fixed. Raises ValueError if the shapes differ or all actions are committed.
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
        """Make it for a chunk of `horizon` actions with `dims` numbers.

        Raises ValueError if `given` does not fit, is for several chunks, or needs the exact Jacobian.
        """
        if isinstance(given, Committed):
            return cls(given.padded(horizon, dims), torch.zeros(horizon), committed=given.delay)
        if given.jacobian != "identity":
            raise ValueError(
                f"guidance.jacobian is '{given.jacobian}', which captured steps do not have; use 'identity'."
            )
        target, weights = given.target((1, horizon, dims))
        return cls(target[0], weights, given.max_weight)

    def strengths(self, times: Sequence[float]) -> list[float]:
        """Return the strength of the correction at each flow time."""
        return [guidance_weight(t, self.max_weight) for t in times]

    def held(self, velocity: Tensor) -> Tensor:
        """Return the velocity float32 [1, H, A] with 0 for committed actions."""
        if not self.committed:
            return velocity
        committed_actions = velocity[:, : self.committed]
        return torch.cat((torch.zeros_like(committed_actions), velocity[:, self.committed :]), dim=1)

    def guided(self, velocity: Tensor, x: Tensor, t: float) -> Tensor:
        """Return the guided or held velocity of x, both float32 [1, H, A], at flow time t. target and weights
        must be on the device of x."""
        if self.committed:
            return self.held(velocity)
        strength = guidance_weight(t, self.max_weight)
        pulled = velocity - strength * (self.target - (x - t * velocity)) * self.weights[:, None]
        return torch.where(self.weights[:, None] != 0.0, pulled, velocity)
