"""The video encoder, of Wan2.1's form: causal; it halves rows and columns thrice, and frames twice.

The reference feeds the first frame alone and then groups of four, with a cache of earlier frames. Nothing
before the first frame is known and nothing later is seen, so one pass over all frames with zeros in front
gives the same numbers; only a step in time must leave the first frame alone. Parameter names are the
authors'. Latents are normalised by Wan2.1's constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers import wan_vae
from vla_accel_ros.models.mimic_video.config import CHANNELS

MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)
IN_TIME = (False, True, True)
"""Whether the step after each stage but the last halves the number of frames, too."""


class Causal(nn.Conv3d):
    """A convolution that sees no later frame. x [1, C, T, H, W]."""

    def __init__(self, inner: int, outer: int, size: int) -> None:
        super().__init__(inner, outer, size, padding=(0, size // 2, size // 2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 0, 0, 0, self.kernel_size[0] - 1, 0)))


class Norm(nn.Module):
    """x / rms(x) over the channels, times gamma. axes: of space and time."""

    def __init__(self, width: int, axes: int = 3) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width, *[1] * axes))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * (len(self.gamma) ** 0.5 * self.gamma)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        widens = Norm(inner), nn.SiLU(), Causal(inner, outer, 3)
        self.residual = nn.Sequential(*widens, Norm(outer), nn.SiLU(), nn.Identity(), Causal(outer, outer, 3))
        self.shortcut = Causal(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.residual(x)


class Halving(nn.Module):
    """Every second row and column and, if in_time, every second frame after the first."""

    def __init__(self, width: int, in_time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(width, width, 3, stride=2))
        self.time_conv = nn.Conv3d(width, width, (3, 1, 1), stride=(2, 1, 1)) if in_time else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.resample(x[0].transpose(0, 1)).transpose(0, 1)[None]
        if self.time_conv is None or x.shape[2] == 1:
            return x
        return torch.cat((x[:, :, :1], self.time_conv(x)), dim=2)


class Attention(wan_vae.Attention):
    """Attention of one head over a frame."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = Norm(width, axes=2)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[0].transpose(0, 1)).transpose(0, 1)[None]


class VAE(nn.Module):
    """Frames float [1 + 4 n, 3, H, W] in [-1, 1] -> normalised latents [C, 1 + n, H / 8, W / 8]."""

    def __init__(self, widths: Sequence[int], blocks: int) -> None:
        super().__init__()
        width, layers = widths[0], list[nn.Module]()
        for index, outer in enumerate(widths[1:]):
            for _ in range(blocks):
                layers.append(Residual(width, outer))
                width = outer
            if index < len(IN_TIME):
                layers.append(Halving(width, IN_TIME[index]))
        parts = {
            "conv1": Causal(3, widths[0], 3),
            "downsamples": nn.Sequential(*layers),
            "middle": nn.Sequential(Residual(width, width), Attention(width), Residual(width, width)),
            "head": nn.Sequential(Norm(width), nn.SiLU(), Causal(width, 2 * CHANNELS, 3)),
        }
        self.encoder = nn.ModuleDict(parts)
        self.conv1 = nn.Conv3d(2 * CHANNELS, 2 * CHANNELS, 1)

    def forward(self, frames: Tensor) -> Tensor:
        video = frames.to(self.conv1.weight.dtype).transpose(0, 1)[None]
        for part in self.encoder.values():
            video = part(video)
        shift, scale = self._statistics
        return (self.conv1(video)[0, :CHANNELS] - shift) / scale

    @cached_property
    def _statistics(self) -> list[Tensor]:
        """MEAN and STD on the device."""
        return [torch.tensor(values).to(self.conv1.weight)[:, None, None, None] for values in (MEAN, STD)]
