"""Launch products.cu for linear layers of few rows, on sm_90: with biases, a GELU, or a gated sum.

Same signatures as the references in kernels/reference/norm.py. They need no tuning: `linear_config` spreads
the weights over the device.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import torch
from torch import Tensor

from vla_accel_ros.kernels.cuda import compiling
from vla_accel_ros.kernels.cuda.compiling import ROWS, SHARED_BYTES
from vla_accel_ros.kernels.cuda.products import (
    BIASED,
    CHUNK,
    LEAST_CHUNKS,
    PROJECT,
    clusters_at_once,
    launch_product,
    rows_of,
    shared_bytes,
)
from vla_accel_ros.kernels.early import reads_early
from vla_accel_ros.kernels.reference.linear import GELU
from vla_accel_ros.kernels.shapes import Config

KINDS = {"bias_product": BIASED, "gelu_product": BIASED, "add_product": PROJECT}
COLUMNS, ADDED_COLUMNS, STAGES = (16, 32, 48, 64, 80, 96), (64, 32), (12, 8, 4)
"""Of a block, in the order in which they are tried; of one of add_product."""
MOST_SHARING, SHARED_CHUNKS = 4, 8
"""Most blocks that share the inner dimension of add_product, and least chunks of each: beyond, the exchange
of sums takes longer than what it saves."""


@reads_early("weight bias", waits=False)
def bias_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.bias_product."""
    _linear(BIASED, a, weight, bias, out, config, pdl)


@reads_early("weight bias", waits=False)
def gelu_product(
    a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, config: Config, pdl: bool = False
) -> None:
    """See kernels.reference.norm.gelu_product."""
    _linear(BIASED, a, weight, bias, out, config, pdl, GELU)


@reads_early("weight", waits=False)
def add_product(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    x: Tensor,
    y: Tensor,
    gate: Tensor | None = None,
    *,
    config: Config,
    pdl: bool = False,
) -> tuple[None, None]:
    """See kernels.reference.norm.add_product; nothing is left to add."""
    _linear(PROJECT, a, weight, bias, x, config, pdl, gate=gate)
    return None, None


def linear_config(
    name: str, a: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *more: Tensor | None, blocks: int
) -> Config | None:
    """How bias_product, gelu_product or add_product is launched for at most 64 rows, so that all of its
    `blocks` at most run at once; None if it cannot be."""
    (columns, inner), rows, kind = weight.shape, len(a), KINDS[name]
    tensors = [tensor for tensor in (a, weight, bias, out, *more) if tensor is not None]
    if not (
        compiling.launchable(a)
        and rows <= ROWS
        and inner % CHUNK == 0
        and all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in tensors)
        and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
    ):
        return None
    return spread(kind, rows, columns, inner, blocks, tuple(clusters_at_once(a.device).items()))


@lru_cache(maxsize=256)
def spread(
    kind: int, rows: int, columns: int, inner: int, blocks: int, clusters: tuple[tuple[int, int], ...]
) -> Config | None:
    """The inner dimension of `project` is shared by as many blocks as pay; else a block has as few columns as
    possible. clusters: how many run at once, by their blocks. None if not all blocks would run at once."""
    at_once = {1: blocks, **(dict(clusters) if kind == PROJECT else {})}
    splits = [split for split in sorted(at_once, reverse=True) if split <= MOST_SHARING]
    sizes = ADDED_COLUMNS if kind == PROJECT else COLUMNS
    for split, size, stages in itertools.product(splits, sizes, STAGES):
        if columns % size or columns // size > at_once[split] or columns // size * split > blocks:
            continue
        if inner // CHUNK // split < (SHARED_CHUNKS if split > 1 else LEAST_CHUNKS):
            continue
        config = Config(ROWS, size, CHUNK, split, 8, stages, "cuda")
        if shared_bytes(kind, config, inner, rows) <= SHARED_BYTES:
            return config
    return None


def _linear(
    kind: int,
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Config,
    pdl: bool,
    activation: str | None = None,
    gate: Tensor | None = None,
) -> None:
    arguments = rows_of(out[None], None)
    arguments.out, arguments.columns = out.data_ptr(), len(weight)
    for name, vector in (("linear_bias", bias), ("linear_gate", gate)):
        if vector is not None:
            setattr(arguments, name, vector.data_ptr())
    across = len(weight) // config.block_n * config.split
    launch_product(kind, a[None], weight, across, arguments, config, pdl, activation, linear=True)
