"""The encoder of Wan's VAE for a single frame: a network of two dimensions.

Its convolutions are causal in time, so that of a first frame's kernels only the last slice meets anything but
zeros, and its convolutions from two frames to one are left out. What is left of time is the average of a
level's shortcut, in which a frame of zeros comes first. Parameter names are those of diffusers, their shapes
without time: `slices` takes these parts of a stored tensor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.encoder_sizes import VAEConfig
from vla_accel_ros.models.layers.gemma import at_least_float32


def stored_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that diffusers stores a parameter of ours with, which has time and both halves of the
    last product."""
    layer, _, leaf = name.rpartition(".")
    if layer.endswith("quant_conv"):
        shape = (2 * shape[0], *shape[1:])
    flat = layer.endswith(("to_qkv", "proj", "resample.1", "attentions.0.norm"))
    if leaf == "bias" or flat:
        return shape
    return (*shape, 1) if leaf == "gamma" else (*shape[:2], shape[2], *shape[2:])


def slices(stored: Tensor, shape: torch.Size) -> Tensor:
    """Return the part of a stored tensor that a frame needs: of a kernel the last slice in time, of the last
    product the rows of the mean."""
    if stored.ndim == 5:
        stored = stored[:, :, -1]
    return stored.reshape(-1, *shape[1:])[: shape[0]]


class Norm(nn.Module):
    """Channels to the length 1, times the root of their number and `gamma`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        unit = F.normalize(x.to(at_least_float32(x.dtype)), dim=1).to(x.dtype)
        return unit * len(self.gamma) ** 0.5 * self.gamma


class Residual(nn.Module):
    """Two convolutions, and `conv_shortcut` where the width changes."""

    def __init__(self, width: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = Norm(width), nn.Conv2d(width, outer, 3, padding=1)
        self.norm2, self.conv2 = Norm(outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.conv_shortcut = nn.Identity() if width == outer else nn.Conv2d(width, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        return self.conv2(F.silu(self.norm2(inner))) + self.conv_shortcut(x)


class Attention(nn.Module):
    """Attention of one head between the places of a frame."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.to_qkv, self.proj = (
            Norm(width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.norm(x)).flatten(2).transpose(1, 2)[:, None].chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(q, k, v)[:, 0]
        return x + self.proj(attended.transpose(1, 2).unflatten(2, x.shape[2:]))


class Middle(nn.Module):
    """`mid_block`"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(Residual(width, width) for _ in range(2))
        self.attentions = nn.ModuleList((Attention(width),))

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Halving(nn.Module):
    """`downsampler`: zeros on the right and below, then every second place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(width, width, 3, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        return self.resample(x)


class Level(nn.Module):
    """Some residual blocks and, but for the last level, a halving; a shortcut of averages goes past them."""

    def __init__(self, config: VAEConfig, level: int) -> None:
        super().__init__()
        width, outer = config.widths[level : level + 2]
        self._outer, self._halves = outer, level < len(config.temporal)
        self._frames = 1 + (self._halves and config.temporal[level])
        self.resnets = nn.ModuleList(
            Residual(width if block == 0 else outer, outer) for block in range(config.blocks)
        )
        self.downsampler = Halving(outer) if self._halves else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        for block in self.resnets:
            inner = block(inner)
        return self.downsampler(inner) + self.average(x)

    def average(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, outer, h, w]: means of channels, each with its places of frames, rows and
        columns; the frame before is zeros."""
        places = F.pixel_unshuffle(x, 2) if self._halves else x
        places = places.unflatten(1, (x.shape[1], 1, -1))
        places = F.pad(places, (0, 0, 0, 0, 0, 0, self._frames - 1, 0))
        return places.flatten(1, 3).unflatten(1, (self._outer, -1)).mean(dim=2)


class Encoder(nn.Module):
    """`encoder`"""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        last, channels = config.widths[-1], 3 * config.patch**2
        self.conv_in = nn.Conv2d(channels, config.width, 3, padding=1)
        self.down_blocks = nn.ModuleList(Level(config, level) for level in range(len(config.multiples)))
        self.mid_block, self.norm_out = Middle(last), Norm(last)
        self.conv_out = nn.Conv2d(last, 2 * config.channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(self.mid_block(x))))


class VAE(nn.Module):
    """pixels [N, 3, H, W] in [-1, 1] -> latents float32 [N, C, h, w]: their most likely value, normalised by
    mean and std. Call `fold` before it is run."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self._config = config
        self.encoder = Encoder(config)
        self.quant_conv = nn.Conv2d(2 * config.channels, config.channels, 1)
        self.mean: Tensor
        self.std: Tensor

    def fold(self) -> None:
        """Put the statistics of the latents, which are no parameters, on the device of the parameters."""
        weight = self.quant_conv.weight
        for name in ("mean", "std"):
            values = weight.new_tensor(getattr(self._config, name), dtype=at_least_float32(weight.dtype))
            self.register_buffer(name, values.view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        side = self._config.patch
        n, channels, height, width = pixels.shape
        squares = pixels.view(n, channels, height // side, side, width // side, side).permute(
            0, 1, 5, 3, 2, 4
        )
        latents = self.quant_conv(self.encoder(squares.flatten(1, 3).to(self.quant_conv.weight.dtype)))
        return (latents.to(self.mean.dtype) - self.mean) / self.std
