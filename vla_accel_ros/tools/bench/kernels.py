"""Compare every kernel with its reference, at the shapes at which stages launch it.

Stages of a model with the published widths and few layers run without graphs. Each launch is made twice on
the same numbers: by the kernel, and by its plain reference in float32; afterwards the arguments are compared,
by the norm of the difference. So a kernel is checked for its real arguments, and a new kernel with the first
stage that launches it. Kernels of a denoise step are also checked with poisoned results, as `vla tune` draws
them. Forwards of tokens write into memory that their arguments only point to, so they are compared as a
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import kernels_for
from vla_accel_ros.engine.stages.precision import EXACT, PRECISIONS, ROWS, W8A8_INT4, check
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.ops import Ops, ops_for
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.kernels.reference.quantized import Rows
from vla_accel_ros.models.config import BlocksConfig, LlamaConfig, PiConfig
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.flow.solver import AB2, EULER
from vla_accel_ros.models.layers import qwen
from vla_accel_ros.models.layers.dit import Mixer
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.layers.quantized import FP8, INT4, INT8, W8A8, Quantized
from vla_accel_ros.models.layers.residual import computing
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.subjects import random_inputs, random_model, random_network
from vla_accel_ros.tools.tune import pieces
from vla_accel_ros.tools.tune.pieces import NEAR, copied, wide

ROWS_NEAR, GROUPS_NEAR = 3e-2, 1e-1
"""Largest relative error for rows in 8 and in 4 bits, whose values may be one rounding apart."""
STEPS = 3
KERNELS = tuple(
    name for name, value in vars(Ops).items() if isinstance(value, staticmethod) and not name.startswith("_")
)
FORWARD = "packed forward"
FEW_ROWS = {FP8: FP8, INT8: INT8, INT4: INT4, W8A8_INT4: INT4}
"""By precision: the kind of weights for products of few rows."""
ONLY = {"attend": 5, "attend_rotary": 9}
"""Index of the argument that is the result; the others may be unchanged or used as scratch memory."""


@dataclass(frozen=True)
class Checked:
    """A kernel at its worst: the greatest relative error of its launches, and the model and precision of it.
    wrong: why it could not be computed, "" if it could."""

    kernel: str
    launches: int
    error: float
    most: float
    where: str
    wrong: str = ""

    @property
    def good(self) -> bool:
        """Whether the error is small enough."""
        return not self.wrong and self.error <= self.most


class CheckedOps(Ops):
    """Kernels whose launches are compared with the reference. launches: (kernel, error, most) of each one."""

    def __init__(self, ops: Ops, launches: list[tuple[str, float, float]]) -> None:
        self._ops, self._launches = ops, launches
        for name in KERNELS:
            setattr(self, name, self._checked(name))

    def parts(self, rows: int, weight: Tensor) -> int:
        return self._ops.parts(rows, weight)

    def _checked(self, name: str) -> Callable[..., Any]:
        def launch(*given: Any, **keywords: Any) -> Any:
            exact, exact_named = wide(copied(given)), wide(copied(keywords))
            parts = getattr(Ops, name)(*exact, **exact_named)
            result = getattr(self._ops, name)(*given, **keywords)
            ours: Any = (given, keywords)
            expected: Any = (exact, exact_named)
            if name == "add_product":  # what the following norm must still add is part of the result
                ours, expected = _joined(given, result), _joined(exact, parts)
            elif name in ONLY:
                ours, expected = given[ONLY[name]], exact[ONLY[name]]
            elif isinstance(result, Tensor):
                ours, expected = (ours, result), (expected, parts)
            rows = [argument for argument in given if isinstance(argument, Rows)]
            most = GROUPS_NEAR if any(r.groups is not None for r in rows) else ROWS_NEAR if rows else NEAR
            self._launches.append((name, error(ours, expected), most))
            return result

        return launch


class Uncaptured(Stages):
    """Stages that run eagerly in every call."""

    def record(self, stage: Stage, partition: Hashable) -> None:
        stage.partition = partition


def checked(
    configs: Sequence[PiConfig], device: torch.device, dtype: torch.dtype = torch.bfloat16, views: int = 2
) -> Iterator[Checked]:
    """Yield each kernel that stages of these models launch in any precision of the device, once.

    `wrong` says what the device refuses or fails to launch.
    """
    worst: dict[str, Checked] = {}
    for config in configs:
        model = random_model(config, device, dtype=dtype)
        for precision in PRECISIONS:
            where = f"{config.kind}, {precision}"
            try:
                check(precision, True, device, dtype)
            except ValueError:
                continue  # the device lacks the precision
            launches: list[tuple[str, float, float]] = []
            failure = ""
            try:
                _run(model, precision, launches, views)
                _forward(model, precision, launches)
                _blocks(device, dtype, launches)
                weights = FEW_ROWS.get(precision)
                alone = pieces.errors(config, 40, device, 3, ops_for(device), dtype, weights)
                launches += [(name.split()[0], size, NEAR) for name, size in alone]
            except Exception as fault:  # any error of a compiler, driver or library
                failure = f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"
            for name, size, limit in launches:
                launch = Checked(name, 1, size, limit, where)
                worst[name] = launch if name not in worst else _worse(worst[name], launch)
            if failure:
                name = f"after {launches[-1][0]}" if launches else "first launch"
                yield Checked(name, 0, float("inf"), 0.0, where, failure)
    yield from worst.values()


def few_layers(config: PiConfig, layers: int = 2, vocab: int = 2048) -> PiConfig:
    """Return the config with the same widths but few layers, so that every launch has its real shape."""
    return replace(
        config,
        vocab=min(vocab, config.vocab),
        vision=replace(config.vision, depth=layers),
        prefix=replace(config.prefix, depth=layers),
        expert=replace(config.expert, depth=layers),
    )


@torch.inference_mode()
def _run(model: Pi, precision: str, launches: list[tuple[str, float, float]], views: int) -> None:
    """Run frames; chunks alone and together, free, guided and committed; and all solvers."""
    config, device = model.config, model.embed_table.device
    prompt = min(16, config.max_prompt)  # whole buckets: padding is never read, and may differ
    inputs = random_inputs(config, min(views, len(config.image_names)), prompt, device)
    solvers = (EULER, AB2) if precision == EXACT else (EULER,)
    for solver in solvers:
        pool = KVPool(config.prefix, 4, config.max_tokens, device, model.language_model.dtype)

        def ops() -> Ops:
            return CheckedOps(ops_for(device), launches)

        int8 = Int8(denoise=precision == W8A8) if precision in ROWS else None
        stages = Uncaptured(model, pool, ops=ops, precision=precision, solver=solver, int8=int8)
        lengths = stages.observe([inputs.frames] * 2, [inputs.prompt] * 2, [1, 2])
        stages.last_hidden(1, lengths[0])
        target = torch.zeros(config.horizon, config.action_dim)
        guided = Inpainting(target, torch.linspace(1, 0, config.horizon))
        for count in (1, MOST_NARROW // config.horizon + 1):
            noise, state = (tensor.expand(count, *tensor.shape[1:]).contiguous() for tensor in inputs[3:])
            slots, tokens = ([1, 2] * count)[:count], (lengths * count)[:count]
            for guides in (None, [guided] * count):
                stages.act(noise, state, slots, tokens, STEPS, guides)
        if solver == EULER:
            committed = [Inpainting(target, torch.zeros(config.horizon), committed=2)]
            stages.act(inputs.noise, inputs.state, [1], lengths[:1], STEPS, committed)


@torch.inference_mode()
def _forward(model: Pi, precision: str, launches: list[tuple[str, float, float]]) -> None:
    """Run a prompt and then one token, with the kernels and with the references on the same prefix."""
    device, sizes = model.embed_table.device, model.config.prefix
    weights = FEW_ROWS[precision] if precision in (INT8, INT4, W8A8_INT4) else None
    rows8 = Int8() if precision == W8A8 else None
    results: list[list[Tensor]] = []
    drawn = torch.Generator(device).manual_seed(3)
    rows = torch.randn(1, 21, sizes.width, generator=drawn, device=device).to(model.language_model.dtype)
    for kernels in (kernels_for(device), kernels_for(torch.device("cpu"))):
        pool = KVPool(sizes, 1, 24, device, rows.dtype)
        forward = PackedForward(model.stack, sizes, 64, kernels, capture=False, weights=weights, int8=rows8)
        outputs = [forward([Segment(rows[:, :20], causal=True, out=pool.span(0, 0, 20))])[0].clone()]
        past = (pool.span(0, 0, 20),)
        outputs.append(forward([Segment(rows[:, 20:], past, out=pool.span(0, 20, 21))])[0].clone())
        results.append([*outputs, pool.k[:, :, :, :21].clone(), pool.v[:, :, :, :21].clone()])
    # A value that one of them rounds differently affects everything after it.
    launches.append((FORWARD, error(results[0], results[1]), 2 * (NEAR if rows8 is None else ROWS_NEAR)))


@torch.inference_mode()
def _blocks(device: torch.device, dtype: torch.dtype, launches: list[tuple[str, float, float]]) -> None:
    """Run blocks of families that have no stages of their own."""
    sizes = BlocksConfig(width=192, depth=2, mlp=384, heads=4, head_dim=48)
    mixer = random_network(lambda: Mixer(sizes), device).to(dtype)
    drawn = torch.Generator(device).manual_seed(4)
    rows = torch.randn(1, 41, sizes.width, generator=drawn, device=device).to(dtype)
    grouped = LlamaConfig(width=192, depth=1, mlp=384, heads=4, kv_heads=2, head_dim=48)
    turned = random_network(lambda: qwen.Attention(grouped), device).to(dtype)
    angles = torch.randn(1, 1, rows.shape[1], grouped.head_dim, generator=drawn, device=device)
    with computing(CheckedOps(ops_for(device), launches)):
        mixer(rows)
        turned(rows, (angles.cos().to(dtype), angles.sin().to(dtype)))


def _worse(first: Checked, other: Checked) -> Checked:
    worse = (
        other if other.error / other.most > first.error / first.most or other.error != other.error else first
    )
    return replace(worse, launches=first.launches + other.launches)


def _joined(arguments: Sequence[Any], parts: tuple[Tensor | None, Tensor | None]) -> Tensor:
    """Return x plus what add_product left to add."""
    x: Tensor = arguments[3].float()
    left, gate = sum(part.float() for part in parts if part is not None), arguments[5:]
    return x + (left if not gate or gate[0] is None else gate[0].float() * left)


def error(ours: Any, expected: Any) -> float:
    """Return the greatest relative error; infinite if a result is not finite but should be."""
    pairs = zip(values(ours), values(expected), strict=True)
    worst = 0.0
    for result, exact in pairs:
        if torch.equal(result, exact):
            continue
        size = float(exact.double().norm())
        if not np.isfinite(size):
            continue  # the input was not finite already: an earlier launch is to blame
        off = float((result.double() - exact.double()).norm()) / max(size, 1e-30)
        worst = max(worst, off) if np.isfinite(off) else float("inf")
    return worst


def values(value: Any) -> Iterator[Tensor]:
    """Yield the tensors to compare: floating-point ones, 8-bit rows times their scales, and the sums of a
    norm."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.float()
    elif isinstance(value, Rows | Quantized):
        if isinstance(value, Rows):
            yield value.float()
    elif isinstance(value, Norm):
        yield value.squares.sum(0)
        yield from values(value.scaled)
    elif isinstance(value, dict):
        yield from values(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from values(item)
