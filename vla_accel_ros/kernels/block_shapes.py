"""Chooses block shapes that no table has: those with the shortest time that a model of the launch predicts.

A launch is waves of blocks. A block loops over chunks of the inner dimension (of the keys, in attention); a
chunk takes as long as its arithmetic, its bytes from L2, or the latency of its loads divided by the loads in
flight. Blocks that share a multiprocessor share both rates and hide each other's latency. All blocks together
take no less than their bytes from L2 and from memory. A split inner dimension adds the sum of its parts.

The constants of each kind of kernel are fitted to measured launches of an H100 (`python
bench/block_shapes.py`, which also says how much slower the chosen shapes are than the best); what depends on
the GPU is in kernels.gpu. On GPUs other than that they are predictions: `vla tune` measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from vla_accel_ros.kernels.candidates import (
    ATTENTION_TILES,
    CANDIDATES,
    PROJECT,
    SMALL_WEIGHTS,
    rows_candidates,
)
from vla_accel_ros.kernels.gpu import REGISTERS, Gpu
from vla_accel_ros.kernels.shapes import ATTENTION, INT8_GATED, INT8_PRODUCT, PARTED, Config, Shape, round_up

HELD = 48
"""Registers of a thread besides its sums."""
HOPPER, MOST_SUMS, FEWER_SUMS = 90, 128, 96
"""Numbers that a thread sums without spilling: on Hopper, whose matrix units read shared memory, and
elsewhere, where operands are in registers, too."""
RESERVED = 1 << 10
"""Bytes of shared memory that a block takes besides its tiles."""
GROUP = 64
"""Columns of int4 weights with one scale, which are one chunk."""
MATRIX_ROWS = 64
"""Rows of Hopper's matrix instructions; tiles with fewer take the older ones."""
FULL_COLUMNS = 128
"""Columns of a tile from which on products are at their full rate."""
DOUBLE = ("rotary_qkv", "gated_up", INT8_GATED)
"""Kernels whose blocks have two tiles of weights."""
PACKED = "uint8"
"""The dtype of int4 weights: two in a byte."""
HALF, SUM_BYTES = 2, 4
"""Bytes of an activation, and of a sum."""


@dataclass(frozen=True)
class Costs:
    """Constants of a kind of kernel. rate: share of the multiprocessor's arithmetic that a loop reaches;
    few_rows: of that, with tiles of less than MATRIX_ROWS rows on sm_90 and later. latency_us: of a load.
    start_us: of a launch, and block_us: of a block, besides its chunks. columns: power of the share of 128
    columns by which narrow tiles are slower. widen: quantised weights that a multiprocessor dequantises in a
    cycle; 0 = none."""

    rate: float
    few_rows: float
    latency_us: float
    start_us: float
    block_us: float
    columns: float = 0.0
    widen: float = 0.0


EXACT = Costs(0.552, 0.274, 0.485, 0.196, 4.92)
ROWS = Costs(0.578, 0.368, 0.626, 0.484, 1.56, columns=0.537)
SMALL = Costs(0.492, 0.3, 0.731, 2.02, 0.486, widen=17.7)
SMALL_PACKED = Costs(0.469, 0.3, 0.0427, 0.0, 3.76, widen=12.6)
ATTEND = Costs(0.499, 0.341, 1.32, 0.0, 0.0)
"""EXACT: products of few rows by exact weights. ROWS: of 8-bit rows. SMALL, SMALL_PACKED: of few rows by
weights of 8 and 4 bits, which are dequantised in their tile. ATTEND: attention."""
ENDS = {
    "embed_actions": (Config(64, 16, 128, stages=4), Config(32, 16, 64)),
    "read_out": (
        Config(16, 16, 1024, warps=8, stages=1),
        Config(16, 16, 512, stages=2),
        Config(16, 16, 256, stages=2),
    ),
}
"""Block shapes of the two ends of a denoising step: the first that fits. They are within 20 % of the best at
all sizes that were measured."""
LEAST = Config(16, 16, 32, stages=1)
"""Fits everywhere."""
COMBINE_US = 4.7
"""Time of the launch that combines parts of the keys."""


