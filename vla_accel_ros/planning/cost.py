"""How long an operation takes on a device: launch overhead plus the longer of memory time and arithmetic
time.

A product's arithmetic is waves of tiles over the SMs: a product whose tiles do not fill the last wave pays
for the whole wave. The best of several tiles and splits stands for a library's choice. Measured shapes
correct the model: near a measured shape the prediction is multiplied by measured over modelled, for each
kernel by its own shapes. No product exceeds the sustained rate of large ones, because power is limited. A
product for few rows reads its weights with all SMs, again for each 64 rows, and attention either fills the
device with blocks or does not; both constants are measured. Plain torch's attention has blocks of 128 queries
of equal duration, so they come in waves as tiles do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from vla_accel_ros.planning.device import Device, Shape
from vla_accel_ros.planning.operations import GATED, PACKED, PLAIN, ROWS, SDPA, Kind, Op, product
from vla_accel_ros.planning.rows import own_rate, rows_us

TILE_ROWS = (64, 96, 128, 192, 256)
TILE_COLUMNS = (64, 96, 128, 160, 192, 256)
SPLITS = (1, 2, 3, 4, 8)
SPLIT_US = 2.0
"""Time to sum the parts of a split inner dimension, on a device with ample bandwidth."""
LARGEST_TILE = 128 * 256
NARROW_ROWS = 64
ATTENTION_ROWS, ATTENTION_SPLITS = 64, 5
SDPA_BLOCK, SDPA_HEAD = 128, 32
"""Queries and keys of a block of plain torch's attention (FlashAttention 2), and the multiple to which it
pads a head's columns."""
NEAR = math.log(2.0)
"""A measured shape corrects others whose m, n and k are within this factor; the correction fades with
distance."""


@dataclass(frozen=True)
class Time:
    """us: of all launches. low_us, high_us: the range, given the errors of the device's numbers. bound: what
    most of the time is: start, memory or arithmetic."""

    us: float
    low_us: float
    high_us: float
    bound: str

    @property
    def ms(self) -> float:
        """The time in milliseconds."""
        return self.us / 1e3


def price(op: Op, device: Device) -> Time:
    """Return the time of all launches of an operation."""
    start, memory, arithmetic = _parts(op, device)
    us = start + joined(op, memory, arithmetic)
    if op.kind is Kind.NARROW:
        us *= device.value("overlap_share") * max(1, math.ceil(op.rows / NARROW_ROWS))
    elif op.kind is Kind.DENSE or op.by in (SDPA, PACKED):
        us *= correction(op, device)
    elif op.kind is Kind.ATTENTION and op.rows <= 8 * NARROW_ROWS:
        us *= device.value("overlap_share")
    bound = "start" if start > max(memory, arithmetic) else "memory" if memory > arithmetic else "arithmetic"
    within = _within(op, device, start, memory, arithmetic)
    return Time(op.count * us, op.count * us * (1 - within), op.count * us * (1 + within), bound)


def joined(op: Op, memory: float, arithmetic: float) -> float:
    """Return the time of a launch from its memory and arithmetic times. A tiled product waits for either at
    times, so its roofline has a rounded corner: the root of the sum of squares."""
    return math.hypot(memory, arithmetic) if op.kind is Kind.DENSE else max(memory, arithmetic)


def total(ops: Iterable[Op], device: Device) -> Time:
    """Return the time of operations one after another. Their errors have common causes, so they add up."""
    times = [price(op, device) for op in ops]
    if not times:
        return Time(0.0, 0.0, 0.0, "nothing")
    shares: dict[str, float] = {}
    for time in times:
        shares[time.bound] = shares.get(time.bound, 0.0) + time.us
    bound = max(shares, key=lambda name: shares[name])
    return Time(sum(t.us for t in times), sum(t.low_us for t in times), sum(t.high_us for t in times), bound)


def _parts(op: Op, device: Device) -> tuple[float, float, float]:
    """Return start, memory and arithmetic time of one launch, in microseconds."""
    bandwidth = 1e3 * device.value("bandwidth_gb_s")  # bytes a microsecond
    if op.kind is Kind.PASS:
        start = device.value("plain_start_us" if op.by == PLAIN else "pass_start_us")
        return start, op.bytes / bandwidth, 0.0
    if op.by == SDPA:
        return device.value("start_us"), op.bytes / bandwidth, _sdpa_us(op, device)
    if op.kind is Kind.ATTENTION:
        return device.value("start_us"), op.bytes / bandwidth, op.flops / _attention_rate(op, device) * 1e6
    if op.kind is Kind.NARROW:
        read = op.weight_bytes / (bandwidth * device.value("narrow_share"))
        widened = 0.0
        if op.weights != op.compute:
            name = "widen_int4_g_s" if op.weights == "int4" else "widen_int8_g_s"
            widened = op.columns * op.inner / (1e3 * device.value(name))
        return device.value("narrow_start_us"), read, max(widened, _narrow_us(op, device))
    if own_rate(op, device) is not None:
        return device.value("start_us"), op.bytes / bandwidth, rows_us(op, device)
    us = waves_us(op.rows, op.columns, op.inner, device.sms, device.rate(op.compute))
    us = max(us, op.flops / (device.rate(op.compute) * device.value("sustained_share")) * 1e6)
    return device.value("start_us"), op.bytes / bandwidth, us


