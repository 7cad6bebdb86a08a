"""The demo policy's training objective, as one loss over one batch.

Three terms share one prefix forward, as at inference:
- flow matching on the action chunk (pi0.5: x_t = t*noise + (1-t)*actions, target noise - actions, t ~
  Beta(1.5, 1)), with several (noise, t) draws for each prefix, because the expert is small beside the
  prefix;
- next-token cross-entropy on the answer, whose tokens continue the prompt causally and are hidden from the
  actions;
- an auxiliary localisation of target and goal in the front image, from the last layers' keys and values.
  Those are all that the expert sees of the images, and without this term it takes far longer to attend to
  them. The localisation head is not part of the policy and is not shipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.pi.model import KV, Pi

LOCALISATION_LAYERS = 2


@dataclass(frozen=True)
class Batch:
    """B training samples on one device.

    images: float [B, 2, 3, S, S] in [-1, 1]. tokens, token_mask: [B, P] prompt. answer, answer_mask: [B, A],
    ending in eos. actions: float32 [B, H, D] normalised. uv: float32 [B, 2, 2] target and goal in the front
    image, 0..1. uv_mask: bool [B, 2], False where the point is out of view.
    """

    images: Tensor
    tokens: Tensor
    token_mask: Tensor
    answer: Tensor
    answer_mask: Tensor
    actions: Tensor
    uv: Tensor
    uv_mask: Tensor


class Localiser(nn.Module):
    """Predicts two heat maps and in-cell offsets from features of the front camera's tokens."""

    def __init__(self, features: int, width: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, 2 * 3))

    def forward(self, seen: Tensor, cells: int, uv: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """seen [B, cells^2, features]. Return the loss, and the mean distance, in image widths, of the most
        likely cell's point from the true one."""
        out = self.net(seen).float()  # [B, cells^2, 6]
        heat, offset = out[..., :2].transpose(1, 2), out[..., 2:].unflatten(-1, (2, 2)).transpose(1, 2)
        column_row = (uv.clamp(0, 0.9999) * cells).floor()
        cell = (column_row[..., 1] * cells + column_row[..., 0]).long()  # [B, 2]
        weight = mask.float() / mask.float().sum().clamp_min(1)
        classification = F.cross_entropy(heat.flatten(0, 1), cell.flatten(), reduction="none").view_as(cell)
        at = offset.gather(2, cell[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
        regression = (at - (uv * cells - column_row - 0.5)).abs().sum(-1)
        best = heat.argmax(-1)
        guess = torch.stack((best % cells, best // cells), -1) + 0.5
        guess = (guess + offset.gather(2, best[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)) / cells
        distance = ((guess - uv).norm(dim=-1) * weight).sum()
        return ((classification + regression) * weight).sum(), distance.detach()


class Objective(nn.Module):
    """The three losses of one batch; `forward` returns their weighted sum and the terms for the log."""

    def __init__(
        self, model: Pi, draws: int = 4, text_weight: float = 0.3, localisation_weight: float = 0.1
    ) -> None:
        super().__init__()
        self.model, self.draws = model, draws
        self.text_weight, self.localisation_weight = text_weight, localisation_weight
        self.cells = model.config.vision.image_size // model.config.vision.patch
        self.localiser = Localiser(2 * LOCALISATION_LAYERS * model.config.prefix.head_dim)

    def forward(
        self, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scalar loss, and detached scalars: flow, text, place (localisation), uv_error."""
        hidden, kv, prefix_mask = self._prefix(batch)
        text = self._text(hidden, prefix_mask.shape[1], batch)
        layers = [kv_part[-LOCALISATION_LAYERS:, :, 0, : self.cells**2] for kv_part in kv]
        seen = torch.cat([*layers[0], *layers[1]], -1)
        location_error, uv_error = self.localiser(seen, self.cells, batch.uv, batch.uv_mask)
        flow = self._flow(kv, prefix_mask, batch, generator)
        loss = flow + self.text_weight * text + self.localisation_weight * location_error
        return loss, {
            "flow": flow.detach(),
            "text": text.detach(),
            "place": location_error.detach(),
            "uv_error": uv_error,
        }

    def _prefix(self, batch: Batch) -> tuple[Tensor, KV, Tensor]:
        views = batch.images.shape[1]
        image = self.model.encode(batch.images.flatten(0, 1)).unflatten(0, (-1, views)).flatten(1, 2)
        sequence = torch.cat(
            (image, self.model.embed_tokens(torch.cat((batch.tokens, batch.answer), 1)).to(image.dtype)), 1
        )
        seen = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device)
        prefix_mask = torch.cat((seen, batch.token_mask), 1)
        mask = torch.cat((prefix_mask, batch.answer_mask), 1)
        n_prefix, n_all = prefix_mask.shape[1], mask.shape[1]
        order = torch.arange(n_all, device=mask.device)
        is_answer = order >= n_prefix
        causal = ~is_answer[None, :] | (is_answer[:, None] & (order[None, :] <= order[:, None]))
        attend = causal[None] & mask[:, None, :] | torch.eye(n_all, dtype=torch.bool, device=mask.device)
        hidden, kv = self.model.prefix(sequence, attend, mask.cumsum(1) - 1)
        return hidden, KV(kv.k[:, :, :, :n_prefix], kv.v[:, :, :, :n_prefix]), prefix_mask

    def _text(self, hidden: Tensor, n_prefix: int, batch: Batch) -> Tensor:
        last = hidden.shape[1] - batch.answer.shape[1] - batch.tokens.shape[1] + batch.token_mask.sum(1) - 1
        seed = hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))
        states = torch.cat((seed, hidden[:, n_prefix : hidden.shape[1] - 1]), 1)
        logits = self.model.logits(states).float()
        losses = F.cross_entropy(logits.flatten(0, 1), batch.answer.flatten(), reduction="none").view_as(
            batch.answer
        )
        return (losses * batch.answer_mask).sum() / batch.answer_mask.sum()

    def _flow(self, kv: KV, mask: Tensor, batch: Batch, generator: torch.Generator | None) -> Tensor:
        actions = batch.actions.repeat_interleave(self.draws, 0)
        noise = torch.randn(actions.shape, device=actions.device, generator=generator)
        uniform = torch.rand(actions.shape[0], device=actions.device, generator=generator)
        time = uniform ** (1 / 1.5) * 0.999 + 0.001  # Beta(1.5, 1) by its inverse distribution function
        x = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
        repeated = KV(kv.k.repeat_interleave(self.draws, 1), kv.v.repeat_interleave(self.draws, 1))
        velocity = self.model.velocity(x, time, None, repeated, mask.repeat_interleave(self.draws, 0))
        return F.mse_loss(velocity.float(), noise - actions)
