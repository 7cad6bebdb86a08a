"""Launch attention.cu: attention of a denoise step, on sm_90.

Same signature as the reference in kernels/reference/attention.py. `takes` checks the arguments: bfloat16,
heads of 256, and a tail.
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

HEAD, PANEL, PAD, WARP = 256, 64, 8, 32
TILES = (48, 64, 80, 96, 112, 128, 192)
"""Supported numbers of keys in a tile."""


class Arguments(ctypes.Structure):
    """The struct Arguments of attention.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "slots", "lengths", "tails")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("tokens", "heads", "groups", "alone")),
    )


def takes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    k_tail: Tensor | None = None,
    v_tail: Tensor | None = None,
    tails: Tensor | None = None,
    alone: int = 0,
    seen: Tensor | None = None,
    *,
    config: Config,
) -> bool:
    """Return whether the kernel supports these arguments."""
    return (
        compiling.launchable(q)
        and k_tail is not None
        and seen is None
        and q.dtype == k.dtype == torch.bfloat16
        and q.shape[3] == HEAD
        and q.is_contiguous()
        and 1 <= config.split <= MOST_BLOCKS
        and config.warps in (4, 8, 16)
        and config.block_n in TILES
        and config.block_k in (64, 128)
        and (config.warps == 4 or config.block_n >= config.block_k // 2 + 4)
        and _results_bytes(config, tile_rows(q.shape[1])) <= _inputs_bytes(config, tile_rows(q.shape[1]))
        and _shared_bytes(config, tile_rows(q.shape[1])) <= SHARED_BYTES
    )


@reads_early("k v slots lengths tails", waits=False)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    out: Tensor,
    k_tail: Tensor | None = None,
    v_tail: Tensor | None = None,
    tails: Tensor | None = None,
    alone: int = 0,
    seen: None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.attention.attend."""
    assert k_tail is not None and v_tail is not None and tails is not None
    (batch, tokens, heads, head), keys = q.shape, config.block_n
    tall, sides = tile_rows(tokens), HEAD // config.block_k
    kernel = _kernel(
        tuple(macros(config, tall).items()), q.device, WARP * (config.warps + 1), _shared_bytes(config, tall)
    )
    box = (1, 1, keys, PANEL)
    maps = (
        compiling.tensor_map(q.view(batch * tokens, heads * head), (tall, PANEL)),
        *(compiling.tensor_map(tensor, box) for tensor in (k, v, k_tail, v_tail)),
    )
    arguments = Arguments(
        out.data_ptr(), slots.data_ptr(), lengths.data_ptr(), tails.data_ptr(),
        head**-0.5 * math.log2(math.e), tokens, heads, heads // k.shape[1], alone,
    )  # fmt: skip
    grid = config.split, heads * sides, batch * -(-tokens // ROWS)
    kernel.launch(grid, (*maps, arguments), pdl, config.split)


def macros(config: Config, tall: int) -> dict[str, int]:
    """Return the macros of attention.cu. tall: rows of a query tile."""
    sides = HEAD // config.block_k
    return {
        "SPLIT": config.split, "TEAMS": config.warps // 4, "KEYS": config.block_n, "SIDES": sides,
        "TALL": tall,
    }  # fmt: skip


@lru_cache(maxsize=16)
def _kernel(
    macros: tuple[tuple[str, int], ...], device: torch.device, threads: int, shared: int
) -> compiling.Kernel:
    return compiling.Kernel("attention", "attend", dict(macros), device, threads, shared)


def _shared_bytes(config: Config, tall: int) -> int:
    keys, teams = config.block_n, config.warps // 4
    tile_bytes = HEAD // PANEL * teams * keys * 2 * PANEL + _inputs_bytes(config, tall)
    return tile_bytes + _results_bytes(config, tall) + 8 * (HEAD // PANEL + 1 + 4 * teams)


def _inputs_bytes(config: Config, tall: int) -> int:
    """Return the bytes of queries and values."""
    teams = config.warps // 4
    return 2 * PANEL * (HEAD // PANEL * tall + config.block_k // PANEL * teams * config.block_n)


def _results_bytes(config: Config, tall: int) -> int:
    """Return the bytes of all blocks' results for the rows that one block combines (as many as one block's
    results for all rows)."""
    owned = -(-tall // 8 // config.split) * 8
    return config.split * owned * (config.block_k + PAD) * 4
