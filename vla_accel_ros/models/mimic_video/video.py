"""The video network (Cosmos-Predict2's): features of a video that is denoised in part.

Its rows are patches of 2 x 2 latents of all frames, and all attend to all. Observed frames are given clean,
with the time of almost no noise; the others begin as noise, the same for each video, as in the reference.
A step predicts the clean video, and the next noise level follows by two-step Adams-Bashforth in the logarithm
of the noise. The last step ends at the block whose features the action decoder reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.gemma import at_least_float32
from vla_accel_ros.models.layers.qwen import RMSNorm
from vla_accel_ros.models.layers.residual import residual_stream
from vla_accel_ros.models.mimic_video.blocks import (
    CROSS,
    EPS,
    MLP,
    SELF,
    Block,
    Final,
    Tables,
    Time,
    modulations,
)
from vla_accel_ros.models.mimic_video.config import CHANNELS, PATCH, MimicVideoConfig

MOST, LEAST, ORDER = 80.0, 0.002, 7.0
"""The noise schedule (Karras et al., 2022, equation 5)."""
ALMOST_CLEAN = 1e-4
"""Noise of observed frames, as the network is told."""
PERIOD, THETA = 10_000.0, 10_000.0
MASKS = 2
"""Channels beside the latents: which frames are observed, and padding, which there is none of."""
SEED = 0


def noise_levels(steps: int) -> np.ndarray:
    """float64 [steps + 1]"""
    first, last = MOST ** (1 / ORDER), LEAST ** (1 / ORDER)
    return np.asarray((first + np.arange(steps + 1) / steps * (last - first)) ** ORDER)


def network_time(level: float) -> float:
    """The time of the network at a noise level, as float32."""
    return float(np.float32(level) / (np.float32(level) + np.float32(1)))


def advanced(noisy: Tensor, clean: Tensor, before: Tensor | None, levels: np.ndarray, index: int) -> Tensor:
    """The video at levels[index + 1], from that at levels[index], its clean prediction, and that of the step
    before. Computed in float64; returns the dtype of noisy."""
    ratio = float(levels[index + 1] / levels[index])
    x, prediction = noisy.double(), clean.double()
    if before is None:
        return ((1 - ratio) * prediction + ratio * x).to(noisy.dtype)
    h = -math.log(ratio)
    p1 = math.expm1(-h) / -h
    slope = (p1 - 1) / math.log(levels[index - 1] / levels[index])
    return (ratio * x + h * ((p1 - slope) * prediction + slope * before.double())).to(noisy.dtype)


class VideoNetwork(nn.Module):
    """The blocks that are computed; with the last layer only if a whole step is."""

    def __init__(self, config: MimicVideoConfig) -> None:
        super().__init__()
        video, self._config = config.video, config
        inner = (CHANNELS + MASKS) * PATCH * PATCH
        embedding = nn.Sequential(nn.Identity(), nn.Linear(inner, video.width, bias=False))
        self.x_embedder = nn.ModuleDict({"proj": embedding})
        first, second = (nn.Linear(video.width, n * video.width, bias=False) for n in (1, 3))
        parts = nn.ModuleDict({"linear_1": first, "linear_2": second})
        self.t_embedder = nn.Sequential(nn.Identity(), parts)
        self.t_embedding_norm = RMSNorm(video.width, EPS)
        self.blocks = nn.ModuleList(Block(video, (SELF, CROSS, MLP)) for _ in range(config.blocks))
        if config.settings.stop_after_step:
            self.final_layer = Final(video, CHANNELS * PATCH * PATCH)

    @cached_property
    def noise(self) -> Tensor:
        """With which every video begins, float32 [C, T, h, w]."""
        s = self._config.settings
        shape = CHANNELS, s.state_t, *s.latent
        normal = np.random.RandomState(SEED).standard_normal(shape).astype(np.float32)
        return torch.from_numpy(normal * np.float32(MOST)).to(self.t_embedding_norm.weight.device)

    @cached_property
    def _tables(self) -> Tables:
        """Of the positions: a head's frequencies belong to time, rows and columns."""
        s, device, head_dim = self._config.settings, self.noise.device, self._config.video.head_dim
        side = head_dim // 6 * 2
        height, width = (size // PATCH for size in s.latent)
        axes = (
            (s.state_t, head_dim - 2 * side, s.rope_t),
            (height, side, s.rope_h),
            (width, side, s.rope_w),
        )
        parts = []
        for axis, (count, size, stretch) in enumerate(axes):
            theta = THETA * stretch ** (size / (size - 2))
            exponents = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
            angles = torch.arange(count, dtype=torch.float32, device=device)[:, None] / theta**exponents
            shape = [1, 1, 1, size // 2]
            shape[axis] = count
            parts.append(angles.view(shape).expand(s.state_t, height, width, -1))
        angles = torch.cat(parts * 2, dim=-1).flatten(0, 2)
        return angles.cos(), angles.sin()

    def step(
        self, latents: Tensor, text: Tensor, index: int, noisy: Tensor | None, before: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute step `index` of a video; the last leaves "features" [rows, W], others "noisy" and "clean".

        latents [C, observed, h, w]; text [n, C']; noisy, before: the video, and the clean prediction of the
        step before; None in the first and, of before, in the second.
        """
        s = self._config.settings
        levels = noise_levels(s.num_sampling_step)
        t = network_time(levels[index])
        noisy = self.noise.to(at_least_float32(latents.dtype)) if noisy is None else noisy
        observed = latents.to(noisy.dtype)
        video = torch.cat((observed, noisy[:, s.observed :] * (1 - t)), dim=1)
        times = torch.full((s.state_t,), t, device=noisy.device)
        times[: s.observed].fill_(network_time(ALMOST_CLEAN))
        is_last = index == s.stop_after_step
        rows = self(video, times, text, s.xattn_layer_idx if is_last else None)
        if is_last:
            return {"features": rows}
        patches = rows.view(s.state_t, s.latent[0] // PATCH, s.latent[1] // PATCH, PATCH, PATCH, CHANNELS)
        velocity = patches.permute(5, 0, 1, 3, 2, 4).flatten(4).flatten(2, 3)
        clean = noisy * (1 - t) - t * velocity.to(noisy.dtype)
        clean[:, : s.observed].copy_(observed)
        return {"noisy": advanced(noisy, clean, before, levels, index), "clean": clean}

    def forward(self, video: Tensor, times: Tensor, text: Tensor, blocks: int | None) -> Tensor:
        """video [C, T, h, w] with its observed frames, times float32 [T], text [n, C'] -> the rows [rows, W]
        after so many blocks; None = what the last layer makes of all, [rows, C * 4]."""
        s, dtype = self._config.settings, self.t_embedding_norm.weight.dtype
        masks = video.new_zeros(MASKS, *video.shape[1:])
        masks[0, : s.observed].fill_(1.0)
        patches = torch.cat((video, masks)).unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))
        patches = patches.permute(1, 2, 4, 0, 3, 5).flatten(3).flatten(0, 2)
        x = self.x_embedder["proj"](patches.to(dtype))[None]
        time, stream = self._time(times.to(dtype)), residual_stream(x)
        words = F.pad(text, (0, 0, 0, s.text_tokens - len(text)))[None]
        chosen = list(cast(Iterable[Block], self.blocks))[:blocks]
        for block, by in zip(chosen, modulations(chosen, time), strict=True):
            block(stream, by, block.cross_attn.kv(words), self._tables)
        return (stream.end() if blocks is not None else self.final_layer(stream, time))[0]

    def _time(self, times: Tensor) -> Time:
        half = self._config.video.width // 2
        exponents = torch.arange(half, dtype=torch.float32, device=times.device) / half
        angles = times.float()[:, None] * torch.exp(-math.log(PERIOD) * exponents)
        e = torch.cat((angles.cos(), angles.sin()), dim=1).to(times.dtype)[None]
        inner, outer = self.t_embedder[1].children()
        return Time(self.t_embedding_norm(e), outer(F.silu(inner(e))))
