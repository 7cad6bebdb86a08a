"""The passes between the products of a packed forward, in plain torch: the reference of triton/rows.py.

A prefill's products are large and use cuBLAS, and the rows that ride in it are part of them. What is left is
one pass over the rows before and after each product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vla_accel_ros.kernels.reference.linear import glu

__all__ = ["glu", "rms_norm"]


def rms_norm(x: Tensor, factor: Tensor, eps: float, out: Tensor) -> None:
    """out = x / rms(x) * factor. x, out [M, W]; factor float32 [W]."""
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * factor)
