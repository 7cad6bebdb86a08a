"""A CogAgent-sized model with random weights, as plain functions whose tensors stay in place.

It has the sizes of CogAgent-9B (GLM-4V-9B), as in Nova: the vision transformer has 63 layers of width 1792 on
80 x 80 patches of a 1120 px screen, and with its adapter (2 x 2 patches become a token, then a gated layer)
4.5 billion weights: the 8,595 MiB of Nova's table VI. The language model has 40 layers of width 4096 with 2
heads of keys and values, 9.4 billion weights with both embeddings. A prompt is 1,600 tokens of the screen and
100 of words: keys and values of about 70 MB, as in Nova. Class token, biases and learned positions are left
out, because they take hardly any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.models.config import GemmaConfig

EPS = 1e-5


@dataclass(frozen=True)
class VisionConfig:
    """image: pixels on a side. patch: of a patch."""

    width: int = 1792
    depth: int = 63
    mlp: int = 15360
    heads: int = 16
    image: int = 1120
    patch: int = 14

    @property
    def side(self) -> int:
        """Number of patches on a side."""
        return self.image // self.patch


GLM = GemmaConfig(width=4096, depth=40, mlp=13696, heads=32, kv_heads=2, head_dim=128)


@dataclass(frozen=True)
class AgentConfig:
    """words: tokens of a prompt beside the screen's. answer: most tokens of an answer."""

    vision: VisionConfig = field(default_factory=VisionConfig)
    language: GemmaConfig = field(default_factory=lambda: GLM)
    vocab: int = 151552
    words: int = 100
    answer: int = 80

    @property
    def screen(self) -> int:
        """Number of tokens of a screen image."""
        return (self.vision.side // 2) ** 2

    @property
    def prompt(self) -> int:
        return self.screen + self.words


TINY = AgentConfig(
    VisionConfig(width=16, depth=2, mlp=32, heads=2, image=56),
    GemmaConfig(width=32, depth=2, mlp=48, heads=4, kv_heads=2, head_dim=8),
    vocab=64,
    words=5,
    answer=12,
)
"""To try things on a CPU."""


@dataclass(frozen=True)
class _VisionLayer:
    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


class AgentModel:
    """Random weights in `dtype` on `device`. Attention and norms have no weights of notable size."""

    def __init__(self, config: AgentConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        generator = torch.Generator(device).manual_seed(seed)
        vision, language = config.vision, config.language

        def weight(out: int, into: int) -> Tensor:
            made = torch.empty(out, into, device=device, dtype=dtype)
            return made.normal_(0.0, into**-0.5, generator=generator)

        width = vision.width
        self.patches = weight(width, 3 * vision.patch**2)
        self.vision = [
            _VisionLayer(
                weight(3 * width, width),
                weight(width, width),
                weight(vision.mlp, width),
                weight(width, vision.mlp),
            )
            for _ in range(vision.depth)
        ]
        self.merge = weight(language.width, 4 * width)
        self.project = weight(language.width, language.width)
        self.adapter = weight(2 * language.mlp, language.width), weight(language.width, language.mlp)
        rows = (language.heads + 2 * language.kv_heads) * language.head_dim
        self.layers = [
            _Layer(
                weight(rows, language.width),
                weight(language.width, language.heads * language.head_dim),
                weight(2 * language.mlp, language.width),
                weight(language.width, language.mlp),
            )
            for _ in range(language.depth)
        ]
        self.embedding, self.head = (weight(config.vocab, language.width) for _ in range(2))
        half = torch.arange(0, language.head_dim, 2, device=device, dtype=torch.float32)
        self.frequencies = 10000.0 ** (-half / language.head_dim)

    def to(self, device: torch.device) -> AgentModel:
        """Return a copy on another device."""
        other = AgentModel(self.config, device, self.dtype)
        for mine, its in zip(self._tensors(), other._tensors(), strict=True):
            for one, copy in zip(mine, its, strict=True):
                copy.copy_(one)
        return other

    @property
    def weights(self) -> tuple[int, int]:
        """Number of weights in the encoder with its adapter, and in the language model."""
        encoder, language = self._tensors()
        return sum(map(torch.numel, encoder)), sum(map(torch.numel, language))

    def _tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors of the encoder with its adapter, and those of the language model."""
        encoder = [self.patches, self.merge, self.project, *self.adapter]
        encoder += [tensor for layer in self.vision for tensor in vars(layer).values()]
        language = [self.embedding, self.head]
        return encoder, language + [tensor for layer in self.layers for tensor in vars(layer).values()]

    def encode(self, pixels: Tensor) -> Tensor:
        """uint8 [image, image, 3] -> [screen tokens, language width]."""
        vision, side = self.config.vision, self.config.vision.side
        scaled = pixels.to(self.dtype) / 127.5 - 1.0
        patch, depth = vision.patch, vision.width // vision.heads
        cut = scaled.view(side, patch, side, patch, 3).permute(0, 2, 4, 1, 3).reshape(side * side, -1)
        hidden = F.linear(cut, self.patches)
        for layer in self.vision:
            parts = F.linear(hidden, layer.qkv).view(-1, 3, vision.heads, depth)
            query, key, value = parts.permute(1, 2, 0, 3)[:, None]
            seen = F.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1).flatten(1)
            hidden = hidden + _normed(F.linear(seen, layer.out))
            hidden = hidden + _normed(F.linear(F.gelu(F.linear(hidden, layer.up)), layer.down))
        half = side // 2
        four = hidden.view(half, 2, half, 2, -1).permute(0, 2, 1, 3, 4).reshape(half * half, -1)
        tokens = F.gelu(_normed(F.linear(F.linear(four, self.merge), self.project)))
        gate, up = F.linear(tokens, self.adapter[0]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.adapter[1])

    def forward(
        self,
        hidden: Tensor,
        slots: Tensor,
        positions: Tensor,
        pool: KVPool,
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Rows [n, width] through the language model, keys and values written to the pool.

        slots, positions: int64 [n], where in the pool each row is. attend: layer and q, k, v [n, heads,
        head_dim] of the rows -> [n, heads * head_dim].
        """
        sizes = self.config.language
        asks, keys = sizes.heads, sizes.kv_heads
        at = (slots[:, None], torch.arange(keys, device=slots.device)[None], positions[:, None])
        angles = positions[:, None, None].float() * self.frequencies
        cos, sin = (torch.cat([one, one], -1).to(self.dtype) for one in (angles.cos(), angles.sin()))
        for number, layer in enumerate(self.layers):
            rows = F.linear(_scaled(hidden), layer.qkv).view(len(hidden), -1, sizes.head_dim)
            turned, value = rows.split([asks + keys, keys], 1)
            query, key = _rotated(turned, cos, sin).split([asks, keys], 1)
            pool.k[:, number].index_put_(at, key)
            pool.v[:, number].index_put_(at, value)
            hidden = hidden + F.linear(attend(number, query, key, value), layer.out)
            gate, up = F.linear(_scaled(hidden), layer.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer.down)
        return _scaled(hidden)

    def next_token(self, hidden: Tensor) -> Tensor:
        """Return the most likely token: [n, width] -> int64 [n]."""
        return F.linear(hidden, self.head).argmax(-1)


def attend_whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of a whole prompt [n, heads, head_dim] -> [n, heads * head_dim]."""
    q, k, v = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return seen[0].transpose(0, 1).flatten(1)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """A row of each of n slots. query [n, heads, head_dim]; key, value [n, kv_heads, tokens, head_dim]; mask
    [n, tokens], added -> [n, heads * head_dim]. Heads that share keys are the rows of one attention."""
    rows = query.view(len(query), key.shape[1], -1, query.shape[-1])
    wide = mask[:, None, None].expand(-1, key.shape[1], rows.shape[2], -1)
    return F.scaled_dot_product_attention(rows, key, value, attn_mask=wide).reshape(len(query), -1)


def attend_chunk(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """n rows of one slot. query [n, heads, head_dim]; key, value [kv_heads, tokens, head_dim]; mask [n,
    tokens], added -> [n, heads * head_dim]."""
    count, shared = len(query), len(key)
    rows = query.view(count, shared, -1, query.shape[-1]).permute(1, 2, 0, 3)
    k, v = (part[:, None].expand(-1, rows.shape[1], -1, -1) for part in (key, value))
    seen = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask[None, None])
    return seen.permute(2, 0, 1, 3).reshape(count, -1)


def _normed(hidden: Tensor) -> Tensor:
    return F.layer_norm(hidden, hidden.shape[-1:], eps=EPS)


def _scaled(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], eps=EPS)


def _rotated(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = rows.chunk(2, -1)
    return torch.addcmul(rows * cos, torch.cat([-second, first], -1), sin)
