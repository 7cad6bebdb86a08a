"""OpenVLA-OFT in plain torch (Kim, Finn and Liang, 2025, "Fine-Tuning Vision-Language-Action Models").

Its micro-requests: film (how an instruction modulates the towers, for ALOHA; Perez and others, 2018), encode
(images to tokens) and chunk (one pass over images, joints, prompt and the rows of the actions). OpenVLA's
parts and parameter names, without the language head; attention sees everything. The rows of actions come in
as zeros. An action is read from the hidden states of its numbers, which begin at the prompt's last token, one
row before the first zero. Parameter names of the two further parts are those of
their files, below `action_head` and `proprio_projector`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.vit import Tower
from vla_accel_ros.models.network import Network
from vla_accel_ros.models.openvla.model import Projector, VisionBackbone
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.stack import hidden_states

STOP = 2
"""Llama's id of the end, which stood after the actions in training."""
BLOCKS = 2
MODULATION = ("scale", "shift")


class HeadBlock(nn.Module):
    """A residual block, `ffn`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class HeadStack(nn.Module):
    """`model` of the action head: hidden [B, H, A * W] -> actions [B, H, A], normalised."""

    def __init__(self, width: int, dims: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(dims * width)
        self.fc1 = nn.Linear(dims * width, width)
        self.mlp_resnet_blocks = nn.ModuleList(HeadBlock(width) for _ in range(BLOCKS))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, dims)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class ProprioProjector(nn.Module):
    """A state as one token."""

    def __init__(self, state_dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(state)))


class OpenVLAOFT(Network):
    """An OpenVLA-OFT network of the given sizes, randomly initialised."""

    def __init__(self, config: OpenVLAOFTConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config.features, config.prefix.width)
        self.language_model = Holder(model=Llama(config.prefix, config.vocab))
        self.action_head = Holder(model=HeadStack(config.prefix.width, config.action_dim))
        if config.state_dim:
            self.proprio_projector = ProprioProjector(config.state_dim, config.prefix.width)
        for tower in self.towers if config.film else ():
            for block in tower.blocks:
                for name in MODULATION:
                    block.add_module(name, nn.Linear(config.prefix.width, tower.pos_embed.shape[2]))

    @property
    def towers(self) -> tuple[Tower, Tower]:
        """DINOv2 and SigLIP."""
        return self.vision_backbone.featurizer, self.vision_backbone.fused_featurizer

    def film(self, words: Tensor) -> list[Tensor]:
        """prompt int64 [t] -> for each tower [blocks, 2, width]: by what its blocks scale and shift, from the
        mean embedding of the prompt and the end."""
        mean = self.language_model.model.embed_tokens(torch.cat((words, words.new_full((1,), STOP)))).mean(0)
        layers = ([getattr(block, n) for block in t.blocks for n in MODULATION] for t in self.towers)
        return [torch.stack([layer(mean) for layer in of_tower]).unflatten(0, (-1, 2)) for of_tower in layers]

    def encode(self, pixels: Tensor, film: Sequence[Tensor] = ()) -> Tensor:
        """pixels float [V, 6, S, S], normalised for each tower -> image tokens [V, patches, W]. film: of
        `film`."""
        modulated = (
            [partial(block, film=rows) for block, rows in zip(tower.blocks, of_tower, strict=True)]
            for tower, of_tower in zip(self.towers, film, strict=False)
        )
        return self.projector(self.vision_backbone(pixels, *modulated))

    def embed(self, seen: Tensor, words: Tensor, state: Tensor | None) -> Tensor:
        """image tokens [n, W], prompt int64 [t], state float [S], normalised -> the whole input [1, T, W]:
        the prompt's first id, images, state, the rest of the prompt, zeros for the actions, the end."""
        config, table = self.config, self.language_model.model.embed_tokens
        prompt = table(words)
        parts = [prompt[:1], seen.to(prompt.dtype)]
        if config.state_dim:
            assert state is not None
            parts.append(self.proprio_projector(state.to(prompt.dtype)[None]))
        rows = config.horizon * config.action_dim
        stop = table(words.new_full((1,), STOP))
        return torch.cat((*parts, prompt[1:], prompt.new_zeros(rows, prompt.shape[1]), stop))[None]

    def hidden(self, embeddings: Tensor, read: slice = slice(None)) -> Tensor:
        """[1, T, W] -> the hidden states of some rows after the final norm."""
        return hidden_states(self.language_model.model, embeddings, read)

    def chunk(self, seen: Tensor, words: Tensor, state: Tensor | None) -> Tensor:
        """As `embed` -> actions [H, A], normalised."""
        config = self.config
        rows = config.horizon * config.action_dim
        read = slice(-rows - 2, -2)  # from the prompt's last token on; the last zero and the end are not
        hidden = self.hidden(self.embed(seen, words, state), read)
        return self.action_head.model(hidden.reshape(1, config.horizon, -1))[0]
