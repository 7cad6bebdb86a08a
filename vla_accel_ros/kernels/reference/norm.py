"""The passes between the large products of encode, prefill and staggered steps, in plain torch: the
references of triton/norm.py.

cuBLAS computes those products, near its limit, and everything between two of them is one pass over the rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import NORM_EPS


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, eps: float = NORM_EPS) -> None:
    """out = x / rms(x) * (1 + weight). x, out [M, W]; weight float32 [W]."""
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (1.0 + weight))


def add_norm(
    x: Tensor,
    y: Tensor | None,
    out: Tensor | None,
    at: Tensor,
    gate: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = NORM_EPS,
) -> None:
    """x += gate * sum of y in place, out = x / rms(x) * (1 + scale) + shift.

    x, out [B, T, W]; y [P, B, T, W]: the split-K parts of what is added, None = nothing; out None = no norm;
    gate, scale, shift float32 [S, W], where sequence b uses row at[b], None = 1, 0 and 0; at int32 [B].
    """
    table_rows = at.long()
    if y is not None:
        added = y.float().sum(0)
        x.copy_(x.float() + (added if gate is None else added * gate[table_rows][:, None]))
    if out is None:
        return
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if scale is not None:
        normed = normed * (1.0 + scale[table_rows][:, None])
    out.copy_(normed if shift is None else normed + shift[table_rows][:, None])


def add_layer_norm(
    x: Tensor,
    y: Tensor | None,
    y_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    gate: Tensor | None = None,
    eps: float = NORM_EPS,
    *,
    computed: bool = False,
    centred: bool = True,
) -> None:
    """x += gate * (y + y_bias) in place, out = layer norm of x.

    x, y, out [M, W]; y None = nothing to add; y_bias [W], gate, weight, bias [W], or [f, W] of M / f rows
    each, of any float dtype, None = 0, 1, 1 and 0. computed: weight and bias are results of launches shortly
    before. centred: False = the root mean square norm, which subtracts no mean.
    """
    gate, weight, bias = (_of_rows(table, len(x)) for table in (gate, weight, bias))
    if y is not None:
        added = y.float() if y_bias is None else y.float() + y_bias.float()
        x.copy_(x.float() + (added if gate is None else gate * added))
    norm = F.layer_norm if centred else F.rms_norm
    normed = norm(x.float(), (x.shape[1],), eps=eps)
    normed = normed if weight is None else normed * weight
    out.copy_(normed if bias is None else normed + bias)


def _of_rows(table: Tensor | None, rows: int) -> Tensor | None:
    if table is None or table.ndim == 1:
        return None if table is None else table.float()
    return table.float().repeat_interleave(rows // len(table), dim=0)


def bias_product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x @ weight.T + bias. x [M, K]; weight [N, K]; bias [N], None = 0; out [M, N]."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def gelu_product(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """out = gelu(x @ weight.T + bias) in its tanh form. x [M, K]; weight [N, K]; bias [N]; out [M, N]."""
    torch.mm(x, weight.t(), out=out)
    bias_gelu(out, bias)


def add_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, gate: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """x += gate * (a @ weight.T + bias) in place. Returns what add_layer_norm has still to add, times the
    gate: y and its bias, or Nones.

    a [M, K]; weight [N, K]; bias [N], None = 0; x [M, N]; y [M, N], memory for a product that is not added
    here; gate [N], None = 1.
    """
    added = F.linear(a, weight, bias).float()
    x.copy_(x.float() + (added if gate is None else gate.float() * added))
    return None, None


def bias_gelu(y: Tensor, bias: Tensor) -> None:
    """y = gelu(y + bias) in its tanh form, in place. y [M, N]; bias [N]."""
    y.copy_(F.gelu(y.float() + bias.float(), approximate="tanh"))
