"""Micro-benchmarks that make a device file: memory, the stages' products and attentions, launches. One minute
on a GPU.

Only single products and kernels are measured (planning.micro), never a stage, so that a plan can be compared
with stages afterwards. A measurement that fails or is left out for time is reported, and keeps the base
file's number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import yaml

from vla_accel_ros.planning.cost import waves_us
from vla_accel_ros.planning.device import Device, Number, Shape
from vla_accel_ros.planning.micro import (
    attention_us,
    bandwidth_gb_s,
    pass_us,
    plain_us,
    product_us,
    rows_product_us,
)
from vla_accel_ros.planning.operations import GATED, PACKED, ROWS, SDPA, Kind, Op, of_rows, product
from vla_accel_ros.planning.rows import steps, tile
from vla_accel_ros.planning.stages import operations
from vla_accel_ros.planning.work import Sizes, Work

LARGE = 4096
HERE = "measured"
WHOLE = ("sms", "memory_gb", "unified", "fast_memory", "capability", "watts")
"""Fields of a device that a file has as they are."""
COMPUTED = {"bf16": "exact", "fp8": "fp8", "int8": "w8a8"}
"""The precision in which stages have products of a dtype."""
LEAST_ROWS = {"int8": 17}
"""Fewest rows that torch multiplies."""
ROWS_OF = ((544, 32768, 2048), (51, 2560, 1024))
"""Products of pi0 and pi0.5 at 2 views: a prefill's gate and up, and a step's queries, keys and values."""
MANY_ROWS = 128
"""Rows from which on tiles dominate a product's time."""


def shapes(
    models: Iterable[Sizes], views: Iterable[int], dtypes: Iterable[str], prompt: int = 20
) -> list[Shape]:
    """Return the dense products of the models' stages in each dtype, each once, without times, grouped by
    dtype."""
    by_size: dict[tuple[int, int, int, str], Shape] = {}
    models_given, counts = list(models), list(views)
    for dtype in dtypes:
        for op in _operations(models_given, counts, prompt, COMPUTED[dtype]):
            least_rows = LEAST_ROWS.get(dtype, 1)
            if (
                op.kind is Kind.DENSE
                and op.compute == dtype
                and op.by in ("", ROWS, GATED)
                and op.rows >= least_rows
            ):
                key = (op.rows, op.columns, op.inner, dtype)
                by_size[key] = Shape(*key, 0.0)
    return list(by_size.values())


def attentions(models: Iterable[Sizes], views: Iterable[int], prompt: int = 20) -> list[Op]:
    """Return the attentions of many rows that planning.micro can launch, each once."""
    by_size: dict[tuple[int, int, int, str], Op] = {}
    for op in _operations(list(models), list(views), prompt, "exact"):
        if op.by in (SDPA, PACKED) and op.rows > op.heads:
            by_size[op.rows, op.columns, op.inner, op.by] = op
    return list(by_size.values())


def _operations(models: list[Sizes], views: list[int], prompt: int, precision: str) -> Iterator[Op]:
    for sizes in models:
        for count in views:
            work = Work(views=count, prompt=prompt, precision=precision, fast_memory=True)
            for ops in operations(sizes, work).values():
                yield from ops


