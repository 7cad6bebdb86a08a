"""Micro-benchmarks that make a device file: memory, the stages' products, launches. A minute on a GPU.

Only single products and kernels are measured, never a stage, so that a plan can be compared with stages
afterwards. Each is a chain in a CUDA graph, over weights that are more than a cache holds, so that launches
cost what they cost in a stage and weights come from memory; on a CPU the same chains are timed without a
graph, which tries the code and says nothing of a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vla_accel_ros.planning.cost import waves_us
from vla_accel_ros.planning.device import Device, Number, Shape
from vla_accel_ros.planning.families.find import Sizes, operations
from vla_accel_ros.planning.families.work import Work
from vla_accel_ros.planning.operations import Kind

CHAIN = 24
"""Launches of a chain."""
REPEATS = 7
COLD_BYTES = 256 << 20
"""Weights of a chain together, so that none is in a cache when its turn comes again."""
LARGE = 4096
HERE = "measured"


def us_of(chain: Callable[[], object], launches: int, device: torch.device, repeats: int = REPEATS) -> float:
    """Microseconds of a launch: the median of repeats of a captured chain."""
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            chain()
            times.append(time.perf_counter() - began)
        return 1e6 * sorted(times)[repeats // 2] / launches
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            chain()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        found.append(begin.elapsed_time(end))
    return 1e3 * sorted(found)[repeats // 2] / launches


def product_us(m: int, n: int, k: int, dtype: str, device: torch.device, chain: int = CHAIN) -> float | None:
    """Microseconds of [m, k] x [k, n]; None for a dtype that this device or torch does not multiply."""
    item = {"fp32": 4, "bf16": 2}.get(dtype, 1)
    count = max(2, min(chain, math.ceil(COLD_BYTES / (item * n * k)) if device.type == "cuda" else 2))
    try:
        rounds = max(1, chain // count)
        run = products(m, n, k, dtype, device, count, rounds)
        run()
        return us_of(run, rounds * count, device)
    except (RuntimeError, NotImplementedError, AttributeError):
        return None


def products(
    m: int, n: int, k: int, dtype: str, device: torch.device, count: int, rounds: int
) -> Callable[[], None]:
    """A chain of rounds * count products over `count` weights in turn. Raises NotImplementedError for a dtype
    that there are no products of."""
    half = torch.float32 if dtype == "fp32" or device.type != "cuda" else torch.bfloat16
    a = torch.randn(m, k, device=device, dtype=half)
    weights = [torch.randn(n, k, device=device, dtype=half) * k**-0.5 for _ in range(count)]
    if dtype in ("fp32", "bf16"):
        out = torch.empty(m, n, device=device, dtype=half)
        return lambda: _each(rounds, weights, lambda w: torch.mm(a, w.t(), out=out))
    if dtype == "int8":
        small = (a * 32).to(torch.int8)
        integers = [(w * 32 * k**0.5).to(torch.int8) for w in weights]
        return lambda: _each(rounds, integers, lambda w: torch._int_mm(small, w.t()))
    if dtype != "fp8":
        raise NotImplementedError(dtype)
    rows, scale = a.to(torch.float8_e4m3fn), torch.ones(m, 1, device=device)
    columns, floats = torch.ones(1, n, device=device), [w.to(torch.float8_e4m3fn) for w in weights]

    def scaled(w: Tensor) -> Tensor:
        return torch._scaled_mm(rows, w.t(), scale_a=scale, scale_b=columns, out_dtype=torch.bfloat16)

    return lambda: _each(rounds, floats, scaled)


def _each(rounds: int, items: Sequence[Tensor], run: Callable[[Tensor], object]) -> None:
    for _ in range(rounds):
        for item in items:
            run(item)


def bandwidth_gb_s(device: torch.device, megabytes: int = 1024) -> float:
    """Of a copy, read and written bytes together."""
    source = torch.zeros(megabytes << 18, device=device, dtype=torch.float32)
    into = torch.empty_like(source)
    us = us_of(lambda: into.copy_(source), 1, device)
    return 2 * source.nbytes / us / 1e3


def pass_us(device: torch.device, numbers: int = 1024) -> float:
    """Of the smallest launch that depends on the one before it in a graph."""
    x = torch.zeros(numbers, device=device)

    def chain() -> None:
        for _ in range(CHAIN):
            x.add_(1.0)

    return us_of(chain, CHAIN, device)


def shapes(
    models: Iterable[Sizes], views: Iterable[int], dtypes: Iterable[str], prompt: int = 20
) -> list[Shape]:
    """The dense products of the models' stages in each dtype, each once, without times; the few numbers of
    rows, columns and inner are what a stage has."""
    found: dict[tuple[int, int, int, str], Shape] = {}
    given = list(dtypes)
    for sizes in models:
        for count in views:
            for ops in operations(sizes, Work(views=count, prompt=prompt)).values():
                for op in ops:
                    if op.kind is not Kind.DENSE or op.compute != "bf16" or op.rows < 16:
                        continue
                    for dtype in given:
                        key = (op.rows, op.columns, op.inner, dtype)
                        found[key] = Shape(*key, 0.0)
    return list(found.values())


def measure(
    base: Device,
    device: torch.device,
    wanted: Sequence[Shape],
    seconds: float = 60.0,
    say: Callable[[str], object] = lambda _: None,
    large: int = LARGE,
    megabytes: int = 1024,
) -> Device:
    """A device file's content by measurement; what is not measured stays as in base, which is named in it.

    seconds: after which no further shape is begun. The rate of tiles is that of the best product that was
    measured, by the model's own waves; large: side of the product by which it is held up.
    """
    began = time.monotonic()
    numbers = dict(base.numbers)
    numbers["bandwidth_gb_s"] = _number(bandwidth_gb_s(device, megabytes), 0.03, f"a copy of {megabytes} MB")
    numbers["pass_start_us"] = _number(max(pass_us(device), 0.05), 0.1, "a small dependent launch in a graph")
    found: list[Shape] = []
    for number, shape in enumerate(wanted):
        if time.monotonic() - began > seconds:
            say(f"{len(wanted) - number} of {len(wanted)} shapes were left out after {seconds:g} s")
            break
        us = product_us(shape.m, shape.n, shape.k, shape.dtype, device)
        if us is not None:
            found.append(replace(shape, us=round(us, 3)))
    sms = base.sms
    if device.type == "cuda":
        sms = torch.cuda.get_device_properties(device).multi_processor_count
    for dtype in dict.fromkeys(shape.dtype for shape in found):
        name, sustained = f"{dtype}_tflops", product_us(large, large, large, dtype, device, chain=8)
        start = numbers["start_us"].value
        rate = _rate([shape for shape in found if shape.dtype == dtype], sms, start)
        if rate > 0:
            numbers[name] = _number(rate / 1e12, 0.08, "the best measured product, by waves of tiles")
        if dtype == "bf16" and sustained and rate > 0:
            share = min(1.0, 2.0 * large**3 / (sustained * 1e-6) / rate)
            numbers["sustained_share"] = _number(share, 0.05, f"a product of {large}^3")
    return replace(base, sms=sms, numbers=numbers, gemm=tuple(found), modes={})


def _rate(found: Sequence[Shape], sms: int, start_us: float) -> float:
    """FLOP/s of resident tiles at which the fastest eighth of the products is explained."""
    rates = []
    for shape in found:
        us = max(shape.us - start_us, 0.25 * shape.us)
        rates.append(waves_us(shape.m, shape.n, shape.k, sms, 1e12) / us * 1e12)
    rates.sort(reverse=True)
    return rates[len(rates) // 8] if rates else 0.0


def _number(value: float, within: float, words: str) -> Number:
    return Number(float(f"{value:.4g}"), HERE, words, within)


def to_yaml(device: Device, title: str, note: str) -> str:
    """The file of a device, to be read again by planning.device."""
    lines = [f"# {note}", f"name: {device.name}", f"title: {title}", f"sms: {device.sms}"]
    lines += [f"memory_gb: {device.memory_gb:g}", f"unified: {str(device.unified).lower()}"]
    lines += [f"fast_memory: {str(device.fast_memory).lower()}", f"capability: {device.capability}"]
    lines += [f"watts: {device.watts:g}", "numbers:"]
    for name, n in device.numbers.items():
        words = n.words.replace('"', "'")
        lines.append(
            f'  {name}: {{value: {n.value:g}, source: {n.source}, within: {n.within:g}, from: "{words}"}}'
        )
    if device.gemm:
        lines.append("gemm:")
        lines += [f"  - [{s.m}, {s.n}, {s.k}, {s.dtype}, {s.us:g}]" for s in device.gemm]
    return "\n".join(lines) + "\n"
