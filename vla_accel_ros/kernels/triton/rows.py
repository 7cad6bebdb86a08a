"""One pass over the rows between two products of a packed forward."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.triton.norm import glu

__all__ = ["glu", "rms_norm"]


@triton.jit
def _rms_norm(x, factor, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    normed = wide * scale * tl.load(factor + c, mask=ok, other=0.0)
    tl.store(out + row * width + c, normed.to(out.dtype.element_ty), mask=ok)


def rms_norm(x: Tensor, factor: Tensor, eps: float, out: Tensor) -> None:
    """See kernels.reference.rows.rms_norm; x and out are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    warps = max(1, min(16, block // 512))
    _rms_norm[(rows,)](x, factor, out, width, eps, BLOCK=block, num_warps=warps)
