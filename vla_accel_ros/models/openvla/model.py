"""OpenVLA in plain torch: the reference that every faster path is compared with.

Its batched, differentiable methods are the design's micro-requests: encode (one image to tokens), prefix (one
causal pass over image and prompt), and extend and logits (one or more further tokens, actions and text
alike). They have Pi's signatures, but the prefix is causal, so `extend` may also compute a prompt's tail.
`language_model.model` takes any number of pasts and any mask, for forwards that pack several requests.
Parameter names are those of the published folders, without tensors that no path reads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.vit import Blocks, Tower
from vla_accel_ros.models.network import Continued
from vla_accel_ros.models.openvla.config import OpenVLAConfig

TOWERS = {"featurizer": "dino", "fused_featurizer": "siglip"}


class VisionBackbone(nn.Module):
    """pixels [N, 6, S, S] -> features [N, patches, dino + siglip]. DINOv2 takes the first three channels."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.featurizer = Tower(config.dino, config.registers)
        self.fused_featurizer = Tower(config.siglip, None)

    def forward(self, pixels: Tensor, dino: Blocks | None = None, siglip: Blocks | None = None) -> Tensor:
        """dino, siglip: functions that compute the towers' blocks; None = the modules."""
        first, second = self.featurizer(pixels[:, :3], dino), self.fused_featurizer(pixels[:, 3:], siglip)
        return torch.cat((first, second), dim=2)


class Projector(nn.Module):
    """Maps features to language tokens, through four times their width."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, 4 * features)
        self.fc2 = nn.Linear(4 * features, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


class OpenVLA(Continued):
    """An OpenVLA network of the given sizes, randomly initialised. Prompts of a batch that are padded at
    their ends need no mask, since no token looks ahead."""

    causal = True

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config.features, config.prefix.width)
        head = nn.Linear(config.prefix.width, config.vocab, bias=False)
        self.language_model = Holder(model=Llama(config.prefix, config.vocab), lm_head=head)

    @property
    def stack(self) -> Llama:
        """The stack that continues a prefix, for packed forwards."""
        return self.language_model.model

    def encode(self, pixels: Tensor, dino: Blocks | None = None, siglip: Blocks | None = None) -> Tensor:
        """pixels float [N, 6, S, S], normalised for each tower -> image tokens [N, patches, W].

        dino, siglip: functions that compute the towers' blocks; None = the modules.
        """
        return self.projector(self.vision_backbone(pixels, dino, siglip))

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """tokens int64 [...] -> [..., W], not scaled."""
        return self.language_model.model.embed_tokens(tokens)

    def embed(self, images: Tensor, tokens: Tensor) -> Tensor:
        """image tokens [B, P, W], prompt [B, T] -> [B, P + T, W]: the image comes after the prompt's first
        id."""
        words = self.embed_tokens(tokens)
        return torch.cat((words[:, :1], images.to(words.dtype), words[:, 1:]), dim=1)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., W] -> scores of the next token [..., vocab], at least float32."""
        scores = self.language_model.lm_head(hidden)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))


def is_unused(name: str, config: OpenVLAConfig) -> bool:
    """Return whether no path reads a published tensor: a tower's last block, norm or pooling."""
    parts = name.split(".")
    if parts[0] != "vision_backbone" or len(parts) < 3 or parts[1] not in TOWERS:
        return False
    last = getattr(config, TOWERS[parts[1]]).depth - 1
    return parts[2] in ("norm", "attn_pool") or parts[2:4] == ["blocks", str(last)]
