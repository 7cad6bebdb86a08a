"""Each kernel of a denoising step by itself, at the shapes of the published models: its error and its time.

Error: against the twin in float32 on the same rounded inputs, by the norm of the difference. Time: as a
captured chain over as many different weights as the model has layers, which no cache holds, divided by their
number; so it includes the gap between dependent launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.kernels.linear import Norm, product_in_parts
from vla_accel_ros.kernels.ops import Ops, TritonOps
from vla_accel_ros.kernels.tuning import Table
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.quantized import Weight, quantized
from vla_accel_ros.tools.bench.roofline import H200, Op, denoise
from vla_accel_ros.tools.bench.timing import Body, times_ms

LAYERS = 18
NEAR = 1.2e-2
"""bfloat16 products are this near to float32 at most."""


class Piece(NamedTuple):
    """A kernel with its arguments: of layer i; results: which of the arguments it writes, by index.

    name: the kernel's in kernels.ops, and what it is for where there are two.
    """

    name: str
    arguments: Callable[[int], tuple[Any, ...]]
    results: tuple[int, ...]

    @property
    def kernel(self) -> str:
        """Its name in kernels.ops."""
        return self.name.split()[0]


def pieces(
    config: PiConfig,
    keys: int,
    device: torch.device,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    weights: str | None = None,
) -> list[Piece]:
    """The kernels of the action expert for a prefix of `keys` tokens, drawn from a seed.

    weights: the kind that matrices are quantised to, None = exact.
    """
    g, half_precision = config.expert, dtype
    generator = torch.Generator(device).manual_seed(0)
    pi0 = config.kind == "pi0"
    tokens, heads = config.horizon + pi0, g.heads * g.head_dim
    half = g.head_dim // 2

    def draw(*shape: int, dtype: torch.dtype = half_precision, spread: float = 1.0) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype).normal_(0.0, spread, generator=generator)

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
    angles = torch.rand(keys + tokens + 1, half, device=device, generator=generator) * 6
    cos, sin = angles.cos(), angles.sin()
    columns = heads + 2 * g.kv_heads * g.head_dim

    def matrices(rows: int, width: int) -> list[Weight]:
        made = [draw(rows, width, spread=width**-0.5) for _ in range(LAYERS)]
        return list(made) if weights is None else [quantized(matrix, weights) for matrix in made]

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


def prefix_attention(config: PiConfig, tokens: int, device: torch.device) -> Piece:
    """Attention of a prefix of so many tokens over itself, as prefill launches it: in one part."""
    g, bf16 = config.prefix, torch.bfloat16
    q = torch.randn(1, tokens, g.heads, g.head_dim, device=device, dtype=bf16)
    k, v = (
        torch.randn(1, LAYERS, g.kv_heads, tokens + 37, g.head_dim, device=device, dtype=bf16)
        for _ in range(2)
    )
    out = torch.zeros(1, tokens, g.heads * g.head_dim, device=device, dtype=bf16)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    lengths = torch.full_like(slots, tokens - 3)
    return Piece("attend", lambda i: (q, k[:, i], v[:, i], slots, lengths, out), (5,))


def encoder(config: PiConfig, views: int, device: torch.device) -> list[Piece]:
    """The products of the image encoder for so many views, drawn from a seed."""
    v, bf16, rows = config.vision, torch.bfloat16, views * config.vision.tokens
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, spread: float = 1.0) -> Tensor:
        return torch.empty(shape, device=device, dtype=bf16).normal_(0.0, spread, generator=generator)

    def piece(name: str, columns: int, inner: int) -> Piece:
        a, bias, out, left = draw(rows, inner), draw(columns), draw(rows, columns), draw(rows, columns)
        weights = [draw(columns, inner, spread=inner**-0.5) for _ in range(LAYERS)]
        more = (out, left) if name.startswith("add_product") else (out,)
        return Piece(name, lambda i: (a, weights[i], bias, *more), (3,))

    return [
        piece("bias_product qkv", 3 * v.width, v.width),
        piece("add_product o", v.width, v.width),
        piece("gelu_product fc1", v.mlp, v.width),
        piece("add_product fc2", v.width, v.mlp),
    ]


@torch.inference_mode()
def down_us(config: PiConfig, tokens: int, parts: int, device: torch.device, ops: Ops) -> float:
    """Microseconds of a prefix layer's last product, in so many parts, with the norm that comes after it."""
    g, bf16 = config.prefix, torch.bfloat16
    x, out = (torch.zeros(1, tokens, g.width, device=device, dtype=bf16) for _ in range(2))
    made, fed = x.new_zeros(parts, 1, tokens, g.width), torch.randn(tokens, g.mlp, device=device, dtype=bf16)
    weights = [torch.randn(g.width, g.mlp, device=device, dtype=bf16) for _ in range(LAYERS)]
    norm, at = torch.randn(1, g.width, device=device), torch.zeros(1, dtype=torch.int32, device=device)

    def chain() -> None:
        for weight in weights:
            if parts == 1:
                x[0].addmm_(fed, weight.t())
                ops.rms_norm(x[0], norm[0], out[0])
            else:
                product_in_parts(fed, weight, made.flatten(1, 2))
                ops.add_norm(x, made, out, at, None, norm)

    return float(np.median(times_ms(Body(chain, device).run, 20)) * 1e3 / LAYERS)


