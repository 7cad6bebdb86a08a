"""The products of a decoder layer with what stands around them, in plain torch: the twins of gpu/linear.py.

Each writes into memory it is given and allocates nothing that outlives it. A norm is the row factor
1 / rms(x) applied after the product, with `scale` on the columns before and `bias` added after it
(models/folded.py); both have one row for all, or one for each sequence of the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.attention import combine

NORM_EPS = 1e-6


def rotary_qkv(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Queries, keys and values of x, normed and rotated, where they belong.

    x [B, T, W]; weight [(heads + 2 kv_heads) * D, W]; cos, sin float32 [positions, D / 2];
    positions int32 [B], of the first token of each sequence; q [B, T, heads, D], written;
    k, v [slots, kv_heads, tokens, D], written at slots[b], tokens starts[b] onwards; slots, starts int32 [B];
    scale float32 [1 or B, W]; bias float32 [1 or B, rows of weight].
    """
    y = _normed_product(x, weight, scale, bias)
    place_qkv(y, cos, sin, positions, q, k, v, slots, starts)


def place_qkv(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
) -> None:
    """As rotary_qkv, of a product that was made: y [B, T, (heads + 2 kv_heads) * D]."""
    heads, width = q.shape[2], q.shape[3]
    kv_heads, tokens = k.shape[1], y.shape[1]
    y = y.float().unflatten(2, (heads + 2 * kv_heads, width))
    at = positions.long()[:, None] + torch.arange(tokens, device=y.device)
    c, s = cos[at][:, :, None], sin[at][:, :, None]
    first, second = y[:, :, : heads + kv_heads].chunk(2, dim=3)
    turned = torch.cat((first * c - second * s, second * c + first * s), dim=3)
    q.copy_(turned[:, :, :heads])
    rows = slots.long()[:, None], starts.long()[:, None] + torch.arange(tokens, device=y.device)
    k[rows[0], :, rows[1]] = turned[:, :, heads:].to(k.dtype)
    v[rows[0], :, rows[1]] = y[:, :, heads + kv_heads :].to(v.dtype)


def gated_up(
    x: Tensor, weight: Tensor, out: Tensor, scale: Tensor | None = None, bias: Tensor | None = None
) -> None:
    """out = gelu(gate) * up of normed x.

    x [B, T, W]; weight [2 N, W], the gate's rows first; out [B, T, N], written; scale float32 [1 or B, W];
    bias float32 [1 or B, 2 N].
    """
    glu(_normed_product(x, weight, scale, bias), out)


def glu(y: Tensor, out: Tensor) -> None:
    """As gated_up, of a product that was made: y [B, T, 2 N], the gate first."""
    gate, up = y.float().chunk(2, dim=-1)
    out.copy_(F.gelu(gate, approximate="tanh") * up)


def project(a: Tensor, weight: Tensor, x: Tensor, gate: Tensor | None = None) -> None:
    """x += gate * (a @ weight.T), in place.

    a [B, T, K]; weight [N, K]; x [B, T, N]; gate float32 [1 or B, N], None = 1.
    """
    y = F.linear(a, weight).float()
    x.copy_(x.float() + (y if gate is None else y * gate[:, None]))


def project_attended(
    partial: Tensor, lse: Tensor, weight: Tensor, x: Tensor, gate: Tensor | None = None
) -> None:
    """As project, of what attention over parts of the keys left: see attention.combine.

    partial [P, B, T, heads * D]; lse float32 [P, B, T, heads].
    """
    project(combine(partial, lse).to(weight.dtype), weight, x, gate)


def _normed_product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """float32 [B, T, N]"""
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
    scaled = wide if scale is None else wide * (1.0 + scale[:, None])
    y = F.linear(scaled.to(x.dtype), weight).float() * factor
    return y if bias is None else y + bias[:, None]
