"""The action decoder, and all four networks of a mimic-video as one.

The decoder's rows are the state and the noisy actions. They read the video network's features by keys and
values, which are computed once for a chunk. Two times, of the actions and of the video, make the modulations
of its blocks. Their sinusoids are rounded to bfloat16, as in the training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.qwen import RMSNorm
from vla_accel_ros.models.layers.residual import residual_stream
from vla_accel_ros.models.mimic_video.blocks import (
    CROSS,
    EPS,
    MLP,
    SELF,
    Block,
    Final,
    KeysValues,
    Time,
    modulations,
)
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.mimic_video.vae import VAE
from vla_accel_ros.models.mimic_video.video import VideoNetwork
from vla_accel_ros.models.network import Network
from vla_accel_ros.models.text.t5 import T5Encoder

SHORTEST, LONGEST = 4e-3, 4.0
"""Periods of the sinusoids of a time."""
STATE_TIME = 1e-3
"""Time of the state's row."""


def sinusoid(t: Tensor, width: int) -> Tensor:
    """t float [...] -> sines and cosines bfloat16 [..., width], of float64 arguments."""
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=t.device)
    angles = t.double()[..., None] * (math.tau / (SHORTEST * (LONGEST / SHORTEST) ** share))
    return torch.cat((angles.sin(), angles.cos()), dim=-1).bfloat16()


def embedder(*widths: int) -> nn.ModuleDict:
    """`obs_embedder` and `action_embedder`"""
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.GELU())]
    return nn.ModuleDict({"layers": nn.Sequential(*layers[:-1])})


class Pair(nn.Module):
    """`t_embedder.pair`: two times as a product of two vectors, without that of their biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj_x, self.proj_c, self.B, self.C = (nn.Linear(width, width) for _ in range(4))
        self.A = nn.Linear(width, 3 * width, bias=False)

    def forward(self, t: Tensor, video: Tensor) -> Tensor:
        first, second = self.B(F.silu(self.proj_x(t))), self.C(F.silu(self.proj_c(video)))
        return first * second - self.B.bias * self.C.bias


class Decoder(nn.Module):
    """The action decoder."""

    def __init__(self, config: MimicVideoConfig) -> None:
        super().__init__()
        decoder = config.decoder
        self._width = decoder.width
        self.obs_embedder = embedder(config.state_dim, *config.state_hidden, decoder.width)
        self.action_embedder = embedder(config.action_dim, *config.action_hidden, decoder.width)
        self.pos_embedding = nn.Parameter(torch.zeros(1, 1 + config.horizon, decoder.width))
        self.ctx_norm = nn.LayerNorm(decoder.context, eps=EPS)
        self.t_embedder = nn.ModuleDict({"pair": Pair(decoder.width)})
        self.t_embedding_norm = RMSNorm(decoder.width, EPS)
        self.blocks = nn.ModuleList(Block(decoder, (CROSS, SELF, MLP)) for _ in range(decoder.depth))
        self.final_layer = Final(decoder, config.action_dim)

    def context(self, features: Tensor) -> list[KeysValues]:
        """features [rows, W] -> keys and values of each block."""
        normed = self.ctx_norm(features)[None]
        return [block.cross_attn.kv(normed) for block in cast(Iterable[Block], self.blocks)]

    def forward(
        self, x: Tensor, t: Tensor, video: Tensor, state: Tensor, context: list[KeysValues]
    ) -> Tensor:
        """x [B, H, A]; t [B], or [B, H] of each action; video: time of the features, float32 [1]; state
        [B, S]; context: of a batch of one -> velocities [B, H, A] in the dtype of x."""
        dtype, times = self.pos_embedding.dtype, t.reshape(len(t), -1).expand(-1, x.shape[1])
        scaled = x / ((1 - times) ** 2 + times**2).sqrt()[..., None]
        first = self.obs_embedder["layers"](state[:, None].to(dtype))
        rows = torch.cat((first, self.action_embedder["layers"](scaled.to(dtype))), dim=1)
        rows = rows * self._width**-0.5 + self.pos_embedding
        time = self._time(torch.cat((torch.full_like(times[:, :1], STATE_TIME), times), dim=1), video)
        stream, blocks = residual_stream(rows), list(cast(Iterable[Block], self.blocks))
        for block, by, (k, v) in zip(blocks, modulations(blocks, time), context, strict=True):
            block(stream, by, (k.expand(len(x), *k.shape[1:]), v.expand(len(x), *v.shape[1:])))
        return self.final_layer(stream, time)[:, 1:].to(x.dtype)

    def _time(self, times: Tensor, video: Tensor) -> Time:
        dtype, pair = self.pos_embedding.dtype, self.t_embedder["pair"]
        z = pair(*(sinusoid(t, self._width).to(dtype) for t in (times, video[:, None])))
        return Time(self.t_embedding_norm(z), pair.get_submodule("A")(z))


class MimicVideo(Network):
    """A mimic-video network of the given sizes, randomly initialised."""

    def __init__(self, config: MimicVideoConfig) -> None:
        super().__init__()
        self.config = config
        self.text_encoder, self.vae = T5Encoder(config.text), VAE(config.vae, config.vae_blocks)
        self.video, self.decoder = VideoNetwork(config), Decoder(config)

    @property
    def device(self) -> torch.device:
        """Of the decoder, since the text encoder may be on the host."""
        return self.decoder.pos_embedding.device
