"""Launch products.cu: the three products of a denoise layer, for few rows, on sm_90.

Same signatures as the references in kernels/reference/linear.py. `takes` checks the arguments: bfloat16,
whole tiles of columns and of the inner dimension, and weights that fit into a block's shared memory.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda.compiling import MOST_BLOCKS, ROWS, SHARED_BYTES, tile_rows
from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.linear import GELU, SILU, Norm
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.triton.launch import per_sequence

GATED_UP, ROTARY_QKV, PROJECT, BIASED = range(4)
ACTIVATIONS = {GELU: 0, SILU: 1, None: 2}
CHUNK, PAD, THREADS = 64, 8, 288
LEAST_STAGES = 4
LEAST_CHUNKS = 4
"""Least chunks of a block of `project`, which reuses the weights' memory for the exchange of partial sums,
and of a linear layer: 64 rows are read of a tile that may have fewer, all within the block's memory."""
MOST_TILES = 4
"""Most tiles of 64 rows that a block computes with its weights; further rows have blocks of their own."""

POINTERS = (
    "squares", "bias", "next_squares", "scale", "scaled", "out", "cos", "sin", "positions", "slots", "starts",
    "q", "k", "v", "linear_bias", "linear_gate", "table_at",
)  # fmt: skip
STRIDES = ("k_slot", "k_head", "k_token", "v_slot", "v_head", "v_token")
SIZES = (
    "rows", "tokens", "width", "columns", "groups", "room", "next_room", "bias_stride", "scale_stride",
    "heads", "kv_heads", "half",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """The struct Arguments of products.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in STRIDES),
        *((name, ctypes.c_int) for name in SIZES),
        ("eps", ctypes.c_float),
    )


def takes(kernel: str, x: Tensor, weight: Tensor, *rest: Tensor | Norm | str | None, config: Config) -> bool:
    """Return whether the kernel of this name in kernels.ops supports these arguments."""
    kind, (columns, inner) = KINDS[kernel], weight.shape
    if kind == ROTARY_QKV:
        of_keys = rest[4]
        assert isinstance(of_keys, Tensor)
        unit = of_keys.shape[3] // 2
    else:
        unit = columns // (2 if kind == GATED_UP else 1)
    return (
        compiling.launchable(x)
        and weight.dtype == x.dtype == torch.bfloat16
        and weight.is_contiguous()
        and inner % CHUNK == 0
        and unit % config.block_n == 0
        and _columns(kind, config) in (16, 32, 64)
        and 1 <= config.split <= (min(MOST_BLOCKS, inner // CHUNK) if kind == PROJECT else 1)
        and config.stages >= LEAST_STAGES
        and (kind != PROJECT or _chunks(kind, config, inner) >= LEAST_CHUNKS)
        and shared_bytes(kind, config, inner, x.shape[0] * x.shape[1]) <= SHARED_BYTES
    )


@reads_early("weight", waits=False)
def gated_up(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
    activation: str = GELU,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.gated_up."""
    arguments = _of_norm(x, norm, bias, at)
    arguments.out, arguments.columns = out.data_ptr(), out.shape[2]
    x = x if norm.scaled is None else norm.scaled
    across = weight.shape[0] // 2 // config.block_n
    launch_product(GATED_UP, x, weight, across, arguments, config, pdl, activation)


@reads_early("weight cos sin positions slots starts", waits=False)
def rotary_qkv(
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    starts: Tensor,
    norm: Norm,
    bias: Tensor | None = None,
    at: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.rotary_qkv."""
    arguments = _of_norm(x, norm, bias, at)
    for name, tensor in zip(("cos", "sin", "positions", "q", "k", "v", "slots", "starts"),
                            (cos, sin, positions, q, k, v, slots, starts), strict=True):  # fmt: skip
        setattr(arguments, name, tensor.data_ptr())
    for name, stride in zip(STRIDES, (*k.stride()[:3], *v.stride()[:3]), strict=True):
        setattr(arguments, name, stride)
    arguments.heads, arguments.kv_heads, arguments.half = q.shape[2], k.shape[1], q.shape[3] // 2
    x = x if norm.scaled is None else norm.scaled
    launch_product(ROTARY_QKV, x, weight, weight.shape[0] // 2 // config.block_n, arguments, config, pdl)


@reads_early("weight", waits=False)
def project(
    a: Tensor,
    weight: Tensor,
    x: Tensor,
    gate: Tensor | None = None,
    norm: Norm | None = None,
    at: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> None:
    """See kernels.reference.linear.project."""
    arguments = rows_of(x, at)
    arguments.out, arguments.columns = x.data_ptr(), x.shape[2]
    _table(arguments, "bias", gate)
    if norm is not None:
        arguments.next_squares, arguments.next_room = norm.squares.data_ptr(), norm.squares.shape[1]
        if norm.scaled is not None:
            arguments.scaled = norm.scaled.data_ptr()
            _table(arguments, "scale", norm.scale)
    launch_product(PROJECT, a, weight, x.shape[2] // config.block_n * config.split, arguments, config, pdl)


@lru_cache(maxsize=8)
def clusters_at_once(device: torch.device) -> dict[int, int]:
    """Return how many clusters of so many blocks run at once, if a block takes a multiprocessor."""
    torch.zeros(1, device=device)  # makes its context the thread's
    config, inner = Config(64, 64, CHUNK, 4, 8, 8, "cuda"), 4096
    definitions, shared = macros(PROJECT, config, inner, ROWS), shared_bytes(PROJECT, config, inner, ROWS)
    kernel = _kernel(tuple(definitions.items()), device, shared)
    return {blocks: kernel.at_once(blocks) for blocks in (2, 3, 4, 6, 8)}


def _of_norm(x: Tensor, norm: Norm, bias: Tensor | None, at: Tensor | None) -> Arguments:
    arguments = rows_of(x, at)
    arguments.squares, (arguments.groups, arguments.room) = norm.squares.data_ptr(), norm.squares.shape
    arguments.eps = norm.eps
    _table(arguments, "bias", bias)
    return arguments


def rows_of(x: Tensor, at: Tensor | None) -> Arguments:
    arguments = Arguments(rows=x.shape[0] * x.shape[1], tokens=x.shape[1], width=x.shape[2])
    if at is not None:
        arguments.table_at = at.data_ptr()
    return arguments


def _table(arguments: Arguments, name: str, table: Tensor | None) -> None:
    """Set a table of one row, of one row for each sequence, or of rows that `at` chooses from. Raises
    ValueError if its columns are not contiguous."""
    if table is not None:
        if table.stride(1) != 1:
            raise ValueError(f"{name}: the columns of a row are not contiguous; give a table with stride 1.")
        setattr(arguments, name, table.data_ptr())
        setattr(arguments, f"{name}_stride", table.stride(0) if per_sequence(table) else 0)


def launch_product(
    kind: int,
    a: Tensor,
    weight: Tensor,
    across: int,
    arguments: Arguments,
    config: Config,
    pdl: bool,
    activation: str | None = None,
    linear: bool = False,
) -> None:
    flat, inner = a.flatten(0, 1), weight.shape[1]
    tall, columns = tile_rows(len(flat)), _columns(kind, config)
    definitions = tuple(macros(kind, config, inner, len(flat), activation, linear).items())
    kernel = _kernel(definitions, a.device, shared_bytes(kind, config, inner, len(flat)))
    maps = (
        compiling.tensor_map(flat, (tall, CHUNK)),
        compiling.tensor_map(weight, (columns if kind in WHOLE else columns // 2, CHUNK)),
    )
    down = -(-len(flat) // (ROWS * _tiles(len(flat))))
    kernel.launch((across, down, 1), (*maps, arguments), pdl, config.split)


@lru_cache(maxsize=64)
def _kernel(macros: tuple[tuple[str, int], ...], device: torch.device, shared: int) -> compiling.Kernel:
    return compiling.Kernel("products", "product", dict(macros), device, THREADS, shared)


def macros(
    kind: int,
    config: Config,
    inner: int,
    rows: int,
    activation: str | None = None,
    linear: bool = False,
) -> dict[str, int]:
    """Return the macros of products.cu for `rows` rows of activations."""
    return {
        "KIND": kind, "COLUMNS": _columns(kind, config), "INNER": inner // CHUNK, "SPLIT": config.split,
        "STAGES": _stages(kind, config, inner, rows), "TALL": tile_rows(rows), "TILES": _tiles(rows),
        "ACTIVATION": ACTIVATIONS[activation], "LINEAR": int(linear),
    }  # fmt: skip


def _tiles(rows: int) -> int:
    """Return the tiles that a block computes."""
    return min(MOST_TILES, -(-rows // ROWS))


def _stages(kind: int, config: Config, inner: int, rows: int) -> int:
    """Return the stages of activations in flight. For several tiles of `project` they are at most the fewest
    chunks of any block, so that a chunk of the next tile is loaded after this tile's was used."""
    several = _tiles(rows) > 1 and kind == PROJECT
    chunks = inner // CHUNK // config.split if several else _chunks(kind, config, inner)
    return min(chunks, config.stages)


def _columns(kind: int, config: Config) -> int:
    """Return the rows of weight in a block."""
    return config.block_n if kind in WHOLE else 2 * config.block_n


def _chunks(kind: int, config: Config, inner: int) -> int:
    """Return the most chunks of the inner dimension in a block."""
    return -(-(inner // CHUNK) // (config.split if kind == PROJECT else 1))


def shared_bytes(kind: int, config: Config, inner: int, rows: int) -> int:
    """Return the shared memory of a block for `rows` rows of activations."""
    columns, chunks = _columns(kind, config), _chunks(kind, config, inner)
    tall, several = tile_rows(rows), _tiles(rows) > 1
    ring, halves = _stages(kind, config, inner, rows) * tall * CHUNK * 2, columns * 256
    staged = -(-tall // 8 // config.split) * 8 * (columns + PAD)
    met_bytes, own_bytes = (
        ((config.split - 1) * staged, config.split * staged) if kind == PROJECT else 2 * (4 * ROWS,)
    )
    floats = met_bytes + own_bytes if several else met_bytes
    ring = ring + halves if several else max(ring, halves)
    return ring + chunks * columns * CHUNK * 2 + 4 * floats + 8 * (2 * chunks + 1)


KINDS = {"gated_up": GATED_UP, "rotary_qkv": ROTARY_QKV, "project": PROJECT}
WHOLE = (PROJECT, BIASED)
"""Kinds whose columns are not halves of two."""
