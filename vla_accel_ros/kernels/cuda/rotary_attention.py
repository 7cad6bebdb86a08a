"""Launch rotary_attention.cu: attention of staggered chunks, on sm_90.

Same signature as the reference in kernels/reference/attention.py. `takes` checks the arguments: bfloat16 and
heads of 256. q and k_tail stay unused.

In its Config, block_m is 64 rows for each head of a block, block_n the keys of a tile, and split the key
ranges of all sequences together. How a sequence is split does not depend on the others' lengths, so neither
does its result.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

import torch
from torch import Tensor

from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda.compiling import MOST_BLOCKS, ROWS, SHARED_BYTES, tile_rows
from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.shapes import Config

HEAD, PANEL = 256, 64
TILES = (64, 80, 96, 112)
"""Supported numbers of keys in a tile."""
MOST_STAGES = 6


class Arguments(ctypes.Structure):
    """The struct Arguments of rotary_attention.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("y", "cos", "sin", "out", "slots", "lengths")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("tokens", "heads", "kv_heads", "alone")),
    )


def takes(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    q: Tensor,
    k_tail: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    alone: int = 0,
    seen: Tensor | None = None,
    *,
    config: Config,
) -> bool:
    """Return whether the kernel supports these arguments."""
    return (
        compiling.launchable(y)
        and y.dtype == k.dtype == v.dtype == torch.bfloat16
        and k.shape[3] == HEAD
        and seen is None
        and k.stride(3) == v.stride(3) == 1
        and y.is_contiguous()
        and cos.is_contiguous()
        and sin.is_contiguous()
        and config.block_m in (ROWS, 2 * ROWS)
        and config.block_n in TILES
        and macros(config, y.shape[0], y.shape[1]) is not None
    )


@reads_early("cos sin k v slots lengths", waits=False)
def attend_rotary(
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    q: Tensor,
    k_tail: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    alone: int = 0,
    seen: None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend_rotary."""
    (batch, tokens, columns), kv_heads = y.shape, k.shape[1]
    heads = columns // HEAD - 2 * kv_heads
    definitions = macros(config, batch, tokens)
    assert definitions is not None
    kernel = _kernel(tuple(definitions.items()), y.device)
    box = (1, 1, config.block_n, PANEL)
    arguments = Arguments(
        *(tensor.data_ptr() for tensor in (y, cos, sin, out, slots, lengths)),
        HEAD**-0.5 * math.log2(math.e), tokens, heads, kv_heads, alone,
    )  # fmt: skip
    across = kv_heads * -(-(heads // kv_heads) // definitions["HEADS"])
    kernel.launch(
        (definitions["SPLIT"], across, batch * -(-tokens // ROWS)),
        (compiling.tensor_map(k, box), compiling.tensor_map(v, box), arguments),
        pdl,
        definitions["SPLIT"],
    )


def macros(config: Config, batch: int, tokens: int) -> dict[str, int] | None:
    """Return the macros of rotary_attention.cu; None if a block's shared memory is too small."""
    tall, heads = tile_rows(tokens), config.block_m // ROWS
    split = max(1, min(MOST_BLOCKS, config.split // batch))
    tile, part_bytes = config.block_n * HEAD * 2, split * heads * -(-tall // split) * (HEAD * 2 + 16)
    for stages in range(MOST_STAGES, 1, -1):
        fits = _shared_bytes(config.block_n, heads, stages, tall) <= SHARED_BYTES
        if fits and part_bytes <= (stages - 1) * tile:
            return {"SPLIT": split, "KEYS": config.block_n, "HEADS": heads, "STAGES": stages, "TALL": tall}
    return None


@lru_cache(maxsize=32)
def _kernel(macros: tuple[tuple[str, int], ...], device: torch.device) -> compiling.Kernel:
    definitions = dict(macros)
    shared = _shared_bytes(
        definitions["KEYS"], definitions["HEADS"], definitions["STAGES"], definitions["TALL"]
    )
    threads = 128 + 32 if definitions["HEADS"] == 1 else 3 * 128
    return compiling.Kernel("rotary_attention", "attend_rotary", definitions, device, threads, shared)


def _shared_bytes(keys: int, heads: int, stages: int, tall: int) -> int:
    query_bytes = -(-tall * (HEAD * 2 + 16) // 1024) * 1024
    return heads * query_bytes + stages * keys * HEAD * 2 + 8 * (2 * stages + 1)
