"""Resize, padding, normalisation and patch layout of an image in one launch.

A program makes a row of one patch column's pixels in all three channels: for each source row that takes part
it sums along the row, rounds to a byte as two separate passes would, and adds the result to the column sum.
Source pixels are read from L2 a few times rather than intermediates written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.kernels.image import taps


@triton.jit
def _patches(
    image, row_first, row_weight, column_first, column_weight, out, height, width,
    SIZE: tl.constexpr, PATCH: tl.constexpr, ROW_TAPS, COLUMN_TAPS, BLOCK: tl.constexpr,
):  # fmt: skip
    y = tl.program_id(0)
    channel = tl.program_id(1)
    x = tl.arange(0, BLOCK)
    ok = x < SIZE
    start = tl.load(column_first + x, mask=ok, other=0)
    top = tl.load(row_first + y)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(ROW_TAPS):
        source = tl.minimum(top + i, height - 1)
        along = tl.zeros((BLOCK,), tl.float32)
        for j in range(COLUMN_TAPS):
            place = tl.minimum(start + j, width - 1)
            weight = tl.load(column_weight + x * COLUMN_TAPS + j, mask=ok, other=0.0)
            pixel = tl.load(image + (source * width + place) * 3 + channel, mask=ok, other=0)
            along += weight * pixel.to(tl.float32)
        along = tl.minimum(tl.floor(along + 0.5), 255.0)
        total += along * tl.load(row_weight + y * ROW_TAPS + i)
    total = tl.minimum(tl.floor(total + 0.5), 255.0) * (2.0 / 255.0) - 1.0
    side: tl.constexpr = SIZE // PATCH
    patch = (y // PATCH) * side + x // PATCH
    within = channel * (PATCH * PATCH) + (y % PATCH) * PATCH + x % PATCH
    tl.store(out + patch * (3 * PATCH * PATCH) + within, total, mask=ok)


def patches(image: Tensor, size: int, patch: int, out: Tensor) -> None:
    """See kernels.image.patches."""
    height, width = image.shape[:2]
    rows, columns = taps(height, width, size, image.device)
    _patches[(size, 3)](
        image, rows.first, rows.weight, columns.first, columns.weight, out, height, width,
        SIZE=size, PATCH=patch, ROW_TAPS=rows.weight.shape[1], COLUMN_TAPS=columns.weight.shape[1],
        BLOCK=triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip
