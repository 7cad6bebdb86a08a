"""How long an operation takes on a device: its start, and its bytes and its arithmetic, whichever is longer.

A product's arithmetic is waves of tiles over the multiprocessors: a tile of 128 x 128 takes as long on a
device with more work as with less, so a product whose tiles do not fill the last wave pays for those that
are not there. The best of some tiles and splits is what a library would choose. Near shapes that were
measured the model is corrected by what it is wrong there, for each kernel by its own shapes. No product beats
what large ones keep up, for power is bounded.
A product for few rows reads its weights by all processors at once, for each 64 rows again, and attention's
blocks fill the device or do not; both constants are measured ones. Plain torch's attention has blocks of 128
queries, each as long as another, so they come in waves as tiles do.
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
"""Of adding up the parts of a split inner dimension, on a device with GB/s to spare."""
LARGEST_TILE = 128 * 256
NARROW_ROWS = 64
ATTENTION_ROWS, ATTENTION_SPLITS = 64, 5
SDPA_BLOCK, SDPA_HEAD = 128, 32
"""Queries and keys of a block of plain torch's attention (FlashAttention 2), and to a multiple of how many
columns it pads a head."""
NEAR = math.log(2.0)
"""A measured shape corrects others whose m, n and k are each within this factor, the less the further."""


@dataclass(frozen=True)
class Time:
    """us: of all launches. low_us, high_us: with the numbers behind them as wrong as they may be. bound: what
    most of it is: start, memory or arithmetic."""

    us: float
    low_us: float
    high_us: float
    bound: str

    @property
    def ms(self) -> float:
        """In milliseconds."""
        return self.us / 1e3


def price(op: Op, device: Device) -> Time:
    """Of all its launches."""
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
    """What a launch takes of which both are so long. A product in tiles waits for either now and then, so its
    roof has no sharp corner: the root of both squares."""
    return math.hypot(memory, arithmetic) if op.kind is Kind.DENSE else max(memory, arithmetic)


def total(ops: Iterable[Op], device: Device) -> Time:
    """Of operations one after another. Their errors have the same causes, so they add up."""
    times = [price(op, device) for op in ops]
    if not times:
        return Time(0.0, 0.0, 0.0, "nothing")
    shares: dict[str, float] = {}
    for time in times:
        shares[time.bound] = shares.get(time.bound, 0.0) + time.us
    most = max(shares, key=lambda name: shares[name])
    return Time(sum(t.us for t in times), sum(t.low_us for t in times), sum(t.high_us for t in times), most)


def _parts(op: Op, device: Device) -> tuple[float, float, float]:
    """Start, memory and arithmetic of one launch, in microseconds."""
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
    """Arithmetic of 64 rows, padded, over all processors."""
    rows = min(op.rows, NARROW_ROWS)
    return 2.0 * rows * op.columns * op.inner / device.rate(op.compute) * 1e6


def _attention_rate(op: Op, device: Device) -> float:
    """FLOP/s: blocks of queries, cut along the keys where few, on as many processors as they fill."""
    blocks = math.ceil(op.rows / ATTENTION_ROWS)
    if op.rows <= 8 * ATTENTION_ROWS:
        blocks *= ATTENTION_SPLITS
    filled = min(1.0, blocks / device.sms)
    return device.rate("bf16") * device.value("attention_share") * filled


def _sdpa_us(op: Op, device: Device) -> float:
    """Waves of blocks, one on a processor at once; a head's rows are those that look at their own keys."""
    queries = min(op.inner, op.rows)
    blocks = math.ceil(queries / SDPA_BLOCK) * math.ceil(op.rows / queries)
    keys = math.ceil(op.inner / SDPA_BLOCK) * SDPA_BLOCK
    head = math.ceil(op.columns / SDPA_HEAD) * SDPA_HEAD
    rate = device.rate("bf16") * device.value("attention_share") / device.sms
    return math.ceil(blocks / device.sms) * 4.0 * SDPA_BLOCK * keys * head / rate * 1e6


@lru_cache(maxsize=4096)
def waves_us(m: int, n: int, k: int, sms: int, rate: float) -> float:
    """Microseconds of the best tiles of an m x n product over k. rate: FLOP/s of all multiprocessors."""
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
    """What an operation's time is multiplied with: measured over modelled at near shapes that were launched
    alike, the nearer the more; that of the very shape where it was measured; 1 where none is near."""
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
    """The dtype of Shape that such an operation has."""
    if op.by not in (ROWS, GATED):
        return op.by or op.compute
    return op.compute if own_rate(op, device) is None else f"{op.compute} {op.by}"


def shape_of(shape: Shape) -> tuple[int, int, int]:
    """m, n, k"""
    return shape.m, shape.n, shape.k


_RATIOS: dict[tuple[object, ...], list[tuple[Shape, float]]] = {}


def _ratios(device: Device) -> list[tuple[Shape, float]]:
    """Measured over modelled of the device's shapes."""
    if not device.gemm:
        return []
    key = (device.gemm, device.sms, device.capability, *(number.value for number in device.numbers.values()))
    if key not in _RATIOS:
        made = []
        for shape in device.gemm:
            m, n, k = shape_of(shape)
            if shape.dtype in (SDPA, PACKED):
                op = Op("measured", Kind.ATTENTION, 1, m, n, k, by=shape.dtype)
            else:
                dtype, _, by = shape.dtype.partition(" ")
                op = product("measured", 1, m, n, k, dtype, by=by)
            start, memory, arithmetic = _parts(op, device)
            made.append((shape, shape.us / (start + joined(op, memory, arithmetic))))
        _RATIOS[key] = made
    return _RATIOS[key]


def _within(op: Op, device: Device, start: float, memory: float, arithmetic: float) -> float:
    """The share by which a time may be wrong, of the numbers that it is made of and their parts in it."""
    numbers, whole = device.numbers, start + max(memory, arithmetic)
    starts = {Kind.PASS: "pass_start_us", Kind.NARROW: "narrow_start_us"}.get(op.kind, "start_us")
    starts = "plain_start_us" if op.by == PLAIN else starts
    name = own_rate(op, device) or f"{op.compute}_tflops"
    rate = numbers[name].within if op.kind is not Kind.PASS else 0.0
    if op.kind is Kind.ATTENTION:
        rate = max(rate, numbers["attention_share"].within)
    slower = numbers["bandwidth_gb_s"].within if memory > arithmetic else rate
    return (start * numbers[starts].within + max(memory, arithmetic) * slower) / whole
