"""Launch tiles.cu: the products of the image encoder, for some hundred rows, on sm_90.

Same signatures as the references in kernels/reference/norm.py. `takes` checks the arguments: bfloat16,
columns and inner dimension multiples of 8, and a tile that fits into a block's shared memory; rows may be any
number.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda.compiling import MOST_BLOCKS, SHARED_BYTES
from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.shapes import Config

FINISHES = {"bias_product": 0, "gelu_product": 1, "add_product": 2}
CHUNK, GROUP = 64, 64
COLUMNS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 256)
UNIT_BYTES, SLOT_BYTES = GROUP * 8 * 4, GROUP * CHUNK * 2
MOST_ROWS = 256
"""Most rows of a tile."""
LEAST_BYTES = 116 << 10
"""Least shared memory of a block: with two blocks on one SM, the blocks of later launches would be spread
unevenly."""


class Arguments(ctypes.Structure):
    """The struct Arguments of tiles.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("bias", "out")),
        *((name, ctypes.c_int) for name in ("rows", "columns", "chunks", "down")),
    )


def takes(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    y: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    config: Config,
) -> bool:
    """Return whether the kernel supports the product of a [M, K] and weight [N, K]."""
    columns, inner = weight.shape
    return (
        compiling.launchable(a)
        and bias is not None
        and gate is None
        and weight.dtype == a.dtype == bias.dtype == torch.bfloat16
        and weight.is_contiguous()
        and a.is_contiguous()
        and out.is_contiguous()
        and columns % 8 == inner % 8 == 0
        and all(tensor.data_ptr() % 16 == 0 for tensor in (a, weight, out))
        and -(-inner // CHUNK) >= config.split
        and fits(config)
    )


def pays(
    a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *more: Tensor | None, config: Config
) -> bool:
    """Return whether the kernel supports the product and all of its blocks run at once, in one wave."""
    return (
        takes(a, weight, bias, out, *more, config=config)
        and blocks(len(a), len(weight), config)
        <= torch.cuda.get_device_properties(a.device).multi_processor_count
    )


def blocks(rows: int, columns: int, config: Config) -> int:
    """Return the blocks of a launch: whole clusters."""
    return _down(rows, config) * _across(columns, config) * _cluster(config)


def fits(config: Config) -> bool:
    """Return whether tiles.cu can be compiled with this config for sm_90."""
    columns = config.block_n // config.split
    slots = _parts((config.split - 1) * columns // 8 * UNIT_BYTES, SLOT_BYTES) + _parts(columns, CHUNK)
    return (
        config.block_m % GROUP == 0
        and config.block_m <= MOST_ROWS
        and config.block_n in COLUMNS
        and config.block_n % (16 * config.split) == config.block_n % (8 * config.down) == 0
        and config.across in (1, 2, 4)
        and _cluster(config) <= MOST_BLOCKS
        and slots <= config.stages
        and shared_bytes(config) <= SHARED_BYTES
    )


@reads_early("weight bias", waits=False)
def bias_product(
    a: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.bias_product."""
    _launch("bias_product", a, weight, bias, out, config, pdl)


@reads_early("weight bias", waits=False)
def gelu_product(
    a: Tensor, weight: Tensor, bias: Tensor, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.gelu_product."""
    _launch("gelu_product", a, weight, bias, out, config, pdl)


@reads_early("weight bias", waits=False)
def add_product(
    a: Tensor,
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    y: Tensor,
    gate: None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> tuple[None, None]:
    """See kernels.reference.norm.add_product; nothing is left to add."""
    _launch("add_product", a, weight, bias, x, config, pdl)
    return None, None


def _launch(
    kernel: str, a: Tensor, weight: Tensor, bias: Tensor, out: Tensor, config: Config, pdl: bool
) -> None:
    (rows, inner), columns = a.shape, weight.shape[0]
    maps = (
        compiling.tensor_map(a, (config.block_m // config.across, CHUNK)),
        compiling.tensor_map(weight, (config.block_n // config.down, CHUNK)),
        compiling.tensor_map(out, (GROUP, _panel(config))),
    )
    arguments = Arguments(
        bias.data_ptr(), out.data_ptr(), rows, columns, _parts(inner, CHUNK), _down(rows, config)
    )
    kernel_function = _kernel(tuple(macros(kernel, config).items()), a.device, config)
    kernel_function.launch((blocks(rows, columns, config), 1, 1), (*maps, arguments), pdl, _cluster(config))


@lru_cache(maxsize=64)
def _kernel(macros: tuple[tuple[str, int], ...], device: torch.device, config: Config) -> compiling.Kernel:
    threads = 2 * config.block_m + 32
    return compiling.Kernel("tiles", "product", dict(macros), device, threads, shared_bytes(config))


def macros(kernel: str, config: Config) -> dict[str, int]:
    """Return the macros of tiles.cu."""
    return {
        "FINISH": FINISHES[kernel], "ROWS": config.block_m, "COLUMNS": config.block_n,
        "STAGES": config.stages, "DOWN": config.down, "ACROSS": config.across, "SPLIT": config.split,
    }  # fmt: skip


def shared_bytes(config: Config) -> int:
    """Return the shared memory of a block: tile ring, sums of other splits, barriers and biases."""
    groups, columns = config.block_m // GROUP, config.block_n // config.split
    ring = config.stages * (config.block_m + config.block_n) * CHUNK * 2
    got = (config.split - 1) * groups * columns // 8 * UNIT_BYTES
    return max(LEAST_BYTES, ring + got + 16 * config.stages + 8 * groups + 4 * config.block_n)


def _panel(config: Config) -> int:
    """Return the columns of a stored panel: the largest power of two, up to 64, that divides a block's
    columns."""
    columns = config.block_n // config.split
    return min(CHUNK, columns & -columns)


def _cluster(config: Config) -> int:
    return config.down * config.across * config.split


def _down(rows: int, config: Config) -> int:
    """Return the clusters one below the other."""
    return _parts(_parts(rows, config.block_m), config.down)


def _across(columns: int, config: Config) -> int:
    """Return the clusters side by side."""
    return _parts(_parts(columns, config.block_n), config.across)


def _parts(whole: int, size: int) -> int:
    return -(-whole // size)
