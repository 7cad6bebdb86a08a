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
from vla_accel_ros.models.layers.vision import PatchEmbedding

NORM_EPS = 1e-6

Blocks = Iterable[Callable[[Tensor], Tensor]]
"""Functions from features [N, tokens, width] to features, applied in order."""


class Attention(nn.Module):
    """Full self-attention; query, key and value are one matrix."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Feed-forward with the exact GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class Block(nn.Module):
    """A pre-norm transformer block, with or without layer scale."""

    def __init__(self, config: VisionConfig, scaled: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn = Attention(config.width, config.heads)
        self.ls1 = LayerScale(config.width) if scaled else nn.Identity()
        self.norm2 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.mlp = MLP(config.width, config.mlp)
        self.ls2 = LayerScale(config.width) if scaled else nn.Identity()

    def forward(self, x: Tensor, film: Tensor | None = None) -> Tensor:
        """film: [2, width] by which an instruction scales (beside 1) and shifts what attention gives."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        if film is not None:
            x = x * (1 + film[0]) + film[1]
        return x + self.ls2(self.mlp(self.norm2(x)))


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
        for block in self.blocks if blocks is None else blocks:
            x = block(x)
        return x[:, self.extra :]