def measure(
    base: Device,
    device: torch.device,
    wanted: Sequence[Shape],
    seconds: float = 60.0,
    say: Callable[[str], object] = lambda _: None,
    large: int = LARGE,
    megabytes: int = 1024,
    *,
    read: Sequence[Op] = (),
    rows: Sequence[str] = (),
    rows_of: tuple[tuple[int, int, int], tuple[int, int, int]] = ROWS_OF,
) -> Device:
    """Measure a device and return it as a Device. What is not measured keeps the numbers of `base`.

    seconds: no further shape is started after this time. read: attentions, see attentions. The rate of tiles
    comes from the best measured product, by the model's own waves. large: side of the product for the
    sustained share. rows: dtypes of 8-bit rows, "int8", whose own kernel is measured at rows_of:
    rows, columns and inner dimension of a large product with its gate, and of one for few rows.
    """
    start_s = time.monotonic()
    numbers = dict(base.numbers)
    bandwidth = bandwidth_gb_s(device, megabytes)
    numbers["bandwidth_gb_s"] = _number(bandwidth, 0.03, f"a kernel that reads and writes {megabytes} MB")
    try:
        start = _number(max(pass_us(device, bandwidth), 0.05), 0.1, "a norm of 544 rows in a graph")
        numbers["pass_start_us"] = start
    except (RuntimeError, ImportError) as error:
        say(f"a pass over rows was not measured: {_first_line(error)}")
    words = "the mean of a norm's and a rotation's launches in plain torch, in a graph"
    numbers["plain_start_us"] = _number(max(plain_us(device), 0.05), 0.15, words)
    measured_shapes: list[Shape] = []
    for op in read:
        try:
            us = attention_us(op, device)
        except (RuntimeError, ImportError) as error:
            say(f"attention {op.by} of {op.rows} x {op.inner} was not measured: {_first_line(error)}")
            continue
        measured_shapes.append(Shape(op.rows, op.columns, op.inner, op.by, round(us, 3)))
    for number, shape in enumerate(wanted):
        if time.monotonic() - start_s > seconds:
            say(f"{len(wanted) - number} of {len(wanted)} shapes were left out after {seconds:g} s")
            break
        measured = product_us(shape.m, shape.n, shape.k, shape.dtype, device)
        if measured is None:
            say(f"{shape.dtype} product {shape.m} x {shape.n} x {shape.k} cannot be computed here")
        else:
            measured_shapes.append(replace(shape, us=round(measured, 3)))
    current = base
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability = 10 * properties.major + properties.minor
        current = replace(base, sms=properties.multi_processor_count, capability=capability)
    for dtype in dict.fromkeys(shape.dtype for shape in measured_shapes if shape.dtype in COMPUTED):
        name, sustained = f"{dtype}_tflops", product_us(large, large, large, dtype, device, chain=8)
        begins = numbers["start_us"].value
        of_dtype = [shape for shape in measured_shapes if shape.dtype == dtype]
        rate = _rate([shape for shape in of_dtype if shape.m >= MANY_ROWS] or of_dtype, current.sms, begins)
        if rate > 0:
            numbers[name] = _number(rate / 1e12, 0.08, "the best measured product, by waves of tiles")
        if dtype == "bf16" and sustained and rate > 0:
            share = min(1.0, 2.0 * large**3 / (sustained * 1e-6) / rate)
            numbers["sustained_share"] = _number(share, 0.05, f"a product of {large}^3")
    chunk = 0.0
    for dtype in rows:
        try:
            rate, chunk_us = _rows_in_8_bits(dtype, device, current, rows_of)
        except Exception as error:  # Triton raises its own errors if the device lacks the dtype
            say(f"products of {dtype} rows were not measured: {_first_line(error)}")
            continue
        chunk = max(chunk, chunk_us)
        numbers[f"{dtype}_rows_tflops"] = _number(rate, 0.15, f"a product of {rows_of[0]} in engines' tiles")
        numbers["rows_chunk_us"] = _number(chunk, 0.15, f"a product of {rows_of[1]} in engines' tiles")
    # The share refers to a rate that has changed; attention's own throughput has not.
    factor = base.value("bf16_tflops") / numbers["bf16_tflops"].value
    numbers["attention_share"] = numbers["attention_share"].scaled(float(f"{factor:.4g}"))
    return replace(current, numbers=numbers, gemm=tuple(measured_shapes), modes={}, like=None)


def _rows_in_8_bits(
    dtype: str, device: torch.device, here: Device, rows_of: tuple[tuple[int, int, int], tuple[int, int, int]]
) -> tuple[float, float]:
    """Return the TFLOP/s that explain the large product, and the microseconds of a chunk that explain the
    small one. here: the device for tiles and start."""
    times = []
    for name, shape in zip(("gate and up", "qkv"), rows_of, strict=True):
        (op,) = of_rows([product(name, 1, *shape, dtype)])
        us = rows_product_us(op, device, tile(op, here))
        chunks, flops = steps(op, here)
        times.append((max(us - here.value("start_us"), 0.25 * us) / chunks, flops))
    (large_us, flops), (small_us, _) = times
    return flops * here.sms / large_us / 1e6, small_us


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _rate(found: Sequence[Shape], sms: int, start_us: float) -> float:
    """Return the FLOP/s of resident tiles that explain the fastest eighth of the products."""
    rates = []
    for shape in found:
        us = max(shape.us - start_us, 0.25 * shape.us)
        rates.append(waves_us(shape.m, shape.n, shape.k, sms, 1e12) / us * 1e12)
    rates.sort(reverse=True)
    return rates[len(rates) // 8] if rates else 0.0


def _number(value: float, within: float, words: str) -> Number:
    return Number(float(f"{value:.4g}"), HERE, words, within)


def to_yaml(device: Device, title: str, note: str) -> str:
    """Return a device as a file that planning.device can read."""
    fields: dict[str, Any] = {
        "name": device.name,
        "title": title,
        **{name: getattr(device, name) for name in WHOLE},
        "numbers": {
            name: {"value": n.value, "source": n.source, "within": n.within, "from": n.words}
            for name, n in device.numbers.items()
        },
    }
    if device.gemm:
        fields["gemm"] = [[s.m, s.n, s.k, s.dtype, s.us] for s in device.gemm]
    return f"# {note}\n{yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=1000)}"
