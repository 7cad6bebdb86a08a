"""Blocks of a diffusion transformer, as diffusers writes them: plain ones, and ones that the flow time
modulates.

Attention is full and has biases; a block attends to itself, or to keys and values that were computed before.
Norms of modulated blocks have no weights of their own. Parameter names are diffusers'.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import BlocksConfig
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.residual import ResidualStream, attention, product, residual_stream

NORM_EPS = 1e-5
PERIOD = 10_000.0
TIME_WIDTH = 256


def sinusoid(t: Tensor, half: int, last: int, period: float = PERIOD) -> tuple[Tensor, Tensor]:
    """sin, cos float32 [..., half] of t * period^(-i / last). The exponent is computed as the references do:
    arguments reach 1000 rad, so that its last bit shows."""
    exponent = -math.log(period) * torch.arange(half, dtype=torch.float32, device=t.device) / last
    angles = t.float()[..., None] * exponent.exp()
    return angles.sin(), angles.cos()


class Attention(nn.Module):
    """Full attention with biases. kv_width: input width of keys and values."""

    def __init__(self, config: BlocksConfig, kv_width: int) -> None:
        super().__init__()
        self.heads, inner = config.heads, config.heads * config.head_dim
        self.to_q = nn.Linear(config.width, inner)
        self.to_k = nn.Linear(kv_width, inner)
        self.to_v = nn.Linear(kv_width, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, config.width)])

    @property
    def out(self) -> nn.Linear:
        """The last product."""
        linear = self.to_out[0]
        assert isinstance(linear, nn.Linear)
        return linear

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """Returns what goes into `out`. kv [B, n, heads, head_dim] each; mask bool [B, n]: True = may be
        attended to."""
        return attention(self._heads(product(x, self.to_q.weight, self.to_q.bias)), *kv, mask)

    def among(self, x: Tensor) -> Tensor:
        """The same of x that attends to itself; query, key and value are one product."""
        weight, bias = fuse([self.to_q, self.to_k, self.to_v])
        q, k, v = map(self._heads, product(x, weight, bias).chunk(3, dim=-1))
        return attention(q, k, v)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


class FeedForward(nn.Module):
    """Two layers with the tanh GELU; `net.1` is the dropout of training."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self._layers = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.net = nn.Sequential(Holder(proj=self._layers[0]), nn.Identity(), self._layers[1])

    def forward(self, stream: ResidualStream, rows: Tensor) -> None:
        """Add to the stream what it makes of rows."""
        first, second = self._layers
        stream.mlp(rows, first, second)


class Mixing(nn.Module):
    """A block of the prefix's own self-attention, without mask and positions."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.norm3 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn1 = Attention(config, config.width)
        self.ff = FeedForward(config.width, config.mlp)

    def forward(self, stream: ResidualStream) -> None:
        first, second = self.norm1, self.norm3
        rows = stream.norm(first.weight, first.bias, NORM_EPS)
        stream.add(self.attn1.among(rows), self.attn1.out)
        self.ff(stream, stream.norm(second.weight, second.bias, NORM_EPS))


class Mixer(nn.Module):
    """`vl_self_attention`"""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(Mixing(config) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        stream = residual_stream(x)
        for block in self.transformer_blocks:
            block(stream)
        return stream.end()


class Block(nn.Module):
    """A block of the diffusion transformer. kv_width: that of the prefix, or the block's own."""

    def __init__(self, config: BlocksConfig, kv_width: int) -> None:
        super().__init__()
        self.norm1 = Holder(linear=nn.Linear(config.width, 2 * config.width))  # scale and shift, of the time
        self.attn1 = Attention(config, kv_width)
        self.ff = FeedForward(config.width, config.mlp)

    def forward(
        self,
        stream: ResidualStream,
        scale: Tensor,
        shift: Tensor,
        kv: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """scale, shift: of its norm [B, width]. kv: of the prefix; None = rows attend to each other."""
        rows = stream.modulated(scale, shift, NORM_EPS)
        attended = self.attn1.among(rows) if kv is None else self.attn1(rows, kv, mask)
        stream.add(attended, self.attn1.out)
        self.ff(stream, stream.norm(None, None, NORM_EPS))


class TimeMLP(nn.Module):
    """`timestep_embedder`"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(TIME_WIDTH, width)
        self.linear_2 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class TimeEncoder(nn.Module):
    """Flow times [B] in buckets -> [B, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TimeMLP(width)

    def forward(self, t: Tensor) -> Tensor:
        sin, cos = sinusoid(t, TIME_WIDTH // 2, TIME_WIDTH // 2 - 1)
        return self.timestep_embedder(
            torch.cat((cos, sin), dim=-1).to(self.timestep_embedder.linear_1.weight.dtype)
        )
