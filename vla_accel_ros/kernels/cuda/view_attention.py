"""Launch view_attention.cu: attention within the views of the image encoder, on sm_90.

Same signature as the reference in kernels/reference/attention.py. `takes` checks the arguments: bfloat16, 256
tokens a view and heads of 72, as in SigLIP for images of 224 x 224 pixels.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

import torch
from torch import Tensor

from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.early import reads_early

HEAD, PANEL, ROWS, KEYS, THREADS = 72, 64, 64, 256, 160
REST = HEAD - PANEL
BLOCK_BYTES = 2 * KEYS * HEAD * 2 + ROWS * (HEAD + REST) * 2 + 16


class Arguments(ctypes.Structure):
    """The struct Arguments of view_attention.cu."""

    _fields_ = (("out", ctypes.c_void_p), ("scale", ctypes.c_float), ("heads", ctypes.c_int))


def takes(qkv: Tensor, heads: int, views: int) -> bool:
    """Return whether the kernel supports these arguments."""
    return (
        compiling.launchable(qkv)
        and qkv.dtype == torch.bfloat16
        and qkv.is_contiguous()
        and qkv.shape == (views * KEYS, 3 * heads * HEAD)
        and qkv.data_ptr() % 16 == 0
    )


@reads_early(waits=False)
def attend_views(qkv: Tensor, heads: int, views: int, *, pdl: bool = False) -> Tensor:
    """See kernels.reference.attention.attend_views."""
    out = torch.empty(len(qkv), heads * HEAD, dtype=qkv.dtype, device=qkv.device)
    parts = qkv.unflatten(1, (3 * heads, HEAD))
    maps = tuple(
        compiling.tensor_map(parts, (rows, 1, width)) for width in (PANEL, REST) for rows in (ROWS, KEYS)
    )
    arguments = Arguments(out.data_ptr(), HEAD**-0.5 * math.log2(math.e), heads)
    _kernel(qkv.device).launch((len(qkv) // ROWS, heads, 1), (*maps, arguments), pdl)
    return out


@lru_cache(maxsize=4)
def _kernel(device: torch.device) -> compiling.Kernel:
    return compiling.Kernel("view_attention", "attend_views", {}, device, THREADS, BLOCK_BYTES)