def staggered_attention(config: PiConfig, keys: int, batch: int, device: torch.device) -> Piece:
    """Attention of so many chunks in one step, each over a prefix of `keys` tokens."""
    g, bf16 = config.expert, torch.bfloat16
    tokens, columns = config.horizon + (config.kind == "pi0"), (g.heads + 2 * g.kv_heads) * g.head_dim
    y = torch.randn(batch, tokens, columns, device=device, dtype=bf16)
    k, v = (
        torch.randn(batch, LAYERS, g.kv_heads, keys + 37, g.head_dim, device=device, dtype=bf16)
        for _ in range(2)
    )
    angles = torch.rand(keys + tokens, g.head_dim // 2, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    q = torch.zeros(batch, tokens, g.heads, g.head_dim, device=device, dtype=bf16)
    k_tail = torch.zeros(batch, g.kv_heads, tokens, g.head_dim, device=device, dtype=bf16)
    out = torch.zeros(batch, tokens, g.heads * g.head_dim, device=device, dtype=bf16)
    slots = torch.arange(batch, dtype=torch.int32, device=device)
    lengths, alone = torch.full_like(slots, keys), int(config.kind == "pi0")
    return Piece(
        "attend_rotary",
        lambda i: (y, cos, sin, q, k_tail, k[:, i], v[:, i], slots, lengths, out, alone),
        (9,),
    )


@torch.inference_mode()
def errors(
    config: PiConfig,
    keys: int,
    device: torch.device,
    batch: int,
    ops: TritonOps,
    dtype: torch.dtype = torch.bfloat16,
    weights: str | None = None,
) -> Iterator[tuple[str, float]]:
    """Name and relative error of each kernel, whose twin has the same weights."""
    for piece in pieces(config, keys, device, batch, dtype, weights):
        yield piece.name, error(piece, ops)


def error(piece: Piece, ops: Ops) -> float:
    """Relative error of a kernel's results, which are poisoned before where they are not also inputs."""
    given = piece.arguments(3)
    ours = [_copy(value) for value in given]
    exact = [_wide(_copy(value)) for value in given]
    rows = ours[piece.results[0]].shape[0] * ours[piece.results[0]].shape[1]
    for index in piece.results:
        result = ours[index]
        if isinstance(result, Norm):
            result.squares.fill_(float("nan"))
            if result.scaled is not None:
                result.scaled.fill_(float("nan"))
        elif piece.kernel not in ("project", "read_out", "add_product"):  # they add to what is there
            result.fill_(float("nan"))
    left = getattr(ops, piece.kernel)(*ours)
    getattr(Ops, piece.kernel)(*exact)
    for rest in left or ():  # what the norm after it adds
        if rest is not None:
            ours[piece.results[0]].add_(rest)
    pairs = [
        pair
        for index in piece.results
        for pair in zip(_tensors(ours[index], rows), _tensors(exact[index], rows), strict=True)
    ]
    differences = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs]
    # A result that is not a number is as wrong as can be.
    return max(value if value == value else float("inf") for value in differences)


def _tensors(value: Any, rows: int) -> list[Tensor]:
    """What a kernel writes of an argument; of a norm's sums only the totals of its rows are defined."""
    if isinstance(value, Norm):
        return [value.squares.sum(0)[:rows], *([] if value.scaled is None else [value.scaled])]
    return [value]


@torch.inference_mode()
def times_us(
    config: PiConfig,
    keys: int,
    device: torch.device,
    table: Table | None = None,
    runs: int = 50,
    batch: int = 1,
) -> dict[str, float]:
    """Microseconds of each kernel, median of `runs` replays of a chain over all layers."""
    ops = TritonOps(device, table)
    return {
        piece.name: chain_us(getattr(ops, piece.kernel), piece, device, runs)
        for piece in pieces(config, keys, device, batch)
    }


def chain_us(launch: Callable[..., None], piece: Piece, device: torch.device, runs: int = 50) -> float:
    """Microseconds of one launch of a piece, of a captured chain over all layers."""

    def chain() -> None:
        for layer in range(LAYERS):
            launch(*piece.arguments(layer))

    body = Body(chain, device)
    return float(np.median(times_ms(body.run, runs)) * 1e3 / LAYERS)


@torch.inference_mode()
def layer_us(
    config: PiConfig, keys: int, device: torch.device, batch: int, ops: TritonOps, runs: int = 50
) -> float:
    """Microseconds of a layer's five launches, of a captured chain over all layers."""
    made = pieces(config, keys, device, batch)[:5]

    def chain() -> None:
        for layer in range(LAYERS):
            for piece in made:
                getattr(ops, piece.kernel)(*piece.arguments(layer))

    body = Body(chain, device)
    return float(np.median(times_ms(body.run, runs)) * 1e3 / LAYERS)


def predicted_us(config: PiConfig, views: int, prompt: int) -> dict[str, float]:
    """The roofline of one launch of each."""
    names = {
        "rotary_qkv": ("qkv",),
        "attend": ("attention",),
        "project o": ("o",),
        "gated_up": ("gate and up",),
        "project down": ("down",),
        "embed_actions": ("action in", "time mlp"),
        "read_out": ("action out",),
    }
    ops = {op.name: op for op in denoise(config, views, prompt, steps=1)}
    return {name: sum(_once(ops[part]) for part in parts if part in ops) for name, parts in names.items()}


def _once(op: Op) -> float:
    return op.us(H200) / op.count


def _copy(value: Any) -> Any:
    if isinstance(value, Norm):
        return Norm(*(_copy(part) for part in value))
    return value.clone() if isinstance(value, Tensor) else value


def _wide(value: Any) -> Any:
    if isinstance(value, Norm):
        return Norm(*(_wide(part) for part in value))
    half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if half else value
