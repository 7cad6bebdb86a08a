"""One pass over the rows between two products of a packed forward."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, factor, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < width
    wide = tl.load(x + row * width + c, mask=ok, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    normed = wide * scale * tl.load(factor + c, mask=ok, other=0.0)
    tl.store(out + row * width + c, normed.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _gated(y, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = c < width
    gate = tl.load(y + row * 2 * width + c, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(y + row * 2 * width + width + c, mask=ok, other=0.0).to(tl.float32)
    # 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    tl.store(out + row * width + c, (gate * tl.sigmoid(inner) * up).to(out.dtype.element_ty), mask=ok)


def rms_norm(x: Tensor, factor: Tensor, eps: float, out: Tensor) -> None:
    """See kernels.reference.rows.rms_norm; x and out are contiguous."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    warps = max(1, min(16, block // 512))
    _rms_norm[(rows,)](x, factor, out, width, eps, BLOCK=block, num_warps=warps)


def gated(y: Tensor, out: Tensor, activation: str) -> None:
    """See kernels.reference.rows.gated; y and out are contiguous."""
    rows, width = out.shape
    block = min(1024, triton.next_power_of_2(width))
    grid = (rows, triton.cdiv(width, block))
    _gated[grid](y, out, width, GELU=activation == "gelu", BLOCK=block, num_warps=max(1, block // 256))
