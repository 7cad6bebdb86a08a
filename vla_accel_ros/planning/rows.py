"""Products of rows in 8 bits by this project's kernel (kernels.triton.int8), from its tiles.

Its tiles are those of kernels.tuning.safe, as no table of `vla tune` comes with the package for it. A block
goes through the inner dimension in chunks; a chunk takes its share of what the processors compute, or the
time that its loads take however small it is. Devices on which the kernel was not measured have neither number
and are planned by their rate of such products, which is that of others' kernels.
"""

from __future__ import annotations

import math

from vla_accel_ros.kernels.tuning import INT8_GATED, INT8_PRODUCT, Shape, safe
from vla_accel_ros.planning.device import Device
from vla_accel_ros.planning.operations import GATED, ROWS, Op


def own_rate(op: Op, device: Device) -> str | None:
    """The name of the kernel's rate on the device; None for other operations, or where there is none."""
    name = f"{op.compute}_rows_tflops"
    return name if op.by in (ROWS, GATED) and name in device.numbers else None


def rows_us(op: Op, device: Device) -> float:
    """Microseconds of a product's arithmetic, where own_rate has a rate."""
    chunks, flops = steps(op, device.sms)
    rate = 1e6 * device.value(f"{op.compute}_rows_tflops") / device.sms  # of a processor, in a microsecond
    return chunks * max(flops / rate, device.value("rows_chunk_us"))


def steps(op: Op, sms: int) -> tuple[int, float]:
    """How many chunks a processor computes one after another, and FLOP of one."""
    gated = op.by == GATED
    columns = op.columns // 2 if gated else op.columns
    kernel = INT8_GATED if gated else INT8_PRODUCT
    tile = safe(Shape(kernel, op.rows, columns, op.inner, op.compute), sms)
    blocks = math.ceil(op.rows / tile.block_m) * math.ceil(columns / tile.block_n)
    flops = 2.0 * tile.block_m * tile.block_n * tile.block_k * (2 if gated else 1)
    return math.ceil(blocks / sms) * math.ceil(op.inner / tile.block_k), flops
