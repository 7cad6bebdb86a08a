"""Times every launch in every block shape: compiled and checked first in many processes, then timed alone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import torch

from shaping.by_count import by_count
from shaping.cases import Case, cases
from shaping.measured import Measured
from vla_accel_ros.kernels.block_shapes import ENDS, candidates, chosen
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import TritonOps
from vla_accel_ros.kernels.shapes import Config, Shape
from vla_accel_ros.kernels.tuning import Table, packaged_table
from vla_accel_ros.tools.tune.choose import shape_of
from vla_accel_ros.tools.tune.pieces import NEAR, Piece, chain_us, error

RUNS = 12
"""Replays of each chain of launches, of which the median counts."""
Right = Mapping[tuple[str, tuple[Any, ...]], bool]
"""Whether a launch, by its case and block shape, computes what its reference does."""


def every_case(kinds: Mapping[str, tuple[int, ...]], device: torch.device) -> list[Case]:
    """The launches of some kinds of models. kinds: the batches of chunks of each."""
    return [case for kind, batches in kinds.items() for case in cases(kind, batches, device)]


def configs(case: Case, shape: Shape, gpu: Gpu) -> list[Config]:
    """Every block shape to time: those of `vla tune`, those the model chooses from, and what would be
    taken."""
    own = ENDS[shape.kernel] if shape.kernel in ENDS else candidates(shape)
    taken = (chosen(shape, gpu), by_count(shape, gpu.processors), packaged_table(gpu).pick(shape))
    return list(dict.fromkeys((*case.candidates, *own, *taken)))


def checked(kinds: Mapping[str, tuple[int, ...]], gpus: list[Gpu]) -> Right:
    """Compile and check every launch, in a process for each core, so that timing them compiles nothing. gpus:
    the GPU and its partitions."""
    count = max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        parts = pool.starmap(_check, [(kinds, gpus, index, count) for index in range(count)], chunksize=1)
    return {key: right for part in parts for key, right in part.items()}


def _check(kinds: Mapping[str, tuple[int, ...]], gpus: list[Gpu], index: int, count: int) -> Right:
    from triton.runtime.errors import OutOfResources

    torch.set_num_threads(1)
    device, found = torch.device("cuda"), dict[tuple[str, tuple[Any, ...]], bool]()
    for case in every_case(kinds, device)[index::count]:
        piece = case.piece()
        shape = shape_of(piece)
        for config in dict.fromkeys(each for gpu in gpus for each in configs(case, shape, gpu)):
            ops = TritonOps(device, Table(gpus[0], {shape.key: config}))
            try:
                with torch.inference_mode():
                    found[case.name, astuple(config)] = error(piece, ops) <= NEAR
            except OutOfResources:
                found[case.name, astuple(config)] = False
        del piece
        torch.cuda.empty_cache()
    return found


def timed(
    all_cases: list[Case], gpu: Gpu, right: Right, device: torch.device, say: Callable[[str], None]
) -> Iterator[Measured]:
    """Yield the times of every launch on the current stream's multiprocessors."""
    for case in all_cases:
        piece = case.piece()
        shape, times = shape_of(piece), dict[Config, float]()
        for config in configs(case, shape, gpu):
            if right.get((case.name, astuple(config))):
                times[config] = _us(piece, shape, config, gpu, device)
        if times:
            yield Measured(case.name, gpu.processors, shape, times)
        else:
            say(f"{case.name}: no block shape is right")


def _us(piece: Piece, shape: Shape, config: Config, gpu: Gpu, device: torch.device) -> float:
    ops = TritonOps(device, Table(gpu, {shape.key: config}))
    with torch.inference_mode():
        return chain_us(getattr(ops, piece.kernel), piece, device, RUNS)
