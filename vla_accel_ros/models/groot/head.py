"""The action head of GR00T: self-attention over the prefix, and a diffusion transformer that reads it.

Blocks attend by turns to the prefix, through keys and values that do not depend on the flow, and to the
state and the actions. State encoder, action encoder and action decoder have weights for every embodiment,
chosen by index, so that rows of one batch may be of different robots. Parameter names are the published ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.layers.dit import NORM_EPS, Block, Mixer, TimeEncoder, sinusoid
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.residual import residual_stream

OUT_EPS = 1e-6


class DiT(nn.Module):
    """The diffusion transformer; even blocks attend to the prefix."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        dit, widths = config.dit, (config.text.width, config.dit.width)
        self.timestep_encoder = TimeEncoder(dit.width)
        self.transformer_blocks = nn.ModuleList(Block(dit, widths[i % 2]) for i in range(dit.depth))
        self.proj_out_1 = nn.Linear(dit.width, 2 * dit.width)
        self.proj_out_2 = nn.Linear(dit.width, config.dit_out)

    def forward(
        self, x: Tensor, t: Tensor, keys: Tensor, values: Tensor, masks: tuple[Tensor | None, Tensor | None]
    ) -> Tensor:
        """x [B, n, width]; t [B]; keys, values [depth / 2, B, heads, T, head_dim]; masks bool [B, T]: of the
        tokens that the first and the second block of every two readers may read. Returns [B, n, dit_out]."""
        condition = F.silu(self.timestep_encoder(t))
        scales, shifts = self._modulations(condition)
        stream = residual_stream(x)
        for index, block in enumerate(self.transformer_blocks):
            reader = index // 2
            modulation = scales[:, index], shifts[:, index]
            if index % 2:
                block(stream, *modulation)
            else:
                kv = (part[reader].to(x.dtype).transpose(1, 2) for part in (keys, values))
                block(stream, *modulation, (*kv,), masks[reader % 2])
        shift, scale = self.proj_out_1(condition).chunk(2, dim=-1)
        return self.proj_out_2(stream.modulated(1 + scale, shift, OUT_EPS))

    def _modulations(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and shifts [B, depth, width] of all blocks, in one product."""
        blocks: list[Any] = [*self.transformer_blocks]
        tables = F.linear(condition, *fuse([block.norm1.linear for block in blocks]))
        scales, shifts = tables.unflatten(1, (len(blocks), 2, -1)).unbind(2)
        return 1 + scales, shifts


class PerEmbodiment(nn.Module):
    """A linear layer of every embodiment: `W` [embodiments, in, out], `b` [embodiments, out]."""

    def __init__(self, embodiments: int, width: int, out: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(embodiments, width, out) * 0.02)
        self.b = nn.Parameter(torch.zeros(embodiments, out))

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        """x [B, n, in]; embodiment int64 [B]."""
        return torch.baddbmm(self.b[embodiment][:, None], x, self.W[embodiment])


class EmbodimentMLP(nn.Module):
    """Two layers with ReLU: state encoder and action decoder."""

    def __init__(self, embodiments: int, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layer1 = PerEmbodiment(embodiments, width, hidden)
        self.layer2 = PerEmbodiment(embodiments, hidden, out)

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        return self.layer2(F.relu(self.layer1(x, embodiment)), embodiment)


class ActionEncoder(nn.Module):
    """Noisy actions [B, H, A] at flow times [B] in buckets -> [B, H, width]."""

    def __init__(self, embodiments: int, width: int, out: int) -> None:
        super().__init__()
        self.W1 = PerEmbodiment(embodiments, width, out)
        self.W2 = PerEmbodiment(embodiments, 2 * out, out)
        self.W3 = PerEmbodiment(embodiments, out, out)

    def forward(self, actions: Tensor, t: Tensor, embodiment: Tensor) -> Tensor:
        encoded = self.W1(actions, embodiment)
        half = encoded.shape[-1] // 2
        time = torch.cat(sinusoid(t, half, half), dim=-1).to(encoded.dtype)
        timed = torch.cat((encoded, time[:, None].expand_as(encoded)), dim=-1)
        return self.W3(F.silu(self.W2(timed, embodiment)), embodiment)


class ActionHead(nn.Module):
    """`action_head`"""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        width, count = config.dit.width, config.embodiments
        self.vlln = nn.LayerNorm(config.text.width, eps=NORM_EPS)
        self.vl_self_attention = Mixer(config.mixer)
        self.model = DiT(config)
        self.state_encoder = EmbodimentMLP(count, config.state_dim, config.hidden, width)
        self.action_encoder = ActionEncoder(count, config.action_dim, width)
        self.action_decoder = EmbodimentMLP(count, config.dit_out, config.hidden, config.action_dim)
        self.position_embedding = nn.Embedding(config.positions, width)
        if config.future:
            self.future_tokens = nn.Embedding(config.future, width)
