"""Time single kernels in chains: a copy, products, attentions, and the operations that plain torch launches.

Each is a chain in a CUDA graph, over weights larger than any cache, so that launches cost what they cost in a
stage and weights come from memory. Graphs are replayed back to back for STEADY_MS, and the later half counts,
because a stage in use runs at the clocks that power allows in the long run. On a CPU the same chains run
without a graph, which tests the code and says nothing of a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.kernels.reference.int8 import place_rows
from vla_accel_ros.kernels.shapes import Config
from vla_accel_ros.kernels.work import Rows, Shape, Work
from vla_accel_ros.models.layers.llama import RMSNorm
from vla_accel_ros.models.layers.quantized import SHORT, W8A8, quantized
from vla_accel_ros.models.smolvla.stack import rotary_tables, rotate
from vla_accel_ros.planning.operations import GATED, PACKED, ROWS, SDPA, Op

CHAIN = 48
"""Launches in a chain."""
REPEATS = 7
STEADY_MS = 60.0
COLD_BYTES = 256 << 20
"""Size of a chain's weights, so that none is still in a cache when it is used again."""
PLAIN_ROWS, PLAIN_WIDTH, PLAIN_HEADS = 50, 720, 15
"""Sizes of a norm and a rotation in plain torch: those of SmolVLA's action expert."""
PLAIN_LAUNCHES = 8 + 9
"""Launches of a norm and of a rotation, as test/planning counts them."""


