"""Begin a new chunk with committed actions: they are an input, and the network samples the rest after them.

A network trained for this takes the leading actions of a chunk clean, at flow time 0, while the others are
noise at time t, and continues them without guidance (Black et al., 2025, "Training-time action conditioning
for efficient real-time chunking"; lerobot's `rtc_training_max_delay`). The paper counts time from noise to
data; here, as in openpi and lerobot, data is at 0. It costs no more than an ordinary chunk. A network that
was not trained this way has never seen two flow times at once, so its output would be undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.flow.sampling import Velocity

if TYPE_CHECKING:
    from vla_accel_ros.models.policies import AnyPolicy

FIELD = "rtc_training_max_delay"
"""lerobot's field in `config.json`; it can be added to any other checkpoint by hand."""

TimedVelocity = Callable[[Tensor, Tensor], Tensor]
"""(x float32 [B, H, A], flow times [B] or [B, H]) -> velocity float32 [B, H, A]."""


@dataclass(frozen=True)
class Committed:
    """actions: float [d, A] or [B, d, A], the leading actions, normalised as the network takes them."""

    actions: Tensor

    def __post_init__(self) -> None:
        if self.actions.ndim not in (2, 3):
            raise ValueError(
                f"committed.actions has shape {list(self.actions.shape)}; give [d, A] or [B, d, A]."
            )
        if not bool(torch.isfinite(self.actions).all()):
            raise ValueError("committed.actions must be finite; give what the robot executes.")

    @classmethod
    def of(cls, policy: AnyPolicy, actions: np.ndarray, state: np.ndarray) -> Committed:
        """Make it from absolute joint targets float [d, D]. state: the origin of relative actions.

        Raises ValueError if the actions do not fit the policy, or if it was not trained for that many.
        """
        if actions.ndim != 2 or actions.shape[1] != policy.joints:
            raise ValueError(
                f"committed has shape {list(actions.shape)}; give the leading actions, [d, {policy.joints}]."
            )
        if len(actions) > policy.trained_delay:
            raise ValueError(
                f"committed has {len(actions)} actions but the policy was trained to be given at most "
                f"{policy.trained_delay}; use guidance or, if it was trained with more, set {FIELD} in its "
                "config.json."
            )
        return cls(policy.raw_actions(actions, state))

    @property
    def delay(self) -> int:
        """d, the number of committed actions."""
        return self.actions.shape[-2]

    def begin(self, noise: Tensor) -> Tensor:
        """Return the start of sampling: noise [B, H, A] with the committed actions in their places.

        Raises ValueError unless there are fewer than H of them, with A numbers each, for one sample or B.
        """
        actions = self.actions.to(noise)
        actions = actions if actions.ndim == 3 else actions[None]
        self._check_fits(noise.shape)
        return torch.cat((actions.expand(len(noise), -1, -1), noise[:, self.delay :]), dim=1)

    def padded(self, horizon: int, dims: int) -> Tensor:
        """Return float [H, A]: the committed actions of one chunk [H, A], and zeros after them. Raises
        ValueError as `begin` does."""
        self._check_fits((1, horizon, dims))
        return F.pad(self.actions.reshape(-1, dims), (0, 0, 0, horizon - self.delay))

    def _check_fits(self, chunk: Sequence[int]) -> None:
        batch, horizon, dims = chunk
        samples = 1 if self.actions.ndim == 2 else len(self.actions)
        if self.delay >= horizon or self.actions.shape[-1] != dims or samples not in (1, batch):
            raise ValueError(
                f"committed.actions has shape {list(self.actions.shape)}; the chunk is {list(chunk)}, "
                "and some of it must be free."
            )

    def hold(self, velocity: TimedVelocity) -> Velocity:
        """Return the velocity function for that start: committed actions are at time 0 and keep their
        bits."""

        def held(x: Tensor, t: float) -> Tensor:
            batch, horizon, _ = x.shape
            if not self.delay:
                return velocity(x, torch.full((batch,), t, device=x.device))
            times = torch.full((batch, horizon), t)
            times[:, : self.delay] = 0.0
            v = velocity(x, times)
            return torch.cat((torch.zeros_like(v[:, : self.delay]), v[:, self.delay :]), dim=1)

        return held
