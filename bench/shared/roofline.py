"""The least time of a stage: for each product the larger of its memory time and its arithmetic time.

Memory time counts weights, keys and values, read once; activations are small and stay in L2. A step's weights
do not (0.6 GB for the action expert), so each step reads them again. The ceilings are measured ones instead
of a datasheet's: what a copy and a large matrix product reach on that device.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_accel_ros.models.config import GemmaConfig, PiConfig


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second from memory, and bfloat16 operations a second."""

    bandwidth: float
    arithmetic: float


H200 = Ceilings(bandwidth=4.28e12, arithmetic=710e12)
"""Measured: a copy moves 4.28 TB/s; products of 8192^3 run at 671 to 790 TFLOP/s."""


@dataclass(frozen=True)
class Op:
    """`count` products (or attentions) that move so many bytes and make so many operations each."""

    name: str
    count: int
    bytes: float
    flops: float

    def us(self, ceilings: Ceilings) -> float:
        """All of them, in microseconds."""
        return self.count * 1e6 * max(self.bytes / ceilings.bandwidth, self.flops / ceilings.arithmetic)


def product(name: str, count: int, rows: int, columns: int, inner: int, itemsize: int = 2) -> Op:
    """rows x inner times inner x columns, whose second factor is read from memory."""
    return Op(name, count, itemsize * columns * inner, 2.0 * rows * columns * inner)


def attention(
    name: str, count: int, rows: int, keys: int, heads: int, kv_heads: int, head: int, itemsize: int = 2
) -> Op:
    """Scores and weighted values of rows tokens; keys and values are read once."""
    return Op(name, count, 2.0 * itemsize * keys * kv_heads * head, 4.0 * rows * keys * heads * head)


def encode(config: PiConfig, views: int) -> list[Op]:
    """The image encoder and the projection to the prefix's width."""
    v, rows = config.vision, views * config.vision.tokens
    return [
        product("patches", 1, rows, v.width, 3 * v.patch**2, itemsize=4),
        product("qkv", v.depth, rows, 3 * v.width, v.width),
        attention("attention", v.depth, rows, v.tokens, v.heads, views * v.heads, v.width // v.heads),
        product("o", v.depth, rows, v.width, v.width),
        product("fc1", v.depth, rows, v.mlp, v.width),
        product("fc2", v.depth, rows, v.width, v.mlp),
        product("projector", 1, rows, config.prefix.width, v.width),
    ]


def prefill(config: PiConfig, views: int, prompt: int) -> list[Op]:
    """The prefix stack, of whose last layer only keys and values are computed."""
    g, rows = config.prefix, views * config.vision.tokens + prompt
    last = product("last k, v", 1, rows, 2 * g.kv_heads * g.head_dim, g.width)
    return [*_layers(g, g.depth - 1, rows, rows), last]


def denoise(config: PiConfig, views: int, prompt: int, steps: int, batch: int = 1) -> list[Op]:
    """All steps of the flow for `batch` chunks, and what is before and after the expert in each."""
    g, pi0 = config.expert, config.kind == "pi0"
    tokens = config.horizon + pi0
    keys = views * config.vision.tokens + prompt + tokens
    ends = [
        product("action in", steps, batch * tokens, g.width, config.action_dim, itemsize=4),
        product("action out", steps, batch * tokens, config.action_dim, g.width, itemsize=4),
    ]
    if pi0:
        ends.insert(1, product("time mlp", steps, batch * tokens, g.width, g.width))
    return [*_layers(g, steps * g.depth, batch * tokens, keys, batch), *ends]


def _layers(g: GemmaConfig, count: int, rows: int, keys: int, batch: int = 1) -> list[Op]:
    heads, kv = g.heads * g.head_dim, 2 * g.kv_heads * g.head_dim
    over = attention("attention", count, rows // batch, keys, g.heads, g.kv_heads, g.head_dim)
    return [
        product("qkv", count, rows, heads + kv, g.width),
        Op(over.name, count, batch * over.bytes, batch * over.flops),
        product("o", count, rows, g.width, heads),
        product("gate and up", count, rows, 2 * g.mlp, g.width),
        product("down", count, rows, g.width, g.mlp),
    ]


def stages(
    config: PiConfig, views: int, prompt: int = 20, steps: int = 10, ceilings: Ceilings = H200
) -> dict[str, float]:
    """Milliseconds of encode, prefill, denoise and all of them."""
    parts = {
        "encode": encode(config, views),
        "prefill": prefill(config, views, prompt),
        "denoise": denoise(config, views, prompt, steps),
    }
    times = {name: sum(op.us(ceilings) for op in ops) / 1e3 for name, ops in parts.items()}
    return {**times, "total": sum(times.values())}


def kernels_us(config: PiConfig, views: int, prompt: int) -> dict[str, float]:
    """Microseconds of one launch of each kernel of a denoising step, named as tools.tune.pieces does."""
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
