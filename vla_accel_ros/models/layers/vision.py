"""The SigLIP image encoder, as openpi runs it: no pooling head, no class token, post-norm at the end.

On a GPU the patch convolution is a matrix product over the patches: the same sum, but in true float32, where
a convolution may silently use TF32. On a CPU it is a convolution, which rounds as the reference does.
Parameter names are those of the openpi checkpoints.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.layers.residual import ResidualStream, attention, residual_stream


class PatchEmbedding(nn.Module):
    """[N, 3, S, S] -> [N, tokens, width], patches in row-major order."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, 3, patch, patch))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.weight, std=(3 * patch * patch) ** -0.5)

    def forward(self, images: Tensor) -> Tensor:
        p = self.patch
        if not images.is_cuda:
            return F.conv2d(images, self.weight, self.bias, stride=p).flatten(2).transpose(1, 2)
        n, channels, height, width = images.shape
        patches = images.reshape(n, channels, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        return F.linear(patches.flatten(3).flatten(1, 2), self.weight.flatten(1), self.bias)


class Embeddings(nn.Module):
    """Patches plus learned positions, both in float32 whatever the encoder's dtype."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch_embedding = PatchEmbedding(config.width, config.patch)
        self.position_embedding = nn.Embedding(config.tokens, config.width)
        nn.init.normal_(self.position_embedding.weight, std=config.width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        return (
            self.patch_embedding(images.to(self.patch_embedding.weight.dtype))
            + self.position_embedding.weight
        )


class Attention(nn.Module):
    """Full self-attention with biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what goes into `out_proj`."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in parts)
        return attention(q, k, v)


class MLP(nn.Module):
    """The two layers with the tanh GELU, which a layer adds."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.width, eps=1e-6)
        self.self_attn = Attention(config.width, config.heads)
        self.layer_norm2 = nn.LayerNorm(config.width, eps=1e-6)
        self.mlp = MLP(config.width, config.mlp)

    def forward(self, stream: ResidualStream) -> None:
        first, second = self.layer_norm1, self.layer_norm2
        attended = self.self_attn(stream.norm(first.weight, first.bias, first.eps))
        stream.add(attended, self.self_attn.out_proj)
        stream.mlp(stream.norm(second.weight, second.bias, second.eps), self.mlp.fc1, self.mlp.fc2)


class Encoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        stream = residual_stream(x)
        for layer in self.layers:
            layer(stream)
        return stream.end()


def joined(x: Tensor, size: int) -> Tensor:
    """Join size x size neighbouring tokens: [N, side * side, C] -> [N, (side / size)^2, size^2 * C]."""
    side = math.isqrt(x.shape[1])
    blocks = x.unflatten(1, (side // size, size, side // size, size)).transpose(2, 3)
    return blocks.flatten(3).flatten(1, 2)


class SigLIP(nn.Module):
    """images float [N, 3, S, S] in [-1, 1] -> features [N, tokens, width] in the encoder's dtype."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.width, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embeddings(images).to(self.post_layernorm.weight.dtype)
        return self.post_layernorm(self.encoder(x))
