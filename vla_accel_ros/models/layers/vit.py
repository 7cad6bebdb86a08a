"""The two image towers of OpenVLA, as timm runs them: patch features after the second-last block.

DINOv2 has a class token, registers and layer scale; SigLIP has none of them. Both use the exact GELU, where
openpi's SigLIP approximates it. The last block and the final norm are never used, so they are not here.
Parameter names are those of OpenVLA's folders: timm's, except for `scale_factor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.layers.residual import ResidualStream, attention, product, residual_stream
from vla_accel_ros.models.layers.vision import PatchEmbedding

NORM_EPS = 1e-6

Blocks = Iterable[Callable[[ResidualStream], None]]
"""Functions that add to features [N, tokens, width], applied in order."""


class Attention(nn.Module):
    """Full self-attention; query, key and value are one matrix. Returns what goes into `proj`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rows: int | None = None) -> Tensor:
        """x [B, T, W] -> [B, rows, W], of the first rows; None = of all."""
        qkv = product(x, self.qkv.weight, self.qkv.bias).unflatten(-1, (3, self.heads, -1))
        return attention(qkv[:, :rows, 0], qkv[:, :, 1], qkv[:, :, 2])


class MLP(nn.Module):
    """Feed-forward with the exact GELU. Returns what goes into `fc2`."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(product(x, self.fc1.weight, self.fc1.bias))


class LayerScale(nn.Module):
    """A learned factor per channel of what a branch adds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))


class Block(nn.Module):
    """A pre-norm transformer block, with or without layer scale."""

    def __init__(self, config: VisionConfig, scaled: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn = Attention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.mlp = MLP(config.width, config.mlp)
        self.scaled = scaled
        if scaled:
            self.ls1, self.ls2 = LayerScale(config.width), LayerScale(config.width)

    def forward(self, stream: ResidualStream, film: Tensor | None = None) -> None:
        """film: [2, width] by which an instruction scales (beside 1) and shifts what attention gives."""
        first, second = self.norm1, self.norm2
        attended = self.attn(stream.norm(first.weight, first.bias, NORM_EPS))
        stream.add(attended, self.attn.proj, self.ls1.scale_factor[None] if self.scaled else None)
        if film is not None:
            stream.rescale(*film)
        inner = self.mlp(stream.norm(second.weight, second.bias, NORM_EPS))
        stream.add(inner, self.mlp.fc2, self.ls2.scale_factor[None] if self.scaled else None)


class PatchEmbed(nn.Module):
    """`patch_embed.proj`"""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = PatchEmbedding(config.width, config.patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images)


def _table(tokens: int, width: int) -> nn.Parameter:
    table = nn.Parameter(torch.empty(1, tokens, width))
    nn.init.normal_(table, std=width**-0.5)
    return table


class Tower(nn.Module):
    """images float [N, 3, S, S], normalised -> features [N, tokens, width], patches in row-major order.

    registers: number of register tokens beside the class token (DINOv2); None for SigLIP.
    """

    def __init__(self, config: VisionConfig, registers: int | None) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = _table(config.tokens, config.width)
        if registers is not None:
            self.cls_token = _table(1, config.width)
            self.reg_token = _table(registers, config.width)
        self.extra = 0 if registers is None else 1 + registers
        self.blocks = nn.ModuleList(Block(config, registers is not None) for _ in range(config.depth - 1))

    def forward(self, images: Tensor, blocks: Blocks | None = None) -> Tensor:
        """blocks: functions that compute the blocks; None = the modules."""
        x = self.patch_embed(images.to(self.pos_embed.dtype)) + self.pos_embed
        if self.extra:
            first = torch.cat((self.cls_token, self.reg_token), dim=1)
            x = torch.cat((first.expand(len(x), -1, -1), x), dim=1)
        stream = residual_stream(x)
        for block in self.blocks if blocks is None else blocks:
            block(stream)
        return stream.end()[:, self.extra :]
