"""Products with quantised weights, and the passes that make rows for them: the reference of
triton/quantized.py.

The form depends on what bounds a product. If arithmetic does (encode, prefill), activations are fp8 too: the
pass that makes the rows also quantises them, with a scale for each (`Rows`), and the tensor cores multiply
fp8 by fp8, or nvfp4 by nvfp4. If reading weights does (denoise, decode), only the weights are quantised: they
are dequantised in the tile that multiplies them, and activations stay exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import NORM_EPS
from vla_accel_ros.models.layers.fp4 import from_fp4, place_scales, rows_in_fp4
from vla_accel_ros.models.layers.quantized import E4M3_MAX, FP8, NVFP4, Quantized, product


class Rows(NamedTuple):
    """Activations [M, K] = values times scale.

    values float8_e4m3fn [M, K], the largest magnitude of each row 448 (a wider dtype holds them unrounded);
    scale float32 [M, 1]. With groups they are in nvfp4, see models.layers.fp4.
    """

    values: Tensor
    scale: Tensor
    groups: Tensor | None = None

    @classmethod
    def place(cls, rows: int, width: int, device: torch.device) -> Rows:
        """Allocate rows."""
        values = torch.zeros(rows, width, device=device, dtype=torch.float8_e4m3fn)
        return cls(values, torch.ones(rows, 1, device=device))

    @classmethod
    def within(cls, memory: Tensor, kind: str = FP8) -> Rows:
        """Make rows of fp8 or nvfp4 inside the memory of a contiguous tensor [..., W] of a wider dtype, one
        for each of its rows."""
        width, device, numbers = memory.shape[-1], memory.device, memory.view(torch.uint8).flatten()
        scale = torch.ones(memory.numel() // width, 1, device=device)
        if kind == NVFP4:
            values = numbers[: memory.numel() // 2].view(-1, width // 2)
            return cls(values, scale, place_scales(len(scale), width, device))
        return cls(numbers[: memory.numel()].view(torch.float8_e4m3fn).view(-1, width), scale)

    def float(self) -> Tensor:
        """Return the rows, float32 [M, K]."""
        if self.groups is not None:
            return from_fp4(self.values, self.groups, self.scale[:, 0])
        return self.values.float() * self.scale

    def leave(self, wide: Tensor) -> None:
        """Fill it with rows float32 [M, K]."""
        if self.groups is not None:
            values, groups, scale = rows_in_fp4(wide, self.groups.dtype)
            self.values.copy_(values)
            self.groups.copy_(groups)
            self.scale.copy_(scale[:, None])
            return
        self.scale.copy_(wide.abs().amax(1, keepdim=True).clamp_min(1e-12) / E4M3_MAX)
        self.values.copy_(wide / self.scale)


class Product(NamedTuple):
    """A product of fp8 rows before its scales, which the consumer applies.

    values [M, N]: a.values @ weight.values.T, in nvfp4 with the scales of groups. rows float32 [M, 1]: scale
    of a. columns float32 [N]: scale of the weight. A product with a single scale is faster than one with a
    scale for each row.
    """

    values: Tensor
    rows: Tensor
    columns: Tensor

    def float(self) -> Tensor:
        """Return the scaled product, float32 [M, N]."""
        return self.values.float() * self.rows * self.columns


def rms_norm_rows(x: Tensor, y: Product | None, weight: Tensor, out: Rows) -> None:
    """x += y in place, out = x / rms(x) * (1 + weight).

    x, y [M, W]; y None = nothing to add; weight float32 [W].
    """
    if y is not None:
        x.copy_(x.float() + y.float())
    wide = x.float()
    out.leave(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS) * (1.0 + weight))


def layer_norm_rows(
    x: Tensor, y: Tensor | Product | None, y_bias: Tensor | None, weight: Tensor, bias: Tensor, out: Rows
) -> None:
    """x += y + y_bias in place, out = layer norm of x; as kernels.reference.norm.add_layer_norm."""
    if y is not None:
        total = x.float() + y.float()
        x.copy_(total if y_bias is None else total + y_bias.float())
    out.leave(F.layer_norm(x.float(), (x.shape[1],), weight.float(), bias.float(), NORM_EPS))


def glu_rows(y: Product, out: Rows) -> None:
    """out = gelu(gate) * up; y [M, 2 N], the gate first."""
    gate, up = y.float().chunk(2, dim=-1)
    out.leave(F.gelu(gate, approximate="tanh") * up)


def gelu_rows(y: Product, bias: Tensor, out: Rows) -> None:
    """out = gelu(y + bias) in its tanh form. y [M, N]; bias [N]."""
    out.leave(F.gelu(y.float() + bias.float(), approximate="tanh"))


def multiply_rows(a: Rows, weight: Quantized, out: Tensor, bias: Tensor | None = None) -> None:
    """out = a @ weight.T + bias. weight [N, K] in fp8 or nvfp4, as `a`; out [M, N]; bias [N] of its dtype."""
    product = _unscaled(a, weight) * a.scale * weight.scale
    out.copy_(product if bias is None else product + bias.float())


def multiply_unscaled(a: Rows, weight: Quantized, out: Tensor) -> None:
    """See Product. weight [N, K] in fp8 or nvfp4, as `a`; out [M, N]."""
    out.copy_(_unscaled(a, weight))


def multiply(a: Tensor, weight: Quantized, out: Tensor, add: bool = False) -> None:
    """out = a @ weight.T, or out += that, for few rows. a [M, K]; out [M, N]."""
    values = product(a, weight).float()
    out.copy_(out.float() + values if add else values)


def _unscaled(a: Rows, weight: Quantized) -> Tensor:
    return _numbers(a.values, a.groups) @ _numbers(weight.values, weight.groups).T


def _numbers(values: Tensor, groups: Tensor | None) -> Tensor:
    """Values without the scales of their rows, float32 [M, K]."""
    if groups is None:
        return values.float()
    return from_fp4(values, groups, torch.ones(len(values), device=values.device))
