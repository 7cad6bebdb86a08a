"""The first and the last operation of a flow step, in plain torch: the reference of triton/flow.py.

The flow's state stays float32, because the last updates are small against it. -dt and the final norm are
folded into the matrices (models/pi/folding.py), so a step ends with an addition.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import NORM_EPS, Norm, rows_at


class Guide(NamedTuple):
    """The guidance of actions while they are sampled (models/flow/rtc.py), on the device.

    target float32 [B, H, A]. weights float32 [B, H]: 0 = free. gains float32 [B, S]: strength of the
    correction in each step, times -dt. reach float32 [S]: flow time / -dt, so that x + reach * update is the
    clean chunk. committed int32 [B]: how many leading actions do not move.
    """

    target: Tensor
    weights: Tensor
    gains: Tensor
    reach: Tensor
    committed: Tensor


class History(NamedTuple):
    """The state of a multi-step solver (models/flow/solver.py), which adds more * update - carry * before,
    with the network's own update.

    before float32 [B, H, A]: the update of the step before, in place. rates float32 [S, 2]: more and carry of
    each step; where carry is 0, before is ignored.
    """

    before: Tensor
    rates: Tensor


class Magnitudes(NamedTuple):
    """Size of each step's update of each action. values float32 [B, S, H]: RMS over an action's first dims[b]
    numbers; dims int32 [B]."""

    values: Tensor
    dims: Tensor


def embed_actions(
    x: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    out: Tensor,
    mlp_weight: Tensor | None = None,
    mlp_bias: Tensor | None = None,
    state: Tensor | None = None,
    norm: Norm | None = None,
    at: Tensor | None = None,
) -> None:
    """Compute the tokens of noisy actions.

    x float32 [B, H, A]; in_weight float32 [W, A]; in_bias float32 [1, B or B * H, W], the last with a flow
    time for each action; out [B, H, W], or for pi0 [B, 1 + H, W] whose first token is state [B, W]. With
    mlp_weight [W, W] and mlp_bias float32 [W], an action goes through SiLU and that layer too. norm: of out,
    filled; its scale has as many rows as in_bias. at int32 [B or B * H]: rows of in_bias and of the scale.
    """
    in_bias = rows_at(in_bias, at)
    bias = in_bias.view(*x.shape[:2], -1) if len(in_bias) > len(x) else in_bias[:, None]
    tokens = F.linear(x, in_weight) + bias
    if mlp_weight is not None and mlp_bias is not None:
        hidden = F.silu(tokens).to(mlp_weight.dtype)
        tokens = F.linear(hidden, mlp_weight).float() + mlp_bias
    if state is not None:
        tokens = torch.cat((state[:, None].float(), tokens), dim=1)
    out.copy_(tokens)
    if norm is not None:
        norm.leave(out, at)


def read_out(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    update: Tensor,
    scale: Tensor | None = None,
    step: Tensor | None = None,
    magnitudes: Magnitudes | None = None,
    guide: Guide | None = None,
    history: History | None = None,
    eps: float = NORM_EPS,
) -> None:
    """One step: update = normed hidden @ weight.T + bias of the last H tokens, x += update.

    hidden [B, T, W]; weight float32 [A, W]; bias float32 [1 or B, A]; x float32 [B, H, A], in place; update
    float32 [B, H, A], written; scale float32 [1 or B, W]. step int32 [B]: the present step of each chunk.
    magnitudes: written for that step. guide: does not change the bits of actions with weight 0. history: None
    is a step of Euler. The three before eps, which is the norm's, need `step`.
    """
    rows = hidden[:, -x.shape[1] :].float()
    factor = torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    scaled = rows if scale is None else rows * (1.0 + scale[:, None])
    update.copy_(F.linear(scaled, weight) * factor + bias[:, None])
    if step is None:
        x.add_(update)
        return
    index = step.long()
    sequence = torch.arange(len(x), device=x.device)
    rate = update if history is None else update.clone()
    if guide is not None:
        clean = x + guide.reach[index][:, None, None] * update
        pull = (guide.gains[sequence, index][:, None] * guide.weights)[..., None]
        update.copy_(torch.where(pull != 0.0, update + pull * (guide.target - clean), update))
    if history is not None:
        more, carry = history.rates[index, :, None, None].unbind(1)
        update.add_(more * rate - torch.where(carry != 0.0, carry * history.before, 0.0))
        history.before.copy_(rate)
    if guide is not None:
        is_committed = torch.arange(x.shape[1], device=x.device) < guide.committed[:, None]
        update.masked_fill_(is_committed[..., None], 0.0)
    x.add_(update)
    if magnitudes is not None:
        values, dims = magnitudes
        counted = torch.arange(x.shape[2], device=x.device) < dims[:, None, None]
        values[sequence, index] = (torch.where(counted, update, 0.0).square().sum(-1) / dims[:, None]).sqrt()
