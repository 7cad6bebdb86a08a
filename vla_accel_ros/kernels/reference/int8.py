"""Products of int8 activations and weights, and the passes that make their rows: the reference of
triton/int8.py.

Activations are rounded by rows (tokens), each with its own scale, in the pass that makes them: the norm
before a product, or a separate pass after attention and activations. Integer sums do not depend on order, so
kernel and reference differ only by the rounding of what follows. Every pass and product also takes exact
operands (`Tensor` for `Rows`, an unquantised weight), for layers that lose too much in 8 bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import NORM_EPS, glu
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.models.layers.quantized import INT8_MAX, Quantized, Weight, rows_in_int8

Activations = Rows | Tensor
"""[M, K]: int8 values with a scale for each row, or an exact tensor."""

EXACT_SUMS = 1 << 24
"""Up to here float32 holds every whole number."""


def place_rows(rows: int, width: int, device: torch.device) -> Rows:
    """Allocate rows of int8."""
    values = torch.zeros(rows, width, device=device, dtype=torch.int8)
    return Rows(values, torch.ones(rows, 1, device=device))


def quantize(x: Tensor, by: Tensor | None, out: Rows) -> None:
    """out = x * by. x [M, K]; by float32 [K], None = 1."""
    _leave(x.float() if by is None else x.float() * by, out)


def rms_norm(x: Tensor, factor: Tensor, out: Activations, eps: float = NORM_EPS) -> None:
    """out = x / rms(x) * factor. x [M, W]; factor float32 [W], smoothing included."""
    wide = x.float()
    _leave(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * factor, out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, out: Activations) -> None:
    """out = layer norm of x [M, W]. weight, bias float32 [W], smoothing included."""
    _leave(F.layer_norm(x.float(), (x.shape[1],), weight, bias, NORM_EPS), out)


def add_norm(
    x: Tensor,
    y: Tensor | None,
    by: Tensor | None,
    out: Activations | None,
    at: Tensor,
    gate: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> None:
    """x += gate * y in place, out = (x / rms(x) * (1 + scale) + shift) * by.

    x, y [B, T, W]; y None = nothing is added; by float32 [W], None = 1; out [B * T, W], None = no norm; gate,
    scale, shift float32 [S, W], where sequence b uses row at[b], None = 1, 0 and 0; at int32 [B].
    """
    table_rows = at.long()
    if y is not None:
        x.copy_(x.float() + (y.float() if gate is None else y.float() * gate[table_rows][:, None]))
    if out is None:
        return
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
    if scale is not None:
        normed = normed * (1.0 + scale[table_rows][:, None])
    if shift is not None:
        normed = normed + shift[table_rows][:, None]
    _leave((normed if by is None else normed * by).flatten(0, 1), out)


def multiply(
    a: Activations, weight: Weight, out: Tensor, bias: Tensor | None = None, finish: str = "none"
) -> None:
    """out = a @ weight.T + bias. finish "add": out += that; "gelu": out = gelu of that, in its tanh form.

    weight [N, K], int8 if `a` is; bias [N] of any float dtype; out [M, N].
    """
    product = _product(a, weight)
    if bias is not None:
        product = product + bias.float()
    if finish == "add":
        product = out.float() + product
    elif finish == "gelu":
        product = F.gelu(product, approximate="tanh")
    out.copy_(product)


def gated(a: Activations, weight: Weight, out: Tensor, activation: str = "gelu") -> None:
    """out = activation(gate) * up, with gate and up from a @ weight.T; gelu is its tanh form.

    weight [2 N, K], the gate's rows first; out [M, N].
    """
    glu(_product(a, weight), out, activation)


def _leave(wide: Tensor, out: Activations) -> None:
    """Fill `out` with rows float32 [M, K]."""
    if isinstance(out, Tensor):
        out.view(wide.shape).copy_(wide)
        return
    values, scale = rows_in_int8(wide)
    out.values.copy_(values)
    out.scale.copy_(scale[:, None])


def _product(a: Activations, weight: Weight) -> Tensor:
    """Return float32 [M, N]: exact integer sums (in float32 or float64), then the scales."""
    if isinstance(a, Tensor):
        assert isinstance(weight, Tensor), "exact activations need exact weights"
        return F.linear(a, weight).float()
    assert isinstance(weight, Quantized), "8-bit activations need 8-bit weights"
    small = weight.columns * INT8_MAX**2 < EXACT_SUMS
    dtype = torch.float32 if small else torch.float64
    sums = a.values.to(dtype) @ weight.values.to(dtype).T
    return sums.float() * a.scale * weight.scale
