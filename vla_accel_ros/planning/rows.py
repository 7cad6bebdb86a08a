"""Predict products of 8-bit rows by this project's kernel (kernels.triton.int8), from its tiles.

Tiles are those that engines launch without a user table: the package's for the device's capability, else what
kernels.block_shapes chooses. A block loops over the inner dimension in chunks; a chunk takes its share of
the SM's arithmetic, or the time of its loads, whichever is longer. Several small blocks share an SM and end
at different times, so blocks do not form whole waves; but fewer blocks than SMs take no less than one block's
time. A device on which the kernel was not measured lacks these numbers; its plan uses the rate of other
libraries' 8-bit kernels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.shapes import INT8_GATED, INT8_PRODUCT, Config, Shape
from vla_accel_ros.kernels.tuning import Table, packaged_table
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.operations import GATED, ROWS, Op


def own_rate(op: Op, device: Device) -> str | None:
    """Return the name of the kernel's rate on the device; None for other operations, or if the device lacks
    it."""
    name = f"{op.compute}_rows_tflops"
    return name if op.by in (ROWS, GATED) and name in device.numbers else None


def rows_us(op: Op, device: Device) -> float:
    """Return the microseconds of a product's arithmetic, if own_rate has a rate."""
    chunks, flops = steps(op, device)
    rate = 1e6 * device.value(f"{op.compute}_rows_tflops") / device.sms  # of an SM, in a microsecond
    return chunks * max(flops / rate, device.value("rows_chunk_us"))


def steps(op: Op, device: Device) -> tuple[float, float]:
    """Return how many chunks an SM computes one after another, and the FLOP of one."""
    config, columns = tile(op, device), _columns(op)
    blocks = math.ceil(op.rows / config.block_m) * math.ceil(columns / config.block_n)
    flops = 2.0 * config.block_m * config.block_n * config.block_k * (2 if op.by == GATED else 1)
    return max(1.0, blocks / device.sms) * math.ceil(op.inner / config.block_k), flops


def tile(op: Op, device: Device) -> Config:
    """Return the tile with which engines on such a device launch a product by ROWS or GATED."""
    kernel = INT8_GATED if op.by == GATED else INT8_PRODUCT
    shape = Shape(kernel, op.rows, _columns(op), op.inner, op.compute)
    return _table(as_gpu(device)).pick(shape)


def _columns(op: Op) -> int:
    """Return the output columns; a gate and its value become one."""
    return op.columns // 2 if op.by == GATED else op.columns


def as_gpu(device: Device) -> Gpu:
    """Return the device as kernels.block_shapes takes it, at the clock of its bfloat16 rate."""
    gpu = Gpu(device.sms, device.capability, bandwidth_gb_s=device.value("bandwidth_gb_s"))
    cycles = device.rate("bf16") / device.sms / gpu.multiprocessor.flop
    return replace(gpu, clock_ghz=cycles / 1e9)


@lru_cache(maxsize=64)
def _table(gpu: Gpu) -> Table:
    return packaged_table(gpu)