def us_of(chain: Callable[[], object], launches: int, device: torch.device, repeats: int = REPEATS) -> float:
    """Return the microseconds of a launch: the median over a captured chain's replays. repeats: fewest
    replays."""
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            start_s = time.perf_counter()
            chain()
            times.append(time.perf_counter() - start_s)
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
    once = sorted(replays_ms(graph.replay, 3))[1]
    count = max(repeats, min(500, math.ceil(STEADY_MS / max(once, 1e-3))))
    times_ms = sorted(replays_ms(graph.replay, count)[count // 2 :])
    return 1e3 * times_ms[len(times_ms) // 2] / launches


def replays_ms(run: Callable[[], object], count: int) -> list[float]:
    """Return the milliseconds between device events around each call, launched without waiting for the one
    before."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def product_us(m: int, n: int, k: int, dtype: str, device: torch.device, chain: int = CHAIN) -> float | None:
    """Return the microseconds of [m, k] x [k, n]; None if the device or torch does not multiply the dtype."""
    item = {"fp32": 4, "bf16": 2}.get(dtype, 1)
    cold = math.ceil(COLD_BYTES / (item * n * k)) if device.type == "cuda" else 2
    count = max(2, min(chain, cold))
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
    """Return a chain of rounds * count products over `count` weights in turn, launched as the stages do: fp8
    is cuBLASLt without scales, see kernels.triton.quantized.multiply_unscaled. Raises NotImplementedError if
    there are no products of the dtype."""
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
    rows, scale = a.to(torch.float8_e4m3fn), torch.ones((), device=device)
    floats = [w.to(torch.float8_e4m3fn) for w in weights]
    into, fast = torch.empty(m, n, device=device, dtype=torch.bfloat16), k <= SHORT

    def multiply(w: Tensor) -> Tensor:
        return torch._scaled_mm(
            rows, w.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast, out=into
        )

    return lambda: _each(rounds, floats, multiply)


def _each(rounds: int, items: Sequence[Tensor], run: Callable[[Tensor], object]) -> None:
    for _ in range(rounds):
        for item in items:
            run(item)


def rows_product_us(op: Op, device: torch.device, config: Config, chain: int = CHAIN) -> float:
    """Return the microseconds of a product of int8 rows by the kernel of w8a8. op: by ROWS or GATED.
    config: its tile, see planning.rows. Raises RuntimeError or an error of Triton's if the device does
    not multiply them, NotImplementedError for other operations."""
    if op.by not in (ROWS, GATED):
        raise NotImplementedError(op.compute)
    gated = op.by == GATED
    launch: Callable[..., object]
    if device.type == "cuda":
        from vla_accel_ros.kernels.triton import int8

        launch = partial(int8.gated if gated else int8.multiply, config=config)
    else:
        from vla_accel_ros.kernels.reference import int8 as reference

        launch = reference.gated if gated else reference.multiply
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    count = min(chain, math.ceil(COLD_BYTES / (op.columns * op.inner)) if device.type == "cuda" else 2)
    weights = [quantized(torch.randn(op.columns, op.inner, device=device), W8A8) for _ in range(count)]
    a = place_rows(op.rows, op.inner, device)
    out = torch.empty(op.rows, op.columns // 2 if gated else op.columns, device=device, dtype=dtype)
    rounds = max(1, chain // count)

    def run() -> None:
        for _ in range(rounds):
            for weight in weights:
                launch(a, weight, out)

    return us_of(run, rounds * count, device)


def attention_us(op: Op, device: torch.device, chain: int = CHAIN) -> float:
    """Return the microseconds of an attention of SDPA or PACKED among a set of tokens: all of them in SDPA,
    the earlier ones in PACKED. op.rows: heads * tokens of all images."""
    tokens = op.rows // op.heads
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    joined = torch.randn(tokens, 3 * op.heads * op.columns, device=device, dtype=dtype)
    if op.by == SDPA:
        images = joined.view(tokens // op.inner, op.inner, 3, op.heads, op.columns)
        q, k, v = images.permute(2, 0, 3, 1, 4)
        return us_of(lambda: [F.scaled_dot_product_attention(q, k, v) for _ in range(chain)], chain, device)
    if op.by != PACKED:
        raise NotImplementedError(op.by)
    work = Work([Shape(tokens, tuple(range(1, tokens + 1)))], 4, 1, device, 32, 1)
    work.point([Rows((), ())])
    out = torch.empty(tokens, op.heads * op.columns, device=device, dtype=dtype)
    if device.type == "cuda":
        from vla_accel_ros.kernels.triton import packed_attention as kernels
    else:
        from vla_accel_ros.kernels.reference import packed_attention as kernels  # type: ignore[no-redef]
    attend = kernels.attend
    return us_of(
        lambda: [attend(joined, work, 0, op.heads, op.columns, out) for _ in range(chain)], chain, device
    )


def bandwidth_gb_s(device: torch.device, megabytes: int = 1024) -> float:
    """Return the bandwidth of a kernel that reads and writes, both counted. A plain copy would use the
    device's copy engine, which is a third slower than kernels on an H200."""
    source = torch.zeros(megabytes << 18, device=device, dtype=torch.float32)
    into = torch.empty_like(source)
    us = us_of(lambda: torch.add(source, 1.0, out=into), 1, device)
    return 2 * source.nbytes / us / 1e3


def pass_us(device: torch.device, gb_s: float, rows: int = 544, width: int = 2048) -> float:
    """Return the microseconds of a pass over rows in a graph (a norm), besides its bytes. gb_s: the
    bandwidth."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(rows, width, device=device, dtype=dtype)
    out, factor = torch.empty_like(x), torch.ones(width, device=device)
    if device.type == "cuda":
        from vla_accel_ros.kernels.triton import rows as kernels
    else:
        from vla_accel_ros.kernels.reference import rows as kernels  # type: ignore[no-redef]
    norm = kernels.rms_norm
    us = us_of(lambda: [norm(x, factor, 1e-6, out) for _ in range(CHAIN)], CHAIN, device)
    return us - 2 * x.nbytes / gb_s / 1e3


@torch.no_grad()
def plain_us(device: torch.device, rounds: int = 8) -> float:
    """Return the microseconds of a plain torch operation on few rows: the mean over those of a norm and a
    rotation."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    norm = RMSNorm(PLAIN_WIDTH, 1e-5).to(device, dtype)
    x = torch.randn(1, PLAIN_ROWS, PLAIN_WIDTH, device=device, dtype=dtype)
    heads = torch.randn(1, PLAIN_ROWS, PLAIN_HEADS, 64, device=device, dtype=dtype).transpose(1, 2)
    tables = rotary_tables(torch.arange(PLAIN_ROWS, device=device)[None], 64)

    def chain() -> None:
        for _ in range(rounds):
            norm(x)
            rotate(heads, tables)

    return us_of(chain, rounds * PLAIN_LAUNCHES, device)
