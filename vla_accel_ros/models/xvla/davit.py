"""DaViT, Florence-2's image encoder: each block attends within windows of places, then between channels.

Parameter names are those of transformers' Florence-2. Images are [N, C, H, W] throughout.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.vit import Attention
from vla_accel_ros.models.xvla.config import CONVOLUTIONS, DaViTConfig

MLP_RATIO = 4


def _rows(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, H * W, C]"""
    return x.flatten(2).transpose(1, 2)


def _image(rows: Tensor, like: Tensor) -> Tensor:
    """[N, H * W, C] -> [N, C, H, W], H and W those of `like`."""
    return rows.transpose(1, 2).unflatten(2, like.shape[2:])


class Downsampling(nn.Module):
    """The convolution before a stage; its norm comes after it in the first stage, before it in the others."""

    def __init__(self, stage: int, before: int, width: int) -> None:
        super().__init__()
        kernel, stride, padding = CONVOLUTIONS[stage]
        self.conv = nn.Conv2d(before, width, kernel, stride, padding)
        self.norm = nn.LayerNorm(before if stage else width)
        self._first = not stage

    def forward(self, x: Tensor) -> Tensor:
        if self._first:
            x = self.conv(x)
            return _image(self.norm(_rows(x)), x)
        return self.conv(_image(self.norm(_rows(x)), x))


class WindowAttention(Attention):
    """Attention within windows. A map is filled up with zeros to whole windows, and the filling is attended
    to, as in the reference."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__(width, heads)
        self._window = window

    def forward(self, rows: Tensor, like: Tensor) -> Tensor:  # type: ignore[override]
        n, width, side = len(rows), rows.shape[2], self._window
        height, breadth = like.shape[2:]
        x = rows.unflatten(1, (height, breadth))
        x = F.pad(x, (0, 0, 0, -breadth % side, 0, -height % side))
        down, across = x.shape[1] // side, x.shape[2] // side
        x = x.reshape(n, down, side, across, side, width).transpose(2, 3).reshape(-1, side * side, width)
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x.reshape(n, down, across, side, side, width).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return x[:, :height, :breadth].flatten(1, 2)


class ChannelAttention(Attention):
    """Attention between the channels of a group, over all places; heads are groups."""

    def forward(self, rows: Tensor, like: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = self.qkv(rows).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = ((q * rows.shape[1] ** -0.5).transpose(2, 3) @ k).softmax(dim=-1)
        return self.proj((weights @ v.transpose(2, 3)).permute(0, 3, 1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers with the exact GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, MLP_RATIO * width), nn.Linear(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Half(nn.Module):
    """Half a block: a convolution by channel, attention, another convolution, two layers; each is added."""

    def __init__(self, width: int, name: str, attention: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1 = nn.LayerNorm(width)
        self.add_module(name, attention)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm2 = nn.LayerNorm(width)
        self.ffn = FeedForward(width)
        self._name = name

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.conv1(x)
        x = x + _image(self.get_submodule(self._name)(self.norm1(_rows(x)), x), x)
        x = x + self.conv2(x)
        return x + _image(self.ffn(self.norm2(_rows(x))), x)


class Block(nn.Module):
    """Attention within windows, then between channels."""

    def __init__(self, config: DaViTConfig, stage: int) -> None:
        super().__init__()
        width = config.widths[stage]
        windows = WindowAttention(width, config.heads[stage], config.window)
        channels = ChannelAttention(width, config.groups[stage])
        self.spatial_block = Half(width, "window_attn", windows)
        self.channel_block = Half(width, "channel_attn", channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.channel_block(self.spatial_block(x))


class DaViT(nn.Module):
    """images float [N, 3, S, S], normalised -> features [N, C, h, w]."""

    def __init__(self, config: DaViTConfig) -> None:
        super().__init__()
        before = (3, *config.widths)
        self.convs = nn.ModuleList(
            Downsampling(stage, before[stage], width) for stage, width in enumerate(config.widths)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(Block(config, stage) for _ in range(depth))
            for stage, depth in enumerate(config.depths)
        )

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for conv, blocks in zip(self.convs, self.blocks, strict=True):
            x = conv(x)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x)
        return x
