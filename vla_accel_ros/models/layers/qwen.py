"""A Qwen3 decoder, causal, or the first layers of one.

Queries and keys are normalised head by head before the rotary positions. Those are of one dimension,
or of time, row and column, whose frequencies interleave (Qwen3-VL). Parameter names are Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.layers import llama
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import rotate
from vla_accel_ros.models.layers.residual import gated, rotated

Tables = tuple[Tensor, Tensor]


def rotary_tables(positions: Tensor, head_dim: int, theta: float, sections: Sequence[int]) -> Tables:
    """positions int [B, T], or [3, B, T] with sections -> cos, sin float32 [B, 1, T, head_dim]."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    if sections:
        mixed = angles[0].clone()
        for axis in (1, 2):
            places = slice(axis, 3 * sections[axis], 3)
            mixed[..., places] = angles[axis][..., places]
        angles = mixed
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


class RMSNorm(llama.RMSNorm):
    """The same in one launch; half precisions are rounded once, after the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class MLP(llama.MLP):
    """The same with gate and up as one product."""

    def forward(self, x: Tensor) -> Tensor:
        weight, _ = fuse([self.gate_proj, self.up_proj])
        return self.down_proj(gated(F.linear(x, weight)))


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim, self.heads = config.head_dim, config.heads
        self.groups = config.heads // config.kv_heads
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        weight, _ = fuse([self.q_proj, self.k_proj, self.v_proj])
        heads, (cos, sin) = F.linear(x, weight).unflatten(-1, (-1, self.head_dim)), tables
        queries, keys = self.heads, self.heads // self.groups
        norms, eps = (self.q_norm.weight, self.k_norm.weight), self.q_norm.eps
        qk = rotated(heads[:, :, :-keys], queries, cos[0, 0], sin[0, 0], norms=norms, eps=eps)
        if qk is None or len(cos) > 1:
            parts = self.q_norm(heads[:, :, :queries]), self.k_norm(heads[:, :, queries:-keys])
            turned = rotate(torch.cat(parts, dim=2).transpose(1, 2), *tables).transpose(1, 2)
            qk = turned[:, :, :queries], turned[:, :, queries:]
        q, k, v = (part.transpose(1, 2) for part in (*qk, heads[:, :, -keys:]))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A pre-norm layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.width, config.mlp)
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(self, x: Tensor, tables: Tables) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen(nn.Module):
    """The token embedding and the kept layers. normed: whether the result is after the final norm."""

    def __init__(
        self, config: LlamaConfig, vocab: int, theta: float, sections: Sequence[int], normed: bool
    ) -> None:
        super().__init__()
        self.head_dim, self.theta, self.sections = config.head_dim, theta, sections
        self.embed_tokens = nn.Embedding(vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.norm_eps) if normed else nn.Identity()

    def forward(self, x: Tensor, positions: Tensor, added: Tensor | None = None) -> Tensor:
        """x [B, T, W]; positions: see rotary_tables; added [n, B, T, W]: added after each of the first n
        layers, but not to the features. Returns features [B, T, W]."""
        cos, sin = rotary_tables(positions, self.head_dim, self.theta, self.sections)
        tables = cos.to(x.dtype), sin.to(x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, tables)
            if added is not None and index < min(len(added), len(self.layers) - 1):
                x = x + added[index]
        return self.norm(x)
