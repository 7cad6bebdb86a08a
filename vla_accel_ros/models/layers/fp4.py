"""NVFP4: numbers of four bits (e2m1), sixteen of a row with a scale in e4m3, and one float32 scale a row.

The largest number of a row becomes 6 times the largest scale, 448, so that scales of its smaller groups keep
their three bits. cuBLASLt reads scales in tiles of 128 rows and 4 groups ("1D block scaling factors layout"
in its manual); `tiled` makes these.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP, TILE_ROWS, TILE_GROUPS = 16, 128, 4
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by code; the fourth bit is the sign."""
TOP = 448.0 * E2M1[-1]


def rows_in_fp4(rows: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise rows float32 [M, K], K a multiple of GROUP, to the nearest, ties to even codes.

    Returns values uint8 [M, K / 2], column 2 i in the low half of byte i; scales of the groups, float8_e4m3fn
    [M, K / GROUP], tiled; and scale float32 [M]. dtype: a wider one leaves the scales of groups unrounded.
    """
    scale = rows.abs().amax(1).clamp_min(1e-30) / TOP
    groups = (rows * (1.0 / scale)[:, None]).unflatten(1, (-1, GROUP))
    scales = (groups.abs().amax(2) / E2M1[-1]).to(dtype)
    wide = scales.float()
    numbers = groups / torch.where(wide == 0.0, 1.0, wide)[:, :, None]
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1)], device=rows.device)
    below, above = middles[::2], middles[1::2]  # whose ties go to the even code: down, up
    size = numbers.abs()[..., None]
    codes = ((size > below).sum(-1) + (size >= above).sum(-1)).to(torch.uint8) | (numbers < 0).byte() << 3
    low, high = codes.flatten(1).unflatten(1, (-1, 2)).unbind(2)
    return low | high << 4, tiled(scales), scale


def from_fp4(values: Tensor, scales: Tensor, scale: Tensor) -> Tensor:
    """Return float32 [M, K], from what `rows_in_fp4` returns."""
    codes = torch.stack((values & 15, values >> 4), 2).flatten(1).long()
    table = torch.tensor([*E2M1, *(-number for number in E2M1)], device=values.device)
    groups = untiled(scales, len(values), codes.shape[1] // GROUP).float()
    return (table[codes].unflatten(1, (-1, GROUP)) * groups[:, :, None]).flatten(1) * scale[:, None]


def place_scales(rows: int, width: int, device: torch.device) -> Tensor:
    """Allocate the tiled scales of so many rows."""
    tiles = -(-rows // TILE_ROWS), -(-width // GROUP // TILE_GROUPS)
    return torch.zeros(*tiles, 32, 4, TILE_GROUPS, dtype=torch.float8_e4m3fn, device=device)


def tiled(scales: Tensor) -> Tensor:
    """[M, G] -> [tiles of rows, tiles of groups, 32, 4, 4]: row 32 b + a of a tile is at [a, b]. What is
    beyond is zero."""
    rows, groups = scales.shape
    padded = F.pad(scales.float(), (0, -groups % TILE_GROUPS, 0, -rows % TILE_ROWS))
    tiles = padded.view(-1, 4, 32, padded.shape[1] // TILE_GROUPS, TILE_GROUPS).permute(0, 3, 2, 1, 4)
    return tiles.to(scales.dtype).contiguous()


def untiled(scales: Tensor, rows: int, groups: int) -> Tensor:
    """The way back from `tiled`, [rows, groups]."""
    wide = scales.permute(0, 3, 2, 1, 4)
    return wide.reshape(-1, wide.shape[3] * TILE_GROUPS)[:rows, :groups]
