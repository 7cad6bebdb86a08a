"""GR00T N1.7 and N1.5 in plain torch: the reference that every faster path is compared with.

encode: images to tokens. features: tokens and words to what the action head reads. prefix: the keys and
values of that, once a frame. velocity: one flow step. The flow runs from noise at t = 1 to actions at t = 0
as in every family here; the network itself counts the other way, in whole buckets.

The published names of parameters are these after `ROOTS`, and `lm_head`, if a file has it, is the token
embedding again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.groot.config import N1_5, N1_7, GrootConfig
from vla_accel_ros.models.groot.head import ActionHead
from vla_accel_ros.models.layers.fused import fuse
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.qwen import Qwen
from vla_accel_ros.models.layers.qwen_vision import Tower
from vla_accel_ros.models.layers.vision import SigLIP, joined
from vla_accel_ros.models.network import Network

ROOTS: Mapping[str, Mapping[str, str]] = {
    N1_7: {
        "visual.": "backbone.model.model.visual.",
        "language_model.": "backbone.model.model.language_model.",
        "lm_head.": "backbone.model.lm_head.",
    },
    N1_5: {
        "visual.": "backbone.eagle_model.vision_model.vision_model.",
        "mlp1.": "backbone.eagle_model.mlp1.",
        "language_model.": "backbone.eagle_model.language_model.model.",
        "lm_head.": "backbone.eagle_model.language_model.lm_head.",
    },
}
"""Beginnings of our parameters' names and of NVIDIA's."""
LATE = 1e-3
"""Of a bucket: a flow time that rounding has put so far below its bucket is still in it."""


class Prompt(NamedTuple):
    """embeddings [1, T, W]; positions int64 [3, 1, T], or [1, 1, T] in one dimension; added: what is added
    after the first layers [taps, 1, T, W], None without taps; image bool [T]: which tokens are of images."""

    embeddings: Tensor
    positions: Tensor
    added: Tensor | None
    image: Tensor


class Groot(Network):
    """A GR00T network of the given sizes, randomly initialised."""

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.config = config
        vision, text = config.vision, config.text
        if config.kind == N1_7:
            self.visual: nn.Module = Tower(vision, config.merge, config.taps, text.width)
        else:
            width = vision.width * config.merge**2
            self.visual = SigLIP(vision)
            first = nn.Linear(width, text.width)
            self.mlp1 = nn.Sequential(first)
            if config.connector == 2:
                self.mlp1 = nn.Sequential(
                    nn.LayerNorm(width), first, nn.GELU(), nn.Linear(text.width, text.width)
                )
        self.language_model = Qwen(
            text, config.vocab, config.theta, config.sections, normed=config.kind == N1_5
        )
        self.action_head = ActionHead(config)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images float [N, 3, H, W] in [-1, 1], of one size -> image tokens [N, t, W], and the features of
        the taps [N, taps, t, W]."""
        if self.config.kind == N1_7:
            return self.visual(images)
        x = self.visual(images)
        tokens = self.mlp1(joined(x, self.config.merge) if self.config.merge > 1 else x)
        return tokens, tokens[:, None][:, :0]

    def embed(
        self, words: Tensor, images: Sequence[Tensor], taps: Sequence[Tensor], breaks: Sequence[int]
    ) -> Prompt:
        """Put the tokens of images among those of words.

        words: int64 [t]; images: [rows, columns, W] each, and their features [taps, rows, columns, W];
        breaks: before which word each comes. What is launched depends on shapes alone.
        """
        embeddings, axes = self.language_model.embed_tokens(words), 3 if self.config.sections else 1
        parts, added, positions, marks = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        ends, position = [0, *(min(word, len(words)) for word in breaks), len(words)], 0

        def put(rows: Tensor, features: Tensor, places: Tensor, is_image: bool) -> None:
            parts.append(rows)
            added.append(features)
            positions.append(places)
            marks.append(words.new_full((len(rows),), is_image, dtype=torch.bool))

        for index, (start, end) in enumerate(itertools.pairwise(ends)):
            text = embeddings[start:end]
            order = torch.arange(position, position + end - start, device=words.device)
            put(text, text.new_zeros(len(self.config.taps), *text.shape), order.expand(axes, -1), False)
            position += end - start
            if index < len(images):
                image = images[index]
                put(image.flatten(0, 1), taps[index].flatten(1, 2), self._places(image, position), True)
                position += max(image.shape[:2]) if self.config.sections else len(parts[-1])
        more = torch.cat(added, dim=1)[:, None] if self.config.taps else None
        return Prompt(torch.cat(parts)[None], torch.cat(positions, dim=1)[:, None], more, torch.cat(marks))

    def _places(self, image: Tensor, start: int) -> Tensor:
        """The positions [axes, n] of an image's tokens: time, row and column, or the order alone."""
        rows, columns = image.shape[:2]
        if not self.config.sections:
            return torch.arange(start, start + rows * columns, device=image.device)[None]
        row, column = (torch.arange(start, start + size, device=image.device) for size in (rows, columns))
        row, column = row[:, None].expand(rows, columns), column.expand(rows, columns)
        return torch.stack((torch.full_like(row, start), row, column)).flatten(1)

    def features(self, prompt: Prompt) -> Tensor:
        """What the action head reads of a prompt [1, T, W]."""
        head, axes = self.action_head, prompt.positions
        positions = axes if self.config.sections else axes[0]
        return head.vl_self_attention(
            head.vlln(self.language_model(prompt.embeddings, positions, prompt.added))
        )

    def prefix(self, features: Tensor, out: KV | None = None) -> KV:
        """The keys and values [readers, B, heads, T, head_dim] of all blocks that read the prefix, in two
        products; written into `out` if it is given."""
        blocks: list[Any] = [*self.action_head.model.transformer_blocks][::2]
        sizes = len(blocks), self.config.dit.heads, self.config.dit.head_dim
        kv = KV(
            *(
                F.linear(features, *fuse([getattr(block.attn1, name) for block in blocks]))
                .unflatten(-1, sizes)
                .permute(2, 0, 3, 1, 4)
                for name in ("to_k", "to_v")
            )
        )
        if out is None:
            return kv
        for into, part in zip(out, kv, strict=True):
            into.copy_(part)
        return out

    def velocity(
        self,
        x: Tensor,
        t: Tensor,
        state: Tensor,
        kv: KV,
        embodiment: Tensor,
        image: Tensor | None = None,
        kv_mask: Tensor | None = None,
    ) -> Tensor:
        """Evaluate the flow field once: data at t = 0, noise at t = 1.

        x float32 or float64 [B, H, A], noisy normalised actions; t float32 [B]; state float [B, S],
        normalised; kv: the prefix, T tokens; embodiment int64 [B]; image bool [B, T]: which tokens are of
        images; kv_mask bool [B, T], False = not part of the prefix, None = all valid. Returns [B, H, A] in
        the dtype of x.
        """
        head, dtype, horizon = self.action_head, self.dtype, x.shape[1]
        buckets = self.buckets(t.to(x.device))
        actions = head.action_encoder(x.to(dtype), buckets, embodiment)
        actions = actions + head.position_embedding.weight[:horizon]
        parts = [head.state_encoder(state.to(dtype)[:, None], embodiment), actions]
        if self.config.future:
            parts.insert(1, head.future_tokens.weight.expand(len(x), -1, -1))
        out = head.model(torch.cat(parts, dim=1), buckets, *kv, self._readable(image, kv_mask))
        return -head.action_decoder(out[:, -horizon:], embodiment).to(x.dtype)

    def buckets(self, t: Tensor) -> Tensor:
        """Flow times as the network counts them: whole numbers from 0, noise, to below config.buckets."""
        return ((1.0 - t) * self.config.buckets + LATE).floor()

    def _readable(self, image: Tensor | None, kv_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The masks of the blocks that read text and of those that read images, see DiT."""
        if not self.config.alternates:
            return kv_mask, kv_mask
        assert image is not None, "the blocks read image and text tokens by turns"
        text = ~image if kv_mask is None else ~image & kv_mask
        return text, image if kv_mask is None else image & kv_mask
