"""Runs each kernel of a denoising step by itself, at the shapes of the published models, for its error and
time.

The error is the norm of the difference from the float32 reference on the same rounded inputs, relative to the
reference's norm. The time is that of a captured chain over as many different weights as the model has layers,
too many for the cache, divided by their number. It includes the gap between dependent launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.kernels.ops import Ops, TritonOps
from vla_accel_ros.kernels.reference.linear import Norm
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers.quantized import Weight, quantized
from vla_accel_ros.planning.micro import replays_ms

WARM_UP = 10
LAYERS = 18
NEAR = 1.2e-2
"""Largest relative error of a correct bfloat16 product."""


class Body(Stage):
    """Wraps any function as a stage, and captures it at once.

    It captures on the current stream unless that is the default one: a partition's stream keeps its
    multiprocessors.
    """

    def __init__(self, function: Callable[[], object], device: torch.device, capture: bool = True) -> None:
        super().__init__(device)
        self._function = function
        if capture:
            self.capture(_chosen_stream(device))

    def body(self) -> None:
        self._function()


def _chosen_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    current = torch.cuda.current_stream(device)
    return None if current == torch.cuda.default_stream(device) else current


def times_ms(run: Callable[[], object], runs: int) -> np.ndarray:
    """Return [runs] float64 milliseconds of each call, after WARM_UP calls."""
    for _ in range(WARM_UP):
        run()
    return np.array(replays_ms(run, runs))


def drawing(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Callable[..., Tensor]:
    """Return what draws tensors of normal numbers from a fixed seed."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = dtype, spread: float = 1.0) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, spread, generator=generator)

    return draw


class Piece(NamedTuple):
    """A kernel with its arguments.

    name: the kernel's name in kernels.ops, and its use if it has several. arguments: layer -> arguments.
    results: indices of the arguments that the kernel writes.
    """

    name: str
    arguments: Callable[[int], tuple[Any, ...]]
    results: tuple[int, ...]

    @property
    def kernel(self) -> str:
        """The kernel's name in kernels.ops."""
        return self.name.split()[0]


def pieces(
    config: PiConfig,
    keys: int,
    device: torch.device,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    weights: str | None = None,
) -> list[Piece]:
    """Return the kernels of the action expert for a prefix of `keys` tokens, with random numbers from a fixed
    seed.

    weights: the kind to which matrices are quantised, None for exact.
    """
    g, draw = config.expert, drawing(device, dtype)
    pi0 = config.kind == "pi0"
    tokens, heads = config.horizon + pi0, g.heads * g.head_dim
    half = g.head_dim // 2

    def table(*shape: int) -> Tensor | None:
        return None if pi0 else draw(1, *shape, dtype=torch.float32, spread=0.1)

    def full(value: int) -> Tensor:
        return torch.full((batch,), value, dtype=torch.int32, device=device)

    x, a, fed = draw(batch, tokens, g.width), draw(batch, tokens, g.mlp), draw(batch, tokens, g.mlp)
    q = draw(batch, tokens, g.heads, g.head_dim)
    k_tail, v_tail = (draw(batch, g.kv_heads, tokens, g.head_dim) for _ in range(2))
    pool = [draw(batch, LAYERS, g.kv_heads, keys + 37, g.head_dim) for _ in range(2)]
    attended = draw(batch, tokens, heads)
    rows, zeros = torch.arange(batch, dtype=torch.int32, device=device), full(0)
    angles = draw(keys + tokens + 1, half, dtype=torch.float32, spread=3.0)
    cos, sin = angles.cos(), angles.sin()
    columns = heads + 2 * g.kv_heads * g.head_dim

    def matrices(rows: int, width: int) -> list[Weight]:
        drawn = [draw(rows, width, spread=width**-0.5) for _ in range(LAYERS)]
        return list(drawn) if weights is None else [quantized(matrix, weights) for matrix in drawn]

    qkv, o = matrices(columns, g.width), matrices(g.width, heads)
    gate_up, down = matrices(2 * g.mlp, g.width), matrices(g.width, g.mlp)
    scale, bias, mlp_bias, gate = table(g.width), table(columns), table(2 * g.mlp), table(g.width)
    actions = draw(batch, config.horizon, config.action_dim, dtype=torch.float32)
    update = torch.zeros_like(actions)
    in_weight, in_bias = (
        draw(g.width, config.action_dim, dtype=torch.float32),
        draw(1, g.width, dtype=torch.float32),
    )
    out_weight, out_bias = (
        draw(config.action_dim, g.width, dtype=torch.float32),
        draw(1, config.action_dim, dtype=torch.float32),
    )
    mlp = (
        draw(g.width, g.width, spread=g.width**-0.5),
        draw(g.width, dtype=torch.float32),
        draw(batch, g.width),
    )
    more = mlp if pi0 else ()
    lengths, tails = full(keys), full(tokens)
    norm = Norm.of(x, scaled=scale is not None)._replace(scale=scale)
    norm.leave(x)
    return [
        Piece(
            "rotary_qkv",
            lambda i: (x, qkv[i], cos, sin, lengths, q, k_tail, v_tail, rows, zeros, norm, bias),
            (5, 6, 7),
        ),
        Piece(
            "attend",
            lambda i: (
                q, pool[0][:, i], pool[1][:, i], rows, lengths, attended, k_tail, v_tail, tails, int(pi0)
            ),
            (5,),
        ),
        Piece("project o", lambda i: (attended, o[i], x, gate, norm), (2, 4)),
        Piece("gated_up", lambda i: (x, gate_up[i], fed, norm, mlp_bias), (2,)),
        Piece("project down", lambda i: (a, down[i], x, gate, norm), (2, 4)),
        Piece(
            "embed_actions", lambda i: (actions, in_weight, in_bias, x, *(more or (None,) * 3), norm), (3, 7)
        ),
        Piece("read_out", lambda i: (x, out_weight, out_bias, actions, update, scale), (3, 4)),
    ]  # fmt: skip


