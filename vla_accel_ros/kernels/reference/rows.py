"""The passes between the products of a packed forward, in plain torch: the reference of triton/rows.py.

A prefill's products are large and use cuBLAS, and the rows that ride in it are part of them. What is left is
one pass over the rows before and after each product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = ("gelu", "silu")


def rms_norm(x: Tensor, factor: Tensor, eps: float, out: Tensor) -> None:
    """out = x / rms(x) * factor. x, out [M, W]; factor float32 [W]."""
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * factor)


def gated(y: Tensor, out: Tensor, activation: str) -> None:
    """out = activation(gate) * up; gelu is its tanh form. y [M, 2 N], the gate first; out [M, N]."""
    gate, up = y.float().chunk(2, dim=1)
    out.copy_((F.gelu(gate, approximate="tanh") if activation == "gelu" else F.silu(gate)) * up)
