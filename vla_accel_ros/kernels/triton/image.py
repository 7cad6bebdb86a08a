"""Resize, padding, normalisation and patch layout of all images in one launch.

A program makes part of a row. Neighbouring lanes are neighbouring bytes, the colours of a pixel, so that a
warp reads few cache lines. For each source row it sums along the row, rounds as two separate passes would,
and adds the result to the column's sum. Source pixels are read from L2 several times instead of writing
intermediates. Floating-point products and sums are not fused, as in the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.reference.image import FIELDS, Views
from vla_accel_ros.models.processing.resize import FRACTION_BITS

ROWS = 4
"""Source rows that are summed at once, chosen by measurement; in floating point there are two."""

BLOCK = 256
"""Bytes of a row that a program makes."""


@triton.jit
def _level(total, BITS: tl.constexpr):
    """Round an integer sum to a byte, as Pillow does."""
    return tl.minimum(tl.maximum(total >> BITS, 0), 255)


@triton.jit
def _patches(
    views, levels, out, SIZE: tl.constexpr, PATCH: tl.constexpr, CHANNELS: tl.constexpr,
    ROUNDS: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    OF_VIEW: tl.constexpr, BORDER: tl.constexpr,
):  # fmt: skip
    y, view = tl.program_id(0), tl.program_id(2)
    entry = views + view * OF_VIEW
    image = tl.load(entry).to(tl.pointer_type(tl.uint8))
    height = tl.load(entry + 1).to(tl.int32)
    width = tl.load(entry + 2).to(tl.int32)
    row_first = tl.load(entry + 3).to(tl.pointer_type(tl.int32))
    row_taps = tl.load(entry + 5).to(tl.int32)
    column_first = tl.load(entry + 6).to(tl.pointer_type(tl.int32))
    column_taps = tl.load(entry + 8).to(tl.int32)
    row_step = tl.load(entry + 9).to(tl.int32)
    column_step = tl.load(entry + 10).to(tl.int32)
    number = tl.int32 if ROUNDS else tl.float32
    row_weight = tl.load(entry + 4).to(tl.pointer_type(number))
    column_weight = tl.load(entry + 7).to(tl.pointer_type(number))
    half: tl.constexpr = (1 << (BITS - 1)) if ROUNDS else 0
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = lane < SIZE * 3
    x, colour = lane // 3, lane % 3
    start = tl.load(column_first + x, mask=ok, other=0)
    top = tl.load(row_first + y)
    total = tl.full((BLOCK,), half, number)
    for i in range(0, row_taps, ROWS):
        tap = i + tl.arange(0, ROWS)
        line = image + (tl.minimum(top + tap, height - 1) * row_step)[:, None]
        along = tl.full((ROWS, BLOCK), half, number)
        for j in range(column_taps):
            to_pixel = tl.minimum(start + j, width - 1) * column_step + colour
            weight = tl.load(column_weight + j * SIZE + x, mask=ok, other=0)
            pixel = tl.load(line + to_pixel[None, :], mask=ok[None, :], other=0).to(tl.int32)
            if ROUNDS:
                along += pixel * weight[None, :]
            else:
                along += tl.load(levels + colour[None, :] * 256 + pixel) * weight[None, :]
        if ROUNDS:
            along = _level(along, BITS)
        below = tl.load(row_weight + tap * SIZE + y, mask=tap < row_taps, other=0)
        total += tl.sum(along * below[:, None], axis=0)
    side: tl.constexpr = SIZE // PATCH
    square = out + ((view * side + y // PATCH) * side + x // PATCH) * (CHANNELS * PATCH * PATCH)
    within = y % PATCH * PATCH + x % PATCH
    for triple in tl.static_range(0, CHANNELS, 3):
        channel = triple + colour
        if ROUNDS:
            level = tl.load(levels + channel * 256 + _level(total, BITS))
        else:
            # The first tap of a row or column of the image is never 0 in floating point.
            inside = tl.load(row_weight + y) * tl.load(column_weight + x, mask=ok, other=0)
            level = tl.where(inside > 0, tl.minimum(tl.maximum(total, 0.0), 1.0) * 2.0 - 1.0, BORDER)
        tl.store(square + channel * (PATCH * PATCH) + within, level, mask=ok)


def patches(views: Views, patch: int, out: Tensor) -> None:
    """See kernels.reference.image.patches."""
    size, channels = views.size, len(views.levels)
    _patches[(size, triton.cdiv(3 * size, BLOCK), len(views.table))](
        views.table, views.levels, out, SIZE=size, PATCH=patch, CHANNELS=channels,
        ROUNDS=views.rule.rounds, BITS=FRACTION_BITS, ROWS=ROWS if views.rule.rounds else 2,
        BLOCK=BLOCK, OF_VIEW=FIELDS, BORDER=views.rule.border, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
