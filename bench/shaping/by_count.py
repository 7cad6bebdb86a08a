"""Block shapes by the number of multiprocessors alone: what engines took before, to compare with."""

from __future__ import annotations

from vla_accel_ros.kernels.shapes import ATTENTION, INT8_GATED, INT8_PRODUCT, Config, Shape, round_up

SHARED_BYTES = 96 << 10
"""Shared memory of a block on every GPU from sm_80 on."""


def by_count(shape: Shape, processors: int) -> Config:
    """Return a Config that fits on every GPU since sm_80, with about two blocks for each multiprocessor."""
    if shape.kernel in ATTENTION:
        tile = 16 if shape.rows <= 16 or shape.itemsize > 2 else 32
        block = _fitting(32, 2 * round_up(shape.inner), shape.itemsize, least=16)
        parts = max(1, min(4, processors // max(1, -(-shape.rows // tile)), -(-shape.columns // block)))
        return Config(tile, block, 16, split=parts, warps=4, stages=1)
    if shape.kernel == "read_out":
        return Config(16, 16, 256)
    if shape.kernel in (INT8_PRODUCT, INT8_GATED):
        return _rows_in_8_bits(shape, processors)
    block_m = 16 if shape.rows <= 16 else 32
    block_n = 16 if shape.columns < 64 * processors else 32
    # Weight tiles that a block holds at a time, beside one of activations.
    right = 2 if shape.kernel in ("rotary_qkv", "gated_up") else 1
    most = 64 if shape.kernel == "embed_actions" else 128
    block_k = _fitting(most, 3 * (block_m + right * block_n), shape.itemsize, least=16)
    tiles = -(-shape.rows // block_m) * -(-shape.columns // block_n)
    split = 1
    if shape.kernel == "project":
        while split < 8 and tiles * split < processors and shape.inner // (2 * split) >= block_k:
            split *= 2
    return Config(block_m, block_n, block_k, split)


def _rows_in_8_bits(shape: Shape, processors: int) -> Config:
    """Return large tiles if they fill the SMs, else smaller ones."""
    for block_m, block_n, warps in ((128, 64, 8), (64, 64, 4), (64, 32, 4)):
        tiles = -(-shape.rows // block_m) * -(-shape.columns // block_n)
        if shape.rows > block_m // 2 and tiles >= processors:
            return Config(block_m, block_n, 64 if warps == 8 else 128, warps=warps, stages=3)
    return Config(16 if shape.rows <= 16 else 32 if shape.rows <= 32 else 64, 32, 128, warps=4, stages=3)


def _fitting(most: int, per_unit: int, itemsize: int, least: int) -> int:
    """Return the largest power of two up to `most` for which per_unit elements each fit into shared
    memory."""
    while most > least and most * per_unit * itemsize > SHARED_BYTES:
        most //= 2
    return most
