"""Qwen3-VL's image tower, as GR00T N1.7 has it, for images of any shape whose sides are multiples of a block.

Patches are in the order of blocks of merge x merge, each of which becomes one token. Learned positions are
interpolated between those of a square, and rotary positions of row and column are added in every layer. After
some layers (`taps`) a merger makes features that skip into the language model. Every image is computed by
itself. Parameter names are those of Hugging Face's Qwen3VLVisionModel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.layers import vit
from vla_accel_ros.models.layers.gemma import at_least_float32, rotate
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.residual import ResidualStream, attention, product, residual_stream, rotated

NORM_EPS = 1e-6
THETA = 10_000.0
FRAMES = 2
"""A patch covers two frames; a still image is both."""


def blocks(x: Tensor, merge: int) -> Tensor:
    """[h, w, ...] -> [h * w, ...] in the order of blocks: block row, block column, row and column within."""
    height, width = x.shape[:2]
    blocked = x.unflatten(1, (width // merge, merge)).unflatten(0, (height // merge, merge))
    return blocked.transpose(1, 2).flatten(0, 3)


class PatchEmbed(nn.Module):
    """`patch_embed.proj`: images [N, 3, H, W] -> [N, patches, width]."""

    def __init__(self, config: VisionConfig, merge: int) -> None:
        super().__init__()
        self.patch, self.merge = config.patch, merge
        self.proj = nn.Conv3d(3, config.width, (FRAMES, config.patch, config.patch))

    def forward(self, images: Tensor) -> Tensor:
        patch = self.patch
        cut = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).permute(2, 4, 0, 1, 3, 5)
        rows = blocks(cut, self.merge).transpose(0, 1)
        rows = rows.unsqueeze(3).expand(-1, -1, -1, FRAMES, -1, -1).flatten(2)
        return F.linear(rows.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)


class Attention(vit.Attention):
    """The same with rotary positions, which are computed in float32."""

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        heads = product(x, self.qkv.weight, self.qkv.bias).unflatten(-1, (3, self.heads, -1))
        qk = rotated(heads[:, :, :2].flatten(2, 3), self.heads, *tables)
        if qk is None:
            turned = heads[:, :, :2].permute(2, 0, 3, 1, 4).to(at_least_float32(x.dtype))
            q, k = rotate(turned, *tables).to(x.dtype).transpose(2, 3)
            qk = q, k
        return attention(*qk, heads[:, :, 2])


class Block(nn.Module):
    """A pre-norm layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.norm2 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn = Attention(config.width, config.heads)
        first, second = nn.Linear(config.width, config.mlp), nn.Linear(config.mlp, config.width)
        self.mlp = Holder(linear_fc1=first, linear_fc2=second)

    def forward(self, stream: ResidualStream, tables: tuple[Tensor, Tensor]) -> None:
        first, second, mlp = self.norm1, self.norm2, self.mlp
        rows = stream.norm(first.weight, first.bias, NORM_EPS)
        stream.add(self.attn(rows, tables), self.attn.proj)
        stream.mlp(stream.norm(second.weight, second.bias, NORM_EPS), mlp.linear_fc1, mlp.linear_fc2)


class Merger(nn.Module):
    """Patches [N, P, C] -> tokens [N, P / joined, W]. late: the norm is over the joined patches."""

    def __init__(self, width: int, joined: int, out: int, late: bool) -> None:
        super().__init__()
        self.joined, self.late = joined, late
        self.norm = nn.LayerNorm(width * joined if late else width, eps=NORM_EPS)
        self.linear_fc1 = nn.Linear(width * joined, width * joined)
        self.linear_fc2 = nn.Linear(width * joined, out)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.late else self.norm(x)
        x = x.unflatten(1, (-1, self.joined)).flatten(2)
        x = self.norm(x) if self.late else x
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Tower(nn.Module):
    """images float [N, 3, H, W] in [-1, 1] -> image tokens [N, t, out] and the taps' features [N, taps, t,
    out].

    config: image_size is that of the square of learned positions. merge: patches of a side that become one
    token. taps: layers with features that skip. out: the language model's width.
    """

    def __init__(self, config: VisionConfig, merge: int, taps: Sequence[int], out: int) -> None:
        super().__init__()
        self.config, self.merge, self.taps = config, merge, tuple(taps)
        self.patch_embed = PatchEmbed(config, merge)
        self.pos_embed = nn.Embedding(config.tokens, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(config.width, merge**2, out, late=False)
        mergers = (Merger(config.width, merge**2, out, late=True) for _ in taps)
        self.deepstack_merger_list = nn.ModuleList(mergers)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        height, width = (size // self.config.patch for size in images.shape[2:])
        x = self.patch_embed(images) + self._positions(height, width)
        tables, features = self._tables(height, width), []
        stream = residual_stream(x)
        for index, block in enumerate(self.blocks):
            block(stream, tables)
            if index in self.taps:
                features.append(self.deepstack_merger_list[self.taps.index(index)](stream.end()))
        tokens = self.merger(stream.end())
        return tokens, torch.stack(features, 1) if features else tokens[:, None][:, :0]

    def _positions(self, height: int, width: int) -> Tensor:
        """[patches, C]: the square of learned positions, stretched to the image, corner to corner."""
        table = self.pos_embed.weight
        side = self.config.image_size // self.config.patch
        rows, columns = (_between(size, side, table) for size in (height, width))
        total = torch.zeros_like(table[:1, None])
        for row, of_row in rows:
            for column, of_column in columns:
                weight = (of_row[:, None] * of_column).to(table.dtype)
                total = total + table[row[:, None] * side + column] * weight[..., None]
        return blocks(total, self.merge)

    def _tables(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """cos, sin float32 [patches, head_dim] of rows and columns."""
        device, half = self.pos_embed.weight.device, self.config.width // self.config.heads // 2
        exponents = torch.arange(0, half, 2, device=device, dtype=torch.float32) / half
        frequencies = 1.0 / THETA**exponents
        rows, columns = (torch.arange(size, device=device)[:, None] * frequencies for size in (height, width))
        shape = height, width, len(frequencies)
        angles = torch.cat((rows[:, None].expand(shape), columns.expand(shape)), dim=-1)
        angles = blocks(torch.cat((angles, angles), dim=-1), self.merge)
        return angles.cos(), angles.sin()


def _between(size: int, side: int, table: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The two neighbours of each of `size` points on a line of `side`, and how much each counts."""
    point = torch.linspace(0, side - 1, size, device=table.device)
    low = point.int()
    upper = point - low
    return (low.long(), 1 - upper), ((low + 1).clamp(max=side - 1).long(), upper)
