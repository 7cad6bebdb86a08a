"""Blocks of both diffusion transformers: attention to itself and to a context, and an MLP, each modulated.

Each branch is x + gate * f(LN(x) (1 + scale) + shift). Shift, scale and gate come from a vector e of the time
through two small matrices, plus a share that all blocks have (`shared`). Nothing has a bias, queries and keys
are normalised per head, norms of rows have no weights. Parameter names are the authors'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.gemma import at_least_float32, rotate
from vla_accel_ros.models.layers.qwen import RMSNorm
from vla_accel_ros.models.mimic_video.config import DiTConfig

EPS = 1e-6
SELF, CROSS, MLP = "self_attn", "cross_attn", "mlp"

KeysValues = tuple[Tensor, Tensor]
Tables = tuple[Tensor, Tensor]
"""[B, heads, n, head_dim] each; cosines and sines of the positions [n, head_dim]."""


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

    def kv(self, context: Tensor, tables: Tables | None = None) -> KeysValues:
        """context [B, n, C]"""
        k, v = self.k_norm(self._split(self.k_proj(context))), self._split(self.v_proj(context))
        return (k if tables is None else rotate(k, *tables)), v

    def forward(self, x: Tensor, kv: KeysValues, tables: Tables | None = None, empty: int = 0) -> Tensor:
        """x [B, n, W]. empty: further rows of the context that are 0: they have weight, but no value."""
        q = self.q_norm(self._split(self.q_proj(x)))
        q = q if tables is None else rotate(q, *tables)
        attended = _beside_empty(q, *kv, empty) if empty else F.scaled_dot_product_attention(q, *kv)
        return self.output_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self._heads, -1)).transpose(1, 2)


def _beside_empty(q: Tensor, k: Tensor, v: Tensor, empty: int) -> Tensor:
    """Attention where `empty` more keys have a score of 0 and no value; a log of their number stands for
    them."""
    wide = at_least_float32(q.dtype)
    scores = q.to(wide) @ k.to(wide).mT * q.shape[-1] ** -0.5
    empties = scores.new_full((*scores.shape[:-1], 1), _log(empty))
    weights = torch.cat((scores, empties), dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ v.to(wide)).to(q.dtype)


@cache
def _log(count: int) -> float:
    """In float32."""
    return torch.tensor(float(count), device="cpu").log().item()


def _modulation(config: DiTConfig, parts: int) -> nn.Sequential:
    inner = nn.Linear(config.width, config.rank, bias=False)
    return nn.Sequential(nn.SiLU(), inner, nn.Linear(config.rank, parts * config.width, bias=False))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x [B, n, W]; shift, scale [B, f, W], of n / f rows each."""
    rows = F.layer_norm(x, x.shape[-1:], eps=EPS).unflatten(1, (shift.shape[1], -1))
    return (rows * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)


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

    def forward(
        self, x: Tensor, time: Time, context: KeysValues, tables: Tables | None = None, empty: int = 0
    ) -> Tensor:
        """x [B, n, W]. context: of cross_attn; empty: see Attention. tables: of self_attn."""
        for name in self._order:
            values = self.get_submodule(f"adaln_modulation_{name}")(time.e) + time.shared
            shift, scale, gate = values.chunk(3, dim=-1)
            rows = _modulated(x, shift, scale)
            if name == CROSS:
                branch = self.cross_attn(rows, context, empty=empty)
            elif name == SELF:
                branch = self.self_attn(rows, self.self_attn.kv(rows, tables), tables)
            else:
                branch = self.mlp["layer2"](F.gelu(self.mlp["layer1"](rows)))
            x = x + (gate[:, :, None] * branch.unflatten(1, (gate.shape[1], -1))).flatten(1, 2)
        return x


class Final(nn.Module):
    """`final_layer`"""

    def __init__(self, config: DiTConfig, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, outer, bias=False)
        self.adaln_modulation = _modulation(config, 2)

    def forward(self, x: Tensor, time: Time) -> Tensor:
        values = self.adaln_modulation(time.e)
        shift, scale = (values + time.shared[..., : values.shape[-1]]).chunk(2, dim=-1)
        return self.linear(_modulated(x, shift, scale))
