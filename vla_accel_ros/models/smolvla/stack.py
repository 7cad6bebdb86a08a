"""The two decoder stacks of SmolVLA: the language model's first layers, and the action expert beside them.

A layer attends to its own tokens and their past (`self`), or only to keys and values that were computed
elsewhere and that it projects again (`cross`). Both are Llama layers in form; as in lerobot, rotary positions
of base 10,000 and the scores are computed in float32 whatever the stack's dtype. Parameter names are those of
Hugging Face's LlamaModel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.layers.gemma import ROPE_THETA, at_least_float32
from vla_accel_ros.models.layers.llama import MLP, RMSNorm

Tables = tuple[Tensor, Tensor]
Pair = tuple[Tensor, Tensor]
"""Keys and values of one layer, [B, kv_heads, T, head_dim] each."""


def rotary_tables(positions: Tensor, head_dim: int) -> Tables:
    """positions int [B, T] -> cos, sin float32 [B, 1, T, head_dim / 2]."""
    half = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
    period = ROPE_THETA ** ((2.0 / head_dim) * half)
    angles = positions[:, None, :, None].float() / period
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tables: Tables) -> Tensor:
    """Rotary positions in the rotate-half layout, at least in float32. x [B, heads, T, head_dim]."""
    wide = x.to(at_least_float32(x.dtype))
    first, second = wide.chunk(2, dim=-1)
    cos, sin = (table.to(wide.dtype) for table in tables)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention. kv_width: input width of the key and value projections."""

    def __init__(self, config: LlamaConfig, kv_width: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.heads // config.kv_heads
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(kv_width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(kv_width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(
        self, x: Tensor, tables: Tables, mask: Tensor | None, past: Pair | None
    ) -> tuple[Tensor, Pair]:
        """Attend to x and past. Returns the result, and the keys and values of x alone."""
        q, k = rotate(self._heads(self.q_proj(x)), tables), rotate(self._heads(self.k_proj(x)), tables)
        v = self._heads(self.v_proj(x))
        keys, values = k, v
        if past is not None:
            keys = torch.cat((past[0].to(k.dtype), k), dim=2)
            values = torch.cat((past[1].to(v.dtype), v), dim=2)
        return self._attend(q, keys, values, mask), (k, v)

    def cross(self, x: Tensor, tables: Tables, mask: Tensor | None, past: Pair) -> Tensor:
        """Attend only to projections of past; x is at the positions of `tables`."""
        q = rotate(self._heads(self.q_proj(x)), tables)
        keys, values = (
            self._heads(proj(old.to(x.dtype).transpose(1, 2).flatten(2)))
            for proj, old in zip((self.k_proj, self.v_proj), past, strict=True)
        )
        return self._attend(q, keys, values, mask)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        wide = at_least_float32(q.dtype)
        scores = q.to(wide) @ self._per_query(keys).to(wide).transpose(2, 3) * self.head_dim**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1).to(values.dtype)
        return self.o_proj((weights @ self._per_query(values)).transpose(1, 2).flatten(2))

    def _per_query(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2).expand(-1, -1, self.groups, -1, -1).flatten(1, 2)


class Layer(nn.Module):
    """A pre-norm layer. cross: it attends only to the other stack's keys and values."""

    def __init__(self, config: LlamaConfig, cross: bool = False) -> None:
        super().__init__()
        self.is_cross = cross
        self.self_attn = Attention(config, config.kv_heads * config.head_dim if cross else config.width)
        self.mlp = MLP(config.width, config.mlp)
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self, x: Tensor, tables: Tables, mask: Tensor | None, past: Pair | None = None
    ) -> tuple[Tensor, Pair]:
        """Return the new x, and its keys and values (for a cross layer, those it was given).

        x may be wider than the layer's dtype, as embeddings with a float32 part are; the result has the
        layer's dtype.
        """
        dtype = self.mlp.down_proj.weight.dtype
        normed = self.input_layernorm(x).to(dtype)
        if self.is_cross:
            assert past is not None, "a cross layer has nothing of its own to attend to"
            attended, kv = self.self_attn.cross(normed, tables, mask, past), past
        else:
            attended, kv = self.self_attn(normed, tables, mask, past)
        x = (attended + x).to(dtype)
        return x + self.mlp(self.post_attention_layernorm(x)), kv


class Stack(nn.Module):
    """Layers and their final norm. vocab: rows of the token embedding, None without one."""

    def __init__(self, config: LlamaConfig, cross: Sequence[bool], vocab: int | None = None) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        if vocab is not None:
            self.embed_tokens = nn.Embedding(vocab, config.width)
            nn.init.normal_(self.embed_tokens.weight, std=config.width**-0.5)
        self.layers = nn.ModuleList(Layer(config, is_cross) for is_cross in cross)
        self.norm = RMSNorm(config.width, config.norm_eps)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the residual stream, keys and values."""
        return self.norm.weight.dtype