def _narrow_us(op: Op, device: Device) -> float:
    """Return the arithmetic time of 64 rows, padded, over all SMs."""
    rows = min(op.rows, NARROW_ROWS)
    return 2.0 * rows * op.columns * op.inner / device.rate(op.compute) * 1e6


def _attention_rate(op: Op, device: Device) -> float:
    """Return FLOP/s: blocks of queries, split along the keys if there are few, limited to the SMs that they
    fill."""
    blocks = math.ceil(op.rows / ATTENTION_ROWS)
    if op.rows <= 8 * ATTENTION_ROWS:
        blocks *= ATTENTION_SPLITS
    filled = min(1.0, blocks / device.sms)
    return device.rate("bf16") * device.value("attention_share") * filled


def _sdpa_us(op: Op, device: Device) -> float:
    """Return the time of waves of blocks, one block on an SM at a time. A head's rows attend to their own
    keys."""
    queries = min(op.inner, op.rows)
    blocks = math.ceil(queries / SDPA_BLOCK) * math.ceil(op.rows / queries)
    keys = math.ceil(op.inner / SDPA_BLOCK) * SDPA_BLOCK
    head = math.ceil(op.columns / SDPA_HEAD) * SDPA_HEAD
    rate = device.rate("bf16") * device.value("attention_share") / device.sms
    return math.ceil(blocks / device.sms) * 4.0 * SDPA_BLOCK * keys * head / rate * 1e6


@lru_cache(maxsize=4096)
def waves_us(m: int, n: int, k: int, sms: int, rate: float) -> float:
    """Return microseconds of the best tiles of an m x n product over k. rate: FLOP/s of all SMs."""
    best = math.inf
    for rows in TILE_ROWS:
        for columns in TILE_COLUMNS:
            if rows * columns > LARGEST_TILE:
                continue
            tiles = math.ceil(m / rows) * math.ceil(n / columns)
            for split in SPLITS:
                waves = math.ceil(tiles * split / sms)
                us = waves * 2.0 * rows * columns * (k / split) * sms / rate * 1e6
                best = min(best, us + (SPLIT_US if split > 1 else 0.0))
    return best


def correction(op: Op, device: Device) -> float:
    """Return the factor on an operation's time: measured over modelled at near shapes with the same launch,
    weighted by distance. It is exact at a measured shape, and 1 if none is near."""
    weights = ratios = nearest = 0.0
    launched = _launched_as(op, device)
    for shape, ratio in _ratios(device.like or device):
        if shape.dtype != launched:
            continue
        far = max(abs(math.log(a / b)) for a, b in zip((op.rows, op.columns, op.inner), shape_of(shape)))
        if far == 0.0:
            return ratio
        if far < NEAR:
            near = (1 - far / NEAR) ** 2
            weight = near / far**2
            nearest = max(nearest, near)
            weights, ratios = weights + weight, ratios + weight * math.log(ratio)
    return math.exp(nearest * ratios / weights) if weights else 1.0


def _launched_as(op: Op, device: Device) -> str:
    """Return the Shape dtype of such an operation."""
    if op.by not in (ROWS, GATED):
        return op.by or op.compute
    return op.compute if own_rate(op, device) is None else f"{op.compute} {op.by}"


def shape_of(shape: Shape) -> tuple[int, int, int]:
    """Return m, n, k."""
    return shape.m, shape.n, shape.k


_RATIOS: dict[tuple[object, ...], list[tuple[Shape, float]]] = {}


def _ratios(device: Device) -> list[tuple[Shape, float]]:
    """Return measured over modelled time for each of the device's shapes."""
    if not device.gemm:
        return []
    key = (device.gemm, device.sms, device.capability, *(number.value for number in device.numbers.values()))
    if key not in _RATIOS:
        ratios = []
        for shape in device.gemm:
            m, n, k = shape_of(shape)
            if shape.dtype in (SDPA, PACKED):
                op = Op("measured", Kind.ATTENTION, 1, m, n, k, by=shape.dtype)
            else:
                dtype, _, by = shape.dtype.partition(" ")
                op = product("measured", 1, m, n, k, dtype, by=by)
            start, memory, arithmetic = _parts(op, device)
            ratios.append((shape, shape.us / (start + joined(op, memory, arithmetic))))
        _RATIOS[key] = ratios
    return _RATIOS[key]


def _within(op: Op, device: Device, start: float, memory: float, arithmetic: float) -> float:
    """Return the relative error of a time, from the errors of its numbers and their shares in it."""
    numbers, whole = device.numbers, start + max(memory, arithmetic)
    starts = {Kind.PASS: "pass_start_us", Kind.NARROW: "narrow_start_us"}.get(op.kind, "start_us")
    starts = "plain_start_us" if op.by == PLAIN else starts
    name = own_rate(op, device) or f"{op.compute}_tflops"
    rate = numbers[name].within if op.kind is not Kind.PASS else 0.0
    if op.kind is Kind.ATTENTION:
        rate = max(rate, numbers["attention_share"].within)
    slower = numbers["bandwidth_gb_s"].within if memory > arithmetic else rate
    return (start * numbers[starts].within + max(memory, arithmetic) * slower) / whole
