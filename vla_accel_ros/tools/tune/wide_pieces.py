"""As pieces.py, for the stages with many rows: encode, prefill and staggered steps."""

from __future__ import annotations

import torch

from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.kernels.reference.linear import product_in_parts
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.tools.tune.pieces import LAYERS, Piece, drawing, replay_us


def prefix_attention(config: PiConfig, tokens: int, device: torch.device) -> Piece:
    """Return attention of a prefix of `tokens` tokens over itself, as prefill launches it: without split
    keys."""
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
    """Return the products of the image encoder for `views` images, with random numbers from a fixed seed."""
    v, rows, draw = config.vision, views * config.vision.tokens, drawing(device)

    def piece(name: str, columns: int, inner: int) -> Piece:
        a, bias, out, added = draw(rows, inner), draw(columns), draw(rows, columns), draw(rows, columns)
        weights = [draw(columns, inner, spread=inner**-0.5) for _ in range(LAYERS)]
        more = (out, added) if name.startswith("add_product") else (out,)
        return Piece(name, lambda i: (a, weights[i], bias, *more), (3,))

    return [
        piece("bias_product qkv", 3 * v.width, v.width),
        piece("add_product o", v.width, v.width),
        piece("gelu_product fc1", v.mlp, v.width),
        piece("add_product fc2", v.width, v.mlp),
    ]


@torch.inference_mode()
def down_us(config: PiConfig, tokens: int, parts: int, device: torch.device, ops: Ops) -> float:
    """Return microseconds of a prefix layer's last product with split-K factor `parts`, and of the norm after
    it."""
    g, bf16 = config.prefix, torch.bfloat16
    x, out = (torch.zeros(1, tokens, g.width, device=device, dtype=bf16) for _ in range(2))
    products, fed = (
        x.new_zeros(parts, 1, tokens, g.width),
        torch.randn(tokens, g.mlp, device=device, dtype=bf16),
    )
    weights = [torch.randn(g.width, g.mlp, device=device, dtype=bf16) for _ in range(LAYERS)]
    norm, slots = torch.randn(1, g.width, device=device), torch.zeros(1, dtype=torch.int32, device=device)

    def chain() -> None:
        for weight in weights:
            if parts == 1:
                x[0].addmm_(fed, weight.t())
                ops.rms_norm(x[0], norm[0], out[0])
            else:
                product_in_parts(fed, weight, products.flatten(1, 2))
                ops.add_norm(x, products, out, slots, None, norm)

    return replay_us(chain, device, 20)


def staggered_attention(config: PiConfig, keys: int, batch: int, device: torch.device) -> Piece:
    """Return attention of `batch` chunks in one step, each over a prefix of `keys` tokens."""
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
