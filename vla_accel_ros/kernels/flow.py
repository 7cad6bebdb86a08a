"""Both ends of a flow step, in plain torch: the twins of gpu/flow.py.

The state of the flow is float32 and stays it, because the last updates are small against it; -dt and the
final norm are in the matrices (models/folding.py), so a step ends with an addition.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.linear import NORM_EPS, Norm


def embed_actions(
    x: Tensor,
    in_weight: Tensor,
    in_bias: Tensor,
    out: Tensor,
    mlp_weight: Tensor | None = None,
    mlp_bias: Tensor | None = None,
    state: Tensor | None = None,
    norm: Norm | None = None,
) -> None:
    """The tokens of noisy actions, at one flow time.

    x float32 [B, H, A]; in_weight float32 [W, A]; in_bias float32 [1 or B, W]; out [B, H, W], or for pi0
    [B, 1 + H, W] whose first token is state [B, W]; with mlp_weight [W, W] and mlp_bias float32 [W] an action
    goes through SiLU and them too; norm: of out, filled.
    """
    tokens = F.linear(x, in_weight) + in_bias[:, None]
    if mlp_weight is not None and mlp_bias is not None:
        hidden = F.silu(tokens).to(mlp_weight.dtype)
        tokens = F.linear(hidden, mlp_weight).float() + mlp_bias
    if state is not None:
        tokens = torch.cat((state[:, None].float(), tokens), dim=1)
    out.copy_(tokens)
    if norm is not None:
        norm.leave(out)


def read_out(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    update: Tensor,
    scale: Tensor | None = None,
) -> None:
    """One Euler step: update = normed hidden @ weight.T + bias of the last H tokens, x += update.

    hidden [B, T, W]; weight float32 [A, W]; bias float32 [1 or B, A]; x float32 [B, H, A], in place;
    update float32 [B, H, A], written; scale float32 [1 or B, W].
    """
    rows = hidden[:, -x.shape[1] :].float()
    factor = torch.rsqrt(rows.square().mean(-1, keepdim=True) + NORM_EPS)
    scaled = rows if scale is None else rows * (1.0 + scale[:, None])
    update.copy_(F.linear(scaled, weight) * factor + bias[:, None])
    x.add_(update)
