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

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.llama import Llama
from vla_accel_ros.models.layers.vit import Blocks, Tower
from vla_accel_ros.models.network import Network
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


class LanguageModel(nn.Module):
    """`language_model`: the stack and an untied head."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.model = Llama(config.prefix, config.vocab)
        self.lm_head = nn.Linear(config.prefix.width, config.vocab, bias=False)


class OpenVLA(Network):
    """An OpenVLA network of the given sizes, randomly initialised."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config.features, config.prefix.width)
        self.language_model = LanguageModel(config)

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

    def prefix(
        self,
        embs: Tensor,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]:
        """Compute the prefix.

        embs [B, T, W]; attend bool [B, T, T], True = row may attend to column, None = causal; positions int
        [B, T], None = 0..T-1. Prompts of a batch padded at their ends need neither, since no token looks
        ahead.
        out: memory for the keys and values, each [layers, B, kv, T, head_dim], instead of allocating it.
        Returns hidden [B, T, W] after the final norm, and the KV of all T tokens.
        """
        return self._run(embs, (), attend, positions, out)

    def extend(
        self,
        embs: Tensor,
        past: KV,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        tail: KV | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]:
        """Continue a prefix.

        embs [B, t, W]. past: the prefix, P tokens. tail: tokens that already continue it, R tokens. attend
        bool [B, t, P + R + t], None = all of past and tail, and causal within embs. positions int [B, t],
        None = P + R onwards. out: as in prefix.
        Returns hidden [B, t, W] and the KV of the t new tokens alone.
        """
        return self._run(embs, (past,) if tail is None else (past, tail), attend, positions, out)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., W] -> scores of the next token [..., vocab], at least float32."""
        scores = self.language_model.lm_head(hidden)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def _run(
        self,
        embs: Tensor,
        before: tuple[KV, ...],
        attend: Tensor | None,
        positions: Tensor | None,
        out: KV | None,
    ) -> tuple[Tensor, KV]:
        old, new = sum(kv.k.shape[3] for kv in before), embs.shape[1]
        if positions is None:
            positions = torch.arange(old, old + new, device=embs.device)[None]
        if attend is None and new > 1:
            attend = torch.ones(1, new, old + new, dtype=torch.bool, device=embs.device).tril(old)
        hidden, keys, values = self.language_model.model(embs, positions, attend, before)
        return hidden, KV.of(keys, values, out)


def is_unused(name: str, config: OpenVLAConfig) -> bool:
    """Return whether no path reads a published tensor that is no parameter: the language head, or a tower's
    last block, norm or pooling."""
    parts = name.split(".")
    if name == "language_model.lm_head.weight":
        return True
    if parts[0] != "vision_backbone" or len(parts) < 3 or parts[1] not in TOWERS:
        return False
    last = getattr(config, TOWERS[parts[1]]).depth - 1
    return parts[2] in ("norm", "attn_pool") or parts[2:4] == ["blocks", str(last)]
