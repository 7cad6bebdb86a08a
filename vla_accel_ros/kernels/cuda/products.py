"""Launch products.cu: the three products of a denoise layer, and those of linear layers, for few rows, on
sm_90.

Same signatures as the references in kernels/reference/linear.py and norm.py. `takes` checks the arguments:
bfloat16, whole tiles of columns and of the inner dimension, and weights that fit into a block's shared
memory. Those of linear layers need no tuning: `linear_config` spreads the weights over the device.
"""

from __future__ import annotations

import ctypes
import itertools
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
LINEAR_COLUMNS, ADDED_COLUMNS, LINEAR_STAGES = (16, 32, 48, 64, 80, 96), (64, 32), (12, 8, 4)
"""Of a block, in the order in which they are tried; of one of add_product."""
MOST_SHARING, SHARED_CHUNKS = 4, 8
"""Most blocks that share the inner dimension of add_product, and least chunks of each: beyond, the exchange
of sums takes longer than what it saves."""
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
    _launch(GATED_UP, x, weight, across, arguments, config, pdl, activation)


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
    _launch(ROTARY_QKV, x, weight, weight.shape[0] // 2 // config.block_n, arguments, config, pdl)


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
    arguments = _rows_of(x, at)
    arguments.out, arguments.columns = x.data_ptr(), x.shape[2]
    _table(arguments, "bias", gate)
    if norm is not None:
        arguments.next_squares, arguments.next_room = norm.squares.data_ptr(), norm.squares.shape[1]
        if norm.scaled is not None:
            arguments.scaled = norm.scaled.data_ptr()
            _table(arguments, "scale", norm.scale)
    _launch(PROJECT, a, weight, x.shape[2] // config.block_n * config.split, arguments, config, pdl)


@reads_early("weight bias", waits=False)
def bias_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.bias_product."""
    _linear(BIASED, a, weight, bias, out, config, pdl)


@reads_early("weight bias", waits=False)
def gelu_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.gelu_product."""
    _linear(BIASED, a, weight, bias, out, config, pdl, GELU)


@reads_early("weight", waits=False)
def add_product(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    y: Tensor,
    gate: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> tuple[None, None]:
    """See kernels.reference.norm.add_product; nothing is left to add."""
    _linear(PROJECT, a, weight, bias, x, config, pdl, gate=gate)
    return None, None


def linear_config(
    name: str, a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *more: Tensor | None, blocks: int
) -> Config | None:
    """How bias_product, gelu_product or add_product is launched for at most 64 rows, so that all of its
    `blocks` at most run at once; None if it cannot be."""
    (columns, inner), rows, kind = weight.shape, len(a), LINEAR[name]
    tensors = [tensor for tensor in (a, weight, bias, out, *more) if tensor is not None]
    if not (
        compiling.launchable(a)
        and rows <= ROWS
        and inner % CHUNK == 0
        and all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in tensors)
        and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    ):
        return None
    return spread(kind, rows, columns, inner, blocks, tuple(clusters_at_once(a.device).items()))


@lru_cache(maxsize=256)
def spread(
    kind: int, rows: int, columns: int, inner: int, blocks: int, clusters: tuple[tuple[int, int], ...]
) -> Config | None:
    """The inner dimension of `project` is shared by as many blocks as pay; else a block has as few columns as
    possible. clusters: how many run at once, by their blocks. None if not all blocks would run at once."""
    at_once = {1: blocks, **(dict(clusters) if kind == PROJECT else {})}
    splits = [split for split in sorted(at_once, reverse=True) if split <= MOST_SHARING]
    sizes = ADDED_COLUMNS if kind == PROJECT else LINEAR_COLUMNS
    for split, size, stages in itertools.product(splits, sizes, LINEAR_STAGES):
        if columns % size or columns // size > at_once[split] or columns // size * split > blocks:
            continue
        if inner // CHUNK // split < (SHARED_CHUNKS if split > 1 else LEAST_CHUNKS):
            continue
        config = Config(ROWS, size, CHUNK, split, 8, stages, "cuda")
        if shared_bytes(kind, config, inner, rows) <= SHARED_BYTES:
            return config
    return None


@lru_cache(maxsize=8)
def clusters_at_once(device: torch.device) -> dict[int, int]:
    """Return how many clusters of so many blocks run at once, if a block takes a multiprocessor."""
    torch.zeros(1, device=device)  # makes its context the thread's
    config, inner = Config(64, 64, CHUNK, 4, 8, 8, "cuda"), 4096
    definitions, shared = macros(PROJECT, config, inner, ROWS), shared_bytes(PROJECT, config, inner, ROWS)
    kernel = _kernel(tuple(definitions.items()), device, shared)
    return {blocks: kernel.at_once(blocks) for blocks in (2, 3, 4, 6, 8)}


def _linear(
    kind: int,
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Config,
    pdl: bool,
    activation: str | None = None,
    gate: Tensor | None = None,
) -> None:
    arguments = _rows_of(out[None], None)
    arguments.out, arguments.columns = out.data_ptr(), len(weight)
    for name, vector in (("linear_bias", bias), ("linear_gate", gate)):
        if vector is not None:
            setattr(arguments, name, vector.data_ptr())
    across = len(weight) // config.block_n * config.split
    _launch(kind, a[None], weight, across, arguments, config, pdl, activation, linear=True)


def _of_norm(x: Tensor, norm: Norm, bias: Tensor | None, at: Tensor | None) -> Arguments:
    arguments = _rows_of(x, at)
    arguments.squares, (arguments.groups, arguments.room) = norm.squares.data_ptr(), norm.squares.shape
    arguments.eps = norm.eps
    _table(arguments, "bias", bias)
    return arguments


def _rows_of(x: Tensor, at: Tensor | None) -> Arguments:
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


def _launch(
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
LINEAR = {"bias_product": BIASED, "gelu_product": BIASED, "add_product": PROJECT}
WHOLE = (PROJECT, BIASED)
"""Kinds whose columns are not halves of two."""
