"""Blocks of both diffusion transformers: attention to itself and to a context, and an MLP, each modulated.

Each branch is x + gate * f(LN(x) (1 + scale) + shift). Shift, scale and gate come from a vector e of the time
through two small matrices, plus a share that all blocks have (`shared`); `modulations` computes those of all
blocks at once. Nothing has a bias, queries and keys are normalised per head, norms of rows have no weights.
Parameter names are the authors'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import rotate
from vla_accel_ros.models.layers.qwen import RMSNorm
from vla_accel_ros.models.layers.residual import ResidualStream, attention, product, rotated
from vla_accel_ros.models.mimic_video.config import DiTConfig

EPS = 1e-6
SELF, CROSS, MLP = "self_attn", "cross_attn", "mlp"

KeysValues = tuple[Tensor, Tensor]
"""[B, n, heads, head_dim] each"""
Tables = tuple[Tensor, Tensor]
"""Cosines and sines of the positions [n, head_dim]."""


class Time(NamedTuple):
    """What blocks know of the time of each row, or frame: e [B, f, W], and what their modulations share
    [B, f, 3 W]."""

    e: Tensor
    shared: Tensor


class Attention(nn.Module):
    """Full attention. context: width of what keys and values are made of."""

    def __init__(self, config: DiTConfig, context: int) -> None:
        super().__init__()
        self._heads, inner = config.heads, config.heads * config.head_dim
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.k_proj = nn.Linear(context, inner, bias=False)
        self.v_proj = nn.Linear(context, inner, bias=False)
        self.output_proj = nn.Linear(inner, config.width, bias=False)
        self.q_norm, self.k_norm = RMSNorm(config.head_dim, EPS), RMSNorm(config.head_dim, EPS)

    def kv(self, context: Tensor) -> KeysValues:
        """context [B, n, C]"""
        keys, values = (self._split(product(context, proj.weight)) for proj in (self.k_proj, self.v_proj))
        return self._normed(keys, (self.k_norm, self.k_norm), self._heads)[0], values

    def to_context(self, x: Tensor, kv: KeysValues) -> Tensor:
        """x [B, n, W] -> what goes into `output_proj`."""
        queries = self._split(product(x, self.q_proj.weight))
        return attention(self._normed(queries, (self.q_norm, self.q_norm), self._heads)[0], *kv)

    def among(self, x: Tensor, tables: Tables | None) -> Tensor:
        """x [B, n, W] -> what goes into `output_proj`. tables: of the rows, None = they have no places."""
        ours = self._split(product(x, fuse([self.q_proj, self.k_proj, self.v_proj])[0]))
        q, k = self._normed(ours[:, :, : 2 * self._heads], (self.q_norm, self.k_norm), self._heads, tables)
        return attention(q, k, ours[:, :, 2 * self._heads :])

    def _normed(
        self, x: Tensor, norms: tuple[RMSNorm, RMSNorm], queries: int, tables: Tables | None = None
    ) -> tuple[Tensor, Tensor]:
        """The first `queries` heads of x [B, n, heads, head_dim], and the others."""
        first, second = norms
        weights, turn = (first.weight, second.weight), tables or (None, None)
        if (normed := rotated(x, queries, *turn, norms=weights, eps=EPS)) is not None:
            return normed
        q, k = first(x[:, :, :queries]), second(x[:, :, queries:])
        if tables is None:
            return q, k
        q, k = (rotate(part.transpose(1, 2), *tables).transpose(1, 2) for part in (q, k))
        return q, k

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.q_norm.weight.shape[0]))


def _modulation(config: DiTConfig, parts: int) -> nn.Sequential:
    inner = nn.Linear(config.width, config.rank, bias=False)
    return nn.Sequential(nn.SiLU(), inner, nn.Linear(config.rank, parts * config.width, bias=False))


def modulations(blocks: Sequence[Block], time: Time) -> list[Tensor]:
    """Of each block, for its branches: [branches, B, f, 3 W], shifts, 1 + scales and gates."""
    stacks = [stack for block in blocks for stack in block.modulations]
    inner = F.linear(F.silu(time.e), fuse([cast(nn.Linear, stack[1]) for stack in stacks])[0])
    rows = inner.unflatten(-1, (len(stacks), -1)).flatten(0, 1).transpose(0, 1)
    outer = fuse([cast(nn.Linear, stack[2]) for stack in stacks])[0].unflatten(0, (len(stacks), -1))
    values = (rows @ outer.mT).unflatten(1, time.e.shape[:2]) + time.shared
    width = time.e.shape[-1]
    values[..., width : 2 * width].add_(1)
    return list(values.split([len(block.modulations) for block in blocks]))


class Block(nn.Module):
    """One block. order: of its branches."""

    def __init__(self, config: DiTConfig, order: Sequence[str]) -> None:
        super().__init__()
        self._order = order
        self.self_attn, self.cross_attn = Attention(config, config.width), Attention(config, config.context)
        layer1 = nn.Linear(config.width, config.mlp, bias=False)
        layer2 = nn.Linear(config.mlp, config.width, bias=False)
        self.mlp = nn.ModuleDict({"layer1": layer1, "layer2": layer2})
        for name in order:
            self.add_module(f"adaln_modulation_{name}", _modulation(config, 3))

    @property
    def modulations(self) -> list[nn.Sequential]:
        """Of its branches."""
        return [getattr(self, f"adaln_modulation_{name}") for name in self._order]

    def forward(
        self, stream: ResidualStream, by: Tensor, context: KeysValues, tables: Tables | None = None
    ) -> None:
        """by: see modulations. context: of cross_attn. tables: of self_attn."""
        for name, values in zip(self._order, by, strict=True):
            shift, scale, gate = values.chunk(3, dim=-1)
            rows = stream.modulated(scale, shift, EPS)
            if name == CROSS:
                stream.add(self.cross_attn.to_context(rows, context), self.cross_attn.output_proj, gate)
            elif name == SELF:
                stream.add(self.self_attn.among(rows, tables), self.self_attn.output_proj, gate)
            else:
                first, second = (cast(nn.Linear, self.mlp[name]) for name in ("layer1", "layer2"))
                stream.add(F.gelu(product(rows, first.weight)), second, gate)


class Final(nn.Module):
    """`final_layer`"""

    def __init__(self, config: DiTConfig, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, outer, bias=False)
        self.adaln_modulation = _modulation(config, 2)

    def forward(self, stream: ResidualStream, time: Time) -> Tensor:
        values = self.adaln_modulation(time.e)
        shift, scale = (values + time.shared[..., : values.shape[-1]]).chunk(2, dim=-1)
        return self.linear(stream.modulated(1 + scale, shift, EPS))
