"""The products of a decoder layer with prologue and epilogue, in plain torch: the reference of
triton/linear.py and triton/project.py.

Each writes into given memory and keeps no allocation. A norm is the row factor 1 / rms(x) applied after the
product, with a scale on the columns before and `bias` added after it (models/pi/folding.py). The kernel that
makes the rows also computes what the following norm needs (`Norm`), so that the product itself only
multiplies. Tables have one row for all sequences, or one for each, or any rows of which `at`, int32 [B], says
which is a sequence's. Weights may be quantised (models/layers/quantized.py); they are dequantised while they
are multiplied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.layers.quantized import Weight, product

NORM_EPS = 1e-6
GELU, SILU = ACTIVATIONS = ("gelu", "silu")
"""Of a gate; gelu is its tanh form."""
GROUP = 16
"""Columns of a row that share one partial sum of squares."""
TILE = 128
"""Rows of squares are padded to a multiple of this, so that whole tiles can be read."""


class Norm(NamedTuple):
    """What a norm of rows x [B, T, W] needs, computed by the kernel that makes x.

    squares float32 [ceil(W / GROUP), rows], rows at least B * T: partial sums of a row's squares. scale
    float32 [1, B or R, W] and scaled [B, T, W] = x * (1 + scale), the input of the product, if the norm is
    modulated; else None, and x itself is the input. eps: added to the mean of the squares.
    """

    squares: Tensor
    scale: Tensor | None = None
    scaled: Tensor | None = None
    eps: float = NORM_EPS

    @classmethod
    def of(cls, x: Tensor, scaled: bool, eps: float = NORM_EPS) -> Norm:
        """Allocate the norm of rows x, without a scale yet. scaled: whether there will be one."""
        batch, tokens, width = x.shape
        rows = -(-batch * tokens // TILE) * TILE
        squares = torch.zeros(-(-width // GROUP), rows, device=x.device)
        return cls(squares, None, torch.zeros_like(x) if scaled else None, eps)

    def leave(self, x: Tensor, at: Tensor | None = None) -> None:
        """Fill it for rows x. at: rows of scale."""
        wide = F.pad(x.float().flatten(0, 1), (0, -x.shape[2] % GROUP)).unflatten(1, (-1, GROUP))
        self.squares[:, : len(wide)].copy_(wide.square().sum(2).T)
        if self.scale is not None and self.scaled is not None:
            scale = rows_at(self.scale, at)
            factor = scale.view(x.shape) if len(scale) > len(x) else scale[:, None]
            self.scaled.copy_(x.float() * (1.0 + factor))


def rotary_qkv(
    x: Tensor,
    weight: Weight,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
) -> None:
    """Project normed x to queries, keys and values, rotate them, and write them to their places.

    x [B, T, W]; weight [(heads + 2 kv_heads) * D, W]; cos, sin float32 [positions, D / 2]; positions int32
    [B], of the first token of each sequence; q [B, T, heads, D], written; k, v [slots, kv_heads, tokens, D],
    written at slots[b], tokens starts[b] onwards; slots, starts int32 [B]; norm: of x; bias float32 [1, B or
    R, rows of weight]; at: rows of bias.
    """
    y = _normed_product(x, weight, norm, bias, at)
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
    """As rotary_qkv, for a computed product y [B, T, (heads + 2 kv_heads) * D]."""
    heads, width = q.shape[2], q.shape[3]
    kv_heads, tokens = k.shape[1], y.shape[1]
    y = y.float().unflatten(2, (heads + 2 * kv_heads, width))
    angles = positions.long()[:, None] + torch.arange(tokens, device=y.device)
    c, s = cos[angles][:, :, None], sin[angles][:, :, None]
    first, second = y[:, :, : heads + kv_heads].chunk(2, dim=3)
    turned = torch.cat((first * c - second * s, second * c + first * s), dim=3)
    q.copy_(turned[:, :, :heads])
    rows = slots.long()[:, None], starts.long()[:, None] + torch.arange(tokens, device=y.device)
    k[rows[0], :, rows[1]] = turned[:, :, heads:].to(k.dtype)
    v[rows[0], :, rows[1]] = y[:, :, heads + kv_heads :].to(v.dtype)


def gated_up(
    x: Tensor,
    weight: Weight,
    out: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
    activation: str = GELU,
) -> None:
    """out = activation(gate) * up of normed x.

    x [B, T, W]; weight [2 N, W], the gate's rows first; out [B, T, N], written; norm: of x; bias float32 [1,
    B or R, 2 N]; at: rows of bias; activation: one of ACTIVATIONS.
    """
    glu(_normed_product(x, weight, norm, bias, at), out, activation)


def glu(y: Tensor, out: Tensor, activation: str = GELU) -> None:
    """As gated_up, for a computed product y [..., 2 N], the gate first; out [..., N]."""
    gate, up = y.float().chunk(2, dim=-1)
    out.copy_((F.gelu(gate, approximate="tanh") if activation == GELU else F.silu(gate)) * up)


def project(
    a: Tensor,
    weight: Weight,
    x: Tensor,
    gate: Tensor | None = None,
    norm: Norm | None = None,
    at: Tensor | None = None,
) -> None:
    """x += gate * (a @ weight.T), in place.

    a [B, T, K]; weight [N, K]; x [B, T, N]; gate float32 [1, B or R, N], None = 1; norm: of the new x,
    filled; at: rows of gate and of the norm's scale.
    """
    y = product(a, weight).float()
    x.copy_(x.float() + (y if gate is None else y * rows_at(gate, at)[:, None]))
    if norm is not None:
        norm.leave(x, at)


def product_in_parts(a: Tensor, weight: Tensor, out: Tensor) -> None:
    """Split-K product: out[p] = a @ weight.T over part p of the inner dimension; the consumer sums the parts.

    a [M, K]; weight [N, K]; out [P, M, N], written; P divides K. On a GPU this is one batched cuBLAS product,
    which has more tiles for the SMs if columns are few and the inner dimension is long.
    """
    parts = a.unflatten(1, (len(out), -1)).transpose(0, 1)
    torch.bmm(parts, weight.unflatten(1, (len(out), -1)).permute(1, 2, 0), out=out)


def rows_at(table: Tensor, at: Tensor | None) -> Tensor:
    """Return the rows of a table that sequences have."""
    return table if at is None else table[at.long()]


def _normed_product(x: Tensor, weight: Weight, norm: Norm, bias: Tensor | None, at: Tensor | None) -> Tensor:
    """Return float32 [B, T, N]."""
    squares = norm.squares.sum(0)[: x.shape[0] * x.shape[1]].view(*x.shape[:2], 1)
    factor = torch.rsqrt(squares / x.shape[2] + norm.eps)
    y = product(x if norm.scaled is None else norm.scaled, weight).float() * factor
    return y if bias is None else y + rows_at(bias, at)[:, None]
