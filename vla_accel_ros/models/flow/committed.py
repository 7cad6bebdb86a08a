"""Begin a new chunk with actions that are committed: they are input, and the rest is sampled after them.

A network that was trained for it takes the leading actions of a chunk clean, at flow time 0, while the others
are noise at time t, and continues them without any guidance (Black et al., 2025, "Training-time action
conditioning for efficient real-time chunking"; lerobot's `rtc_training_max_delay`). The paper counts time
from noise to data; here, as in openpi's and lerobot's code, data is at 0. It costs nothing beside an ordinary
chunk. A network that was not trained so has never seen two times at once: what it makes of them is undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.flow.sampling import Velocity

if TYPE_CHECKING:
    from vla_accel_ros.models.policies import AnyPolicy

FIELD = "rtc_training_max_delay"
"""What lerobot calls it in `config.json`; for any other checkpoint it can be written there by hand."""

TimedVelocity = Callable[[Tensor, Tensor], Tensor]
"""(x float32 [B, H, A], flow times [B] or [B, H]) -> velocity float32 [B, H, A]."""


@dataclass(frozen=True)
class Committed:
    """actions: float [d, A] or [B, d, A], the leading actions, normalised as the network sees them."""

    actions: Tensor

    def __post_init__(self) -> None:
        if self.actions.ndim not in (2, 3):
            raise ValueError(
                f"committed.actions has shape {list(self.actions.shape)}; give [d, A] or [B, d, A]."
            )
        if not bool(self.actions.isfinite().all()):
            raise ValueError("committed.actions must be finite; give what the robot executes.")

    @classmethod
    def of(cls, policy: AnyPolicy, actions: np.ndarray, state: np.ndarray) -> Committed:
        """Absolute joint targets float [d, D]; state: what relative actions are relative to.

        Raises ValueError if they do not fit the policy, or it was not trained to be given that many.
        """
        if actions.ndim != 2 or actions.shape[1] != policy.joints:
            raise ValueError(
                f"committed has shape {list(actions.shape)}; give the leading actions, [d, {policy.joints}]."
            )
        if len(actions) > policy.trained_delay:
            raise ValueError(
                f"committed has {len(actions)} actions but the policy was trained to be given at most "
                f"{policy.trained_delay}; use guidance or, if it was trained so, say so by {FIELD} in its "
                "config.json."
            )
        return cls(policy.raw_actions(actions, state))

    @property
    def delay(self) -> int:
        """d, how many actions are committed."""
        return self.actions.shape[-2]

    def begin(self, noise: Tensor) -> Tensor:
        """Where to start sampling: noise [B, H, A] with the committed actions in their places.

        Raises ValueError unless they are fewer than H, of A numbers, and of one sample or B.
        """
        batch, horizon, dims = noise.shape
        actions = self.actions.to(noise)
        actions = actions if actions.ndim == 3 else actions[None]
        if self.delay >= horizon or actions.shape[2] != dims or actions.shape[0] not in (1, batch):
            raise ValueError(
                f"committed.actions has shape {list(self.actions.shape)}; the chunk is {list(noise.shape)}, "
                "and some of it must be free."
            )
        return torch.cat((actions.expand(batch, -1, -1), noise[:, self.delay :]), dim=1)

    def hold(self, velocity: TimedVelocity) -> Velocity:
        """The flow that begins there: the committed actions are at time 0 and stay, bit for bit."""

        def held(x: Tensor, t: float) -> Tensor:
            batch, horizon, _ = x.shape
            if not self.delay:
                return velocity(x, torch.full((batch,), t, device=x.device))
            times = torch.full((batch, horizon), t)
            times[:, : self.delay] = 0.0
            v = velocity(x, times)
            return torch.cat((torch.zeros_like(v[:, : self.delay]), v[:, self.delay :]), dim=1)

        return held
