"""What every kernel starts with, and how it is launched.

With `PDL` (programmatic dependent launch, sm_90 and later) the blocks of a kernel start while the one before
drains: they ask for their weights, which no kernel writes, and only then wait for what it computed. Every
kernel of a chain waits before its first dependent access, so a chain is as ordered as without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LINE = 128
"""Bytes of a cache line."""


class Scratch(NamedTuple):
    """Memory that kernels of one chain share: partial sums float32 [n], and counters int32 [m], all zero.

    Whoever counts the last sets the counter back, so a chain leaves it as it found it. Chains that may run at
    the same time need one each.
    """

    sums: Tensor
    counters: Tensor

    @classmethod
    def of(cls, device: torch.device, sums: int = 4 << 20, counters: int = 4096) -> Scratch:
        """16 MiB of sums unless told otherwise."""
        return cls(
            torch.empty(sums, dtype=torch.float32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
        )


def options(warps: int, stages: int, pdl: bool) -> dict[str, Any]:
    """Launch options; the interpreter knows no PDL."""
    chosen: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "PDL": pdl}
    return {**chosen, "launch_pdl": True} if pdl else chosen


def precision(x: Tensor) -> str:
    """How tl.dot multiplies: half precisions as they are, float32 exactly and not as TF32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@triton.jit
def prefetch(pointers):
    """Ask for the cache lines of pointers to be in L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def prefetch_rows(weight, rows, limit, width, low, high, LINES: tl.constexpr):
    """Ask for columns low..high of the given rows of a row-major matrix; LINES lines cover them."""
    per_line: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    columns = low + tl.arange(0, LINES) * per_line
    columns = tl.minimum(columns, high - 1)
    rows = tl.minimum(rows, limit - 1)
    prefetch(weight + rows[:, None].to(tl.int64) * width + columns[None, :])


@triton.jit
def after_previous():
    """Wait for the kernel before, and let the next one start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
