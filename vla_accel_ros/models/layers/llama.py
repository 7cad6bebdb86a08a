"""A Llama-2 decoder stack that can attend to keys and values computed elsewhere.

Attention and rotary positions are the Gemma stack's; the norm, the gate (SiLU) and the residual branches are
Llama's. The norm is computed in float32, cast, and multiplied by its weight in the stack's dtype, as Hugging
Face does: bfloat16 results depend on that order. Parameter names are those of Hugging Face's LlamaModel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import LlamaConfig
from vla_accel_ros.models.layers import gemma
from vla_accel_ros.models.layers.gemma import (
    KV,
    Attend,
    Attention,
    at_least_float32,
    one_sequence,
    rotary_tables,
)


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class MLP(gemma.MLP):
    """SiLU-gated feed-forward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A pre-norm layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.width, config.mlp)
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self,
        x: Tensor,
        tables: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> tuple[Tensor, Tensor, Tensor]:
        attended, k, v = self.self_attn(self.input_layernorm(x), tables, attend)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), k, v


class Llama(nn.Module):
    """The token embedding, the stack and its final norm."""

    def __init__(self, config: LlamaConfig, vocab: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.embed_tokens = nn.Embedding(vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.norm_eps)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the residual stream, keys and values."""
        return self.embed_tokens.weight.dtype

    def forward(
        self, x: Tensor, positions: Tensor, mask: Tensor | None = None, past: Sequence[KV] = ()
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Run the stack; only the mask makes it causal.

        x [B, T, width]; positions int [B, T]; mask bool [B, T, P + T], True = may attend, None = all may.
        past: sequences before x, P tokens in all.
        Returns the hidden states after the final norm and, for each layer, the keys and values of x [B,
        kv_heads, T, head_dim].
        """
        return self.run(x, positions, one_sequence(mask, past))

    def run(
        self, x: Tensor, positions: Tensor, attend: Callable[[int], Attend], condition: None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """As forward, with `attend(i)` as the attention of layer i, so that several requests can share one
        forward."""
        x = x.to(self.dtype)
        tables = rotary_tables(positions, self.head_dim, x.dtype)
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            x, k, v = layer(x, tables, attend(index))
            keys.append(k)
            values.append(v)
        return self.norm(x), keys, values
