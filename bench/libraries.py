"""Kernels of few rows against libraries at the shapes of the families: what a launch of a chain takes.

    python bench/libraries.py [--calls N]

Random numbers. A case is a CUDA graph of `calls` launches, each on weights of its own where there are any, so
that they come from memory and not from a cache. `ours` is what Ops launch, early starts included; `cublas` is
torch's addmm or mm, to which a sum or GELU would still be added; `sdpa` is torch's attention (cuDNN's on an
H200), in which keys of two places are already together.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from run import Bench, Given, Row, main
from shared.timing import summary
from vla_accel_ros.kernels.ops import Ops, ops_for

PRODUCTS = (
    ("Fast-WAM", 32, 1024, (("bias_product", 9216), ("bias_product", 3072), ("gelu_product", 4096))),
    ("Fast-WAM", 32, 3072, (("add_product", 1024),)),
    ("Fast-WAM", 32, 4096, (("add_product", 1024),)),
    ("GR00T N1.7", 41, 1536, (("bias_product", 4608), ("add_product", 1536), ("gelu_product", 6144))),
    ("GR00T N1.7", 41, 6144, (("add_product", 1536),)),
    ("mimic-video", 16, 1024, (("bias_product", 3072), ("bias_product", 4096))),
)
"""Family, rows, inputs, and kernels with their outputs."""
ATTENTION = (
    ("Fast-WAM, frame and own rows", 32, 120, 32, 24, 128),
    ("Fast-WAM, words and joints", 32, 128, 1, 24, 128),
    ("Fast-WAM, frame", 120, 120, 0, 24, 128),
    ("GR00T N1.7, own rows", 41, 41, 0, 32, 48),
    ("GR00T N1.7, frame", 41, 300, 0, 32, 48),
    ("X-VLA", 330, 330, 0, 16, 64),
    ("OpenVLA-OFT", 350, 350, 0, 32, 128),
    ("mimic-video, a video", 16, 19200, 0, 8, 128),
)
"""Case, queries, keys, further keys, heads, size of a head."""
CACHED_BYTES, GRAPHS = 120 << 20, 8
"""More than a cache holds; replays of a graph that are timed, after one that is not."""


def options(add: Callable[..., Any]) -> None:
    add("--calls", type=int, default=96, help="launches of a graph (default: %(default)s)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each product, and for each attention."""
    torch.manual_seed(0)
    ops = ops_for(given.device)
    for family, rows, inputs, kernels in PRODUCTS:
        for kernel, outputs in kernels:
            yield product(ops, family, kernel, (rows, outputs, inputs), given)
    for case in ATTENTION:
        yield attention(ops, case, given)


def product(ops: Ops, family: str, kernel: str, sizes: tuple[int, int, int], given: Given) -> Row:
    """Of a linear layer."""
    (rows, outputs, inputs), draw = sizes, drawing(given)
    count = 1 if given.small else math.ceil(CACHED_BYTES / (2 * outputs * inputs))
    weights = [draw(outputs, inputs) * inputs**-0.5 for _ in range(count)]
    a, bias, x, y = draw(rows, inputs), draw(outputs), draw(rows, outputs), draw(rows, outputs)
    added = (y,) if kernel == "add_product" else ()

    def library(weight: Tensor) -> None:
        if kernel == "add_product":
            torch.mm(a, weight.t(), out=y)
        else:
            torch.addmm(bias, a, weight.t(), out=x)

    launch = getattr(ops, kernel)
    times = {
        "ours": timed([partial(launch, a, weight, bias, x, *added) for weight in weights], given),
        "cublas": timed([partial(library, weight) for weight in weights], given),
    }
    return {"family": family, "kernel": kernel, "sizes": list(sizes), **times}


def attention(ops: Ops, case: tuple[str, int, int, int, int, int], given: Given) -> Row:
    """Of rows to keys."""
    (name, rows, keys, further, heads, head), draw = case, drawing(given)
    q, k, v, k_tail, v_tail = (draw(1, n, heads, head) for n in (rows, keys, keys, further, further))
    out, tail = draw(1, rows, heads * head), (k_tail, v_tail) if further else None
    places = (q, torch.cat((k, k_tail), 1), torch.cat((v, v_tail), 1))
    queries, all_keys, values = (part.transpose(1, 2) for part in places)
    times = {
        "ours": timed([lambda: ops.attend_full(q, k, v, out, None, tail)], given),
        "sdpa": timed([lambda: F.scaled_dot_product_attention(queries, all_keys, values)], given),
    }
    sizes = [rows, keys, further, heads, head]
    return {"family": name, "kernel": "attend_full", "sizes": sizes, **times}


def drawing(given: Given) -> Callable[..., Tensor]:
    """Normal numbers of a shape."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=given.device, dtype=given.dtype)

    return draw


@torch.inference_mode()
def timed(launches: Sequence[Callable[[], object]], given: Given) -> dict[str, float]:
    """Microseconds of a launch in a graph of many, in turn; on a CPU nothing is timed but that it runs."""
    for launch in launches:
        launch()
    if given.device.type != "cuda":
        return {}
    calls, stream = max(given.calls, len(launches)), torch.cuda.Stream()
    graph, ends = torch.cuda.CUDAGraph(), [torch.cuda.Event(enable_timing=True) for _ in range(GRAPHS + 1)]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for number in range(calls):
            launches[number % len(launches)]()
        graph.capture_end()
        graph.replay()
        for number, end in enumerate(ends):
            end.record()
            if number < GRAPHS:
                graph.replay()
    torch.cuda.synchronize()
    us = [1e3 * first.elapsed_time(last) / calls for first, last in itertools.pairwise(ends)]
    return {name.replace("_ms", "_us"): value for name, value in summary(us).items()}


BENCH = Bench("libraries", measure, options, gpu=True, small=True, smoke="--small --calls 1")

if __name__ == "__main__":
    sys.exit(main(BENCH))
