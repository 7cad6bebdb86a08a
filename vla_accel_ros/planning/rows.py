"""Products of rows in 8 bits by this project's kernel (kernels.triton.int8), from its tiles.

Tiles are those that engines launch without a table of the user's: the package's for the device's capability,
else the safe ones of kernels.tuning. A block goes through the inner dimension in chunks. A chunk takes its
share of the processors' arithmetic, or `rows_chunk_us` where that is longer: the time of its loads. Several
small blocks share a processor and end at different times, so blocks do not come in whole waves; but a block
takes no less where there are fewer of them than processors. A device on which the kernel was not measured has
no such numbers: it is planned with the rate of other engines' kernels.
"""

from __future__ import annotations

import math
from functools import lru_cache

from vla_accel_ros.kernels.tuning import INT8_GATED, INT8_PRODUCT, Config, Shape, Table, packaged_table
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.operations import GATED, ROWS, Op

FP8 = "float8_e4m3fn"
"""What a tuning table calls it."""


def own_rate(op: Op, device: Device) -> str | None:
    """The name of the kernel's rate on the device; None for other operations, or where there is none."""
    name = f"{op.compute}_rows_tflops"
    return name if op.by in (ROWS, GATED) and name in device.numbers else None


def rows_us(op: Op, device: Device) -> float:
    """Microseconds of a product's arithmetic, where own_rate has a rate."""
    chunks, flops = steps(op, device)
    rate = 1e6 * device.value(f"{op.compute}_rows_tflops") / device.sms  # of a processor, in a microsecond
    return chunks * max(flops / rate, device.value("rows_chunk_us"))


def steps(op: Op, device: Device) -> tuple[float, float]:
    """How many chunks a processor computes one after another, and FLOP of one."""
    config, columns = tile(op, device), _columns(op)
    blocks = math.ceil(op.rows / config.block_m) * math.ceil(columns / config.block_n)
    flops = 2.0 * config.block_m * config.block_n * config.block_k * (2 if op.by == GATED else 1)
    return max(1.0, blocks / device.sms) * math.ceil(op.inner / config.block_k), flops


def tile(op: Op, device: Device) -> Config:
    """How engines on such a device launch a product by ROWS or GATED."""
    kernel = INT8_GATED if op.by == GATED else INT8_PRODUCT
    shape = Shape(kernel, op.rows, _columns(op), op.inner, FP8 if op.compute == "fp8" else op.compute)
    return _table(device.capability, device.sms).pick(shape)


def _columns(op: Op) -> int:
    """Of what is made; a gate and what it is multiplied with become one."""
    return op.columns // 2 if op.by == GATED else op.columns


@lru_cache(maxsize=64)
def _table(capability: int, processors: int) -> Table:
    return packaged_table(capability, processors)