def chosen(shape: Shape, gpu: Gpu) -> Config:
    """Return the block shape with which a launch is predicted to be fastest on a GPU. Numbers of rows that
    round up to the same power of two, or beyond MATRIX_ROWS to the same multiple of it, have the same block
    shape."""
    rows = round_up(shape.rows) if shape.rows <= MATRIX_ROWS else -(-shape.rows // MATRIX_ROWS) * MATRIX_ROWS
    return _chosen(replace(shape, rows=rows), gpu)


@lru_cache(maxsize=4096)
def _chosen(shape: Shape, gpu: Gpu) -> Config:
    if shape.kernel in ENDS:
        return next((c for c in ENDS[shape.kernel] if _held(gpu, c, _tile_bytes(shape, c), 0)), LEAST)
    times_us = {config: predicted_us(shape, config, gpu) for config in candidates(shape)}
    best = min(times_us, key=lambda config: times_us[config])
    return best if times_us[best] < math.inf else LEAST


def _tile_bytes(shape: Shape, config: Config) -> float:
    return config.stages * config.block_k * (config.block_m + config.block_n) * shape.itemsize


def candidates(shape: Shape) -> Iterable[Config]:
    """Yield the block shapes to choose from."""
    if shape.kernel == PARTED:
        yield Config(16, 16, 16)
    elif shape.kernel in ATTENTION:
        # Entries of a table count the parts of all sequences.
        parts = (1, 2, 3) if shape.kernel == "attend_rotary" else (1, 2, 3, 4, 5, 6, 8, 10)
        yield from (replace(tile, split=part * shape.sequences) for tile in ATTENTION_TILES for part in parts)
    elif shape.kernel in (INT8_PRODUCT, INT8_GATED):
        yield from (c for c in rows_candidates(shape.rows) if c.block_k >= 128 and _ever_fastest(c))
    elif shape.itemsize == 1:
        whole = shape.kernel != "project"
        yield from (c for c in SMALL_WEIGHTS if c.warps == 4 and not (whole and c.split > 1))
    else:
        # The others need more shared memory than most GPUs have.
        few = PROJECT if shape.kernel == "project" else CANDIDATES[shape.kernel]
        yield from (c for c in few if c.stages <= 6)


def _ever_fastest(config: Config) -> bool:
    """Whether a tile of 8-bit rows is among those that were the fastest of any launch."""
    return config.block_m * config.block_n <= 1 << 14 and (config.warps == 4 or config.block_n >= 128)


def predicted_us(shape: Shape, config: Config, gpu: Gpu) -> float:
    """Return the predicted microseconds of a launch; inf if the block shape does not fit on the GPU. The ends
    of a denoising step (ENDS) are not predicted."""
    if shape.kernel in ATTENTION:
        return _attention_us(shape, config, gpu)
    return _product_us(shape, config, gpu)


def costs_of(shape: Shape) -> Costs:
    """Return the constants of the shape's kind of kernel."""
    if shape.kernel in ATTENTION:
        return ATTEND
    if shape.kernel in (INT8_PRODUCT, INT8_GATED):
        return ROWS
    if shape.itemsize > 1:
        return EXACT
    return SMALL_PACKED if shape.dtype == PACKED else SMALL


def _product_us(shape: Shape, config: Config, gpu: Gpu) -> float:
    costs, right = costs_of(shape), 2 if shape.kernel in DOUBLE else 1  # tiles of weights
    block_m, block_k, row_bytes = config.block_m, config.block_k, shape.itemsize
    weight_bytes = float(shape.itemsize)
    if costs.widen:  # weights are dequantised in their tile, see triton.small_weights.cut
        block_m, row_bytes = max(block_m, min(round_up(shape.rows), MATRIX_ROWS)), HALF
        weight_bytes, block_k = (0.5, GROUP) if costs is SMALL_PACKED else (1.0, min(block_k, 128))
    chunk_bytes = block_k * (block_m * row_bytes + right * config.block_n * weight_bytes)
    blocks_held = _held(gpu, config, config.stages * chunk_bytes, block_m * config.block_n * right)
    if not blocks_held:
        return math.inf
    multiplied = _multiplied_us(
        costs, gpu, block_m, 2 * block_m * config.block_n * block_k * right, row_bytes
    )
    multiplied *= min(1.0, config.block_n * right / FULL_COLUMNS) ** -costs.columns
    widened_us = 0.0
    if costs.widen:
        # Each warp dequantises 16 columns; warps beyond them dequantise the same once more.
        widened = (
            max(config.block_n, 16 * config.warps) * block_k * right / (1e3 * gpu.clock_ghz * costs.widen)
        )
        multiplied, widened_us = multiplied + widened, widened * 4 / config.warps
    loop = Loop(
        math.ceil(shape.rows / block_m) * math.ceil(shape.columns / config.block_n) * config.split,
        math.ceil(math.ceil(shape.inner / block_k) / config.split),
        multiplied,
        chunk_bytes,
        widened_us,
    )
    read = shape.inner * (shape.columns * right * weight_bytes + shape.rows * row_bytes) / gpu.memory_bytes_us
    us = costs.start_us + _loop_us(costs, gpu, config, blocks_held, loop, read)
    if config.split > 1:
        us += (config.split + 1) * block_m * config.block_n * SUM_BYTES / gpu.port_bytes_us
    return us


def _attention_us(shape: Shape, config: Config, gpu: Gpu) -> float:
    costs, head, pairs = ATTEND, round_up(shape.inner), shape.sequences * shape.key_heads
    parts = max(1, config.split // shape.sequences)
    chunk_bytes = 2.0 * config.block_n * head * shape.itemsize
    tiles = config.stages * chunk_bytes + config.block_m * head * shape.itemsize
    blocks_held = _held(gpu, config, tiles, config.block_m * head)
    if not blocks_held:
        return math.inf
    flop = 4 * config.block_m * config.block_n * head
    loop = Loop(
        math.ceil(shape.rows / config.block_m) * parts * pairs,
        math.ceil(shape.columns / parts / config.block_n),
        _multiplied_us(costs, gpu, config.block_m, flop, shape.itemsize),
        chunk_bytes,
    )
    us = costs.start_us + _loop_us(costs, gpu, config, blocks_held, loop)
    if parts > 1:
        us += COMBINE_US + 2 * parts * pairs * shape.rows * head * SUM_BYTES / gpu.l2_bytes_us
    return us


def _held(gpu: Gpu, config: Config, tile_bytes: float, sums: int) -> int:
    """Return how many blocks a multiprocessor holds at a time; 0 if not even one without spilling
    registers. sums: numbers that a block sums."""
    threads, multiprocessor = 32 * config.warps, gpu.multiprocessor
    limit = MOST_SUMS if gpu.capability == HOPPER else FEWER_SUMS
    if tile_bytes > multiprocessor.block_shared or sums > limit * threads:
        return 0
    registers = min(255, HELD + sums // threads)
    by_shared = int(multiprocessor.shared // (tile_bytes + RESERVED))
    return max(1, min(by_shared, multiprocessor.threads // threads, REGISTERS // (threads * registers)))


def _multiplied_us(costs: Costs, gpu: Gpu, block_m: int, flop: float, itemsize: int) -> float:
    """Return the time of a chunk's products on a multiprocessor."""
    rate = costs.rate * gpu.flop_us(itemsize)
    if block_m < MATRIX_ROWS and gpu.capability >= 90:
        rate *= costs.few_rows
    return flop / rate


class Loop(NamedTuple):
    """What the blocks of a launch do. chunks: of one block. multiplied_us: of a chunk. own_us: of a chunk,
    which nothing in the same block hides."""

    blocks: int
    chunks: int
    multiplied_us: float
    chunk_bytes: float
    own_us: float = 0.0


def _loop_us(costs: Costs, gpu: Gpu, config: Config, held: int, loop: Loop, read_us: float = 0.0) -> float:
    """Return the time of all blocks. held: on a multiprocessor at a time. read_us: of what comes from
    memory."""
    blocks_each = math.ceil(loop.blocks / gpu.processors)
    # Attention has keys and values of its own stage under way, too.
    flying = config.stages if costs is ATTEND else max(1, config.stages - 1)
    busy = max(loop.multiplied_us, loop.chunk_bytes / gpu.port_bytes_us)
    alone = max(busy, costs.latency_us / flying) + loop.own_us
    waves = math.ceil(blocks_each / held) * (
        loop.chunks * math.hypot(alone, min(held, blocks_each) * busy) + costs.block_us
    )
    from_l2 = loop.blocks * loop.chunks * loop.chunk_bytes / gpu.l2_bytes_us
    # What goes on at once takes a little more than the longest of it.
    return math.hypot(waves**2, from_l2**2, read_us**2) ** 0.5