@torch.inference_mode()
def errors(
    config: PiConfig,
    keys: int,
    device: torch.device,
    batch: int,
    ops: Ops,
    dtype: torch.dtype = torch.bfloat16,
    weights: str | None = None,
) -> Iterator[tuple[str, float]]:
    """Yield each kernel's name and its relative error against the reference with the same weights."""
    for piece in pieces(config, keys, device, batch, dtype, weights):
        yield piece.name, error(piece, ops)


def error(piece: Piece, ops: Ops) -> float:
    """Return the largest relative error of a kernel's results, inf for nan. Results that are not also inputs
    are filled with nan before."""
    arguments = piece.arguments(3)
    ours, exact = list(copied(arguments)), list(wide(copied(arguments)))
    rows = ours[piece.results[0]].shape[0] * ours[piece.results[0]].shape[1]
    for index in piece.results:
        result = ours[index]
        if isinstance(result, Norm):
            result.squares.fill_(float("nan"))
            if result.scaled is not None:
                result.scaled.fill_(float("nan"))
        elif not _adds(piece.kernel, arguments):
            result.fill_(float("nan"))
    parts = getattr(ops, piece.kernel)(*ours)
    getattr(Ops, piece.kernel)(*exact)
    for part in parts or ():  # the parts that the next norm adds
        if part is not None:
            ours[piece.results[0]].add_(part)
    pairs = [
        pair
        for index in piece.results
        for pair in zip(_tensors(ours[index], rows), _tensors(exact[index], rows), strict=True)
    ]
    differences = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]
    # nan counts as inf
    return max(value if value == value else float("inf") for value in differences)


def _adds(kernel: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a kernel adds to its output's previous content."""
    finish = arguments[-1] if isinstance(arguments[-1], str) else ""
    return finish == "add" or kernel in ("project", "read_out", "add_product")


def _tensors(value: Any, rows: int) -> list[Tensor]:
    """Return the tensors that a kernel writes into an argument; of a norm's sums only the rows' totals are
    defined."""
    if isinstance(value, Norm):
        return [value.squares.sum(0)[:rows], *([] if value.scaled is None else [value.scaled])]
    return [value]


def chain_us(launch: Callable[..., None], piece: Piece, device: torch.device, runs: int = 50) -> float:
    """Return microseconds of one launch of a piece, from a captured chain over all layers."""

    def chain() -> None:
        for layer in range(LAYERS):
            launch(*piece.arguments(layer))

    return replay_us(chain, device, runs)


def replay_us(layers: Callable[[], object], device: torch.device, runs: int = 50) -> float:
    """Return the median of microseconds of one layer, from a captured function over LAYERS of them."""
    return float(np.median(times_ms(Body(layers, device).run, runs)) * 1e3 / LAYERS)


@torch.inference_mode()
def layer_us(
    config: PiConfig, keys: int, device: torch.device, batch: int, ops: TritonOps, runs: int = 50
) -> float:
    """Return microseconds of a layer's five launches, from a captured chain over all layers."""
    launches = pieces(config, keys, device, batch)[:5]

    def layers() -> None:
        for layer in range(LAYERS):
            for piece in launches:
                getattr(ops, piece.kernel)(*piece.arguments(layer))

    return replay_us(layers, device, runs)


def copied(arguments: Any) -> Any:
    """Return the arguments with cloned tensors."""
    return _mapped(arguments, Tensor.clone)


def wide(arguments: Any) -> Any:
    """Return the arguments with half precision widened to float32."""
    return _mapped(
        arguments, lambda one: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one
    )


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(item, function) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, function) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: _mapped(getattr(value, field.name), function) for field in fields(value)}
        )
    return value
