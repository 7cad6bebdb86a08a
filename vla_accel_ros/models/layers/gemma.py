"""A Gemma decoder stack that can attend to keys and values computed elsewhere.

The same class is the prefix (images and language) and the action expert. The expert attends to the prefix's
keys and values layer by layer, and a condition may modulate its norms (adaRMS, pi0.5). Norms are float32
whatever the stack's dtype, and rotary tables are cast to it, as in openpi. Nothing is in place, so it trains.
Attention is written out because that rounds as the reference does: to the last bit in float32 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import GemmaConfig

ROPE_THETA = 10_000.0
NORM_EPS = 1e-6


class KV(NamedTuple):
    """Keys (rotary positions applied) and values of a sequence: [layers, B, kv_heads, T, head_dim] each."""

    k: Tensor
    v: Tensor

    @classmethod
    def of(cls, keys: list[Tensor], values: list[Tensor], out: KV | None = None) -> KV:
        """Stack the layers' own [B, kv_heads, T, head_dim], into `out` if it is given."""
        if out is None:
            return cls(torch.stack(keys), torch.stack(values))
        for index, (k, v) in enumerate(zip(keys, values, strict=True)):
            out.k[index].copy_(k)
            out.v[index].copy_(v)
        return out


class PerToken(NamedTuple):
    """A condition for each token: values, a few distinct ones [B, width] each; place int64 [T], the index for
    each token.

    Few, because committed actions share one flow time and all others another. Each value is modulated by
    itself, in the shape of a condition for all tokens, so that the bits are the same.
    """

    values: tuple[Tensor, ...]
    place: Tensor


Condition = Tensor | PerToken
"""What modulates a norm: [B, width] for all tokens, or one for each."""


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precisions, and float64 unchanged, so that a float64 model can measure rounding
    errors."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + weight); modulated: * (1 + scale) + shift. Returns (normed, gate or None)."""

    def __init__(self, width: int, modulated: bool) -> None:
        super().__init__()
        if modulated:
            self.dense = nn.Linear(width, 3 * width)
            nn.init.zeros_(self.dense.weight)
            nn.init.zeros_(self.dense.bias)
        else:
            self.weight = nn.Parameter(torch.zeros(width))
        self.modulated = modulated

    def forward(self, x: Tensor, condition: Condition | None = None) -> tuple[Tensor, Tensor | None]:
        wide = x.to(at_least_float32(x.dtype))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
        if not self.modulated or condition is None:
            return (normed * (1.0 + self.weight)).to(x.dtype), None
        scale, shift, gate = self._modulation(condition).chunk(3, dim=-1)
        return (normed * (1.0 + scale) + shift).to(x.dtype), gate.to(x.dtype)

    def _modulation(self, condition: Condition) -> Tensor:
        """Return scale, shift and gate, [B, 1 or T, 3 * width]."""
        if isinstance(condition, Tensor):
            return self.dense(condition).unsqueeze(1)
        return torch.stack([self.dense(value) for value in condition.values], dim=1)[:, condition.place]


def rotary_tables(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions [B, T] -> cos, sin [B, 1, T, head_dim], computed in float32."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[:, None, :, None].float() * (1.0 / ROPE_THETA**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the rotate-half layout. x [B, heads, T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of queries [B, heads, T, head_dim] over their own keys and values [B, kv_heads, T, head_dim] and
any others; returns [B, heads, T, head_dim]."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, past: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """Grouped-query attention over `past`, P keys and values in all, and the tokens' own.

    q [B, heads, T, head_dim]; k, v and each of past [B, kv_heads, T, head_dim]; mask bool [B, 1, T, P + T],
    True = may attend, None = all may. Returns [B, heads, T, head_dim].
    """
    groups = q.shape[1] // k.shape[1]
    keys = torch.cat([*(old_k.to(k.dtype) for old_k, _ in past), k], dim=2) if past else k
    values = torch.cat([*(old_v.to(v.dtype) for _, old_v in past), v], dim=2) if past else v
    scores = q @ _per_query(keys, groups).transpose(2, 3) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1, dtype=at_least_float32(scores.dtype)).to(values.dtype)
    return weights @ _per_query(values, groups)


def _per_query(x: Tensor, groups: int) -> Tensor:
    return x.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2)


class Attention(nn.Module):
    """Projections and rotary positions around a given attention function."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.width, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.width, bias=False)

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *tables), rotate(k, *tables)
        return self.o_proj(attend(q, k, v).transpose(1, 2).flatten(2)), k, v


class MLP(nn.Module):
    """GELU-gated feed-forward."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    """A pre-norm layer. With modulated norms its residual branches are gated."""

    def __init__(self, config: GemmaConfig, modulated: bool) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.width, config.mlp)
        self.input_layernorm = RMSNorm(config.width, modulated)
        self.post_attention_layernorm = RMSNorm(config.width, modulated)

    def forward(
        self,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        attend: Attend,
        condition: Condition | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        normed, gate = self.input_layernorm(x, condition)
        attended, k, v = self.self_attn(normed, tables, attend)
        x = x + (attended if gate is None else attended * gate)
        normed, gate = self.post_attention_layernorm(x, condition)
        fed = self.mlp(normed)
        return x + (fed if gate is None else fed * gate), k, v


class Gemma(nn.Module):
    """The stack and its final norm."""

    def __init__(self, config: GemmaConfig, modulated: bool, vocab: int | None = None) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        if vocab is not None:
            self.embed_tokens = nn.Embedding(vocab, config.width)
            nn.init.normal_(self.embed_tokens.weight, std=config.width**-0.5)
        self.layers = nn.ModuleList(Layer(config, modulated) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, modulated)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the residual stream, keys and values."""
        return next(self.layers[0].parameters()).dtype

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: Sequence[KV] = (),
        condition: Condition | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Run the stack.

        x [B, T, width]; positions int [B, T]; mask bool [B, T, P + T], True = may attend, None = all may.
        past: sequences before x, P tokens in all. condition: for modulated norms.
        Returns the hidden states after the final norm and, for each layer, the keys and values of x [B,
        kv_heads, T, head_dim].
        """
        return self.run(x, positions, one_sequence(mask, past), condition)

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Callable[[int], Attend],
        condition: Condition | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """As forward, with `attend(i)` as the attention of layer i, so that several requests can share one
        forward."""
        x = x.to(self.dtype)
        tables = rotary_tables(positions, self.head_dim, x.dtype)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            x, k, v = layer(x, tables, attend(index), condition)
            keys.append(k)
            values.append(v)
        return self.norm(x, condition)[0], keys, values


def one_sequence(mask: Tensor | None, past: Sequence[KV]) -> Callable[[int], Attend]:
    """Return each layer's attention for a batch of sequences with this past; see Gemma.forward."""
    mask = None if mask is None else mask.unsqueeze(1)
    return lambda layer: partial(attention, mask=mask, past=[(kv.k[layer], kv.v[layer]) for kv in past])
