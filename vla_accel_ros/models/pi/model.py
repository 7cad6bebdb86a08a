"""pi0 and pi0.5 in plain torch: the reference that every faster path is compared with.

Its batched, differentiable methods are the design's micro-requests: encode (images), prefix (one
bidirectional pass whose keys and values everything else reads), velocity (one flow step of the action
expert), and extend and logits (text). Callers leave out absent cameras and padding, so nothing is computed
for them; masks are for training batches. Parameter names are those of the openpi PyTorch checkpoints, except
`gemma_expert.lm_head`, which no path reads.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.layers.gemma import KV, Condition, Gemma, PerToken, RMSNorm
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.vision import Embeddings, SigLIP
from vla_accel_ros.models.network import Continued

__all__ = ["KV", "Pi", "Worded", "time_embedding"]

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


def time_embedding(t: Tensor, width: int) -> Tensor:
    """Sine-cosine embedding of flow time. t float [...] -> [..., width] in its dtype, computed in float64."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=t.device)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    angles = (1.0 / period * 2 * math.pi) * t.double()[..., None]
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(t.dtype)


class PaliGemmaSizes(Protocol):
    """What a PaliGemma takes of a network's sizes."""

    @property
    def vision(self) -> VisionConfig: ...
    @property
    def prefix(self) -> GemmaConfig: ...
    @property
    def vocab(self) -> int: ...


def pali_gemma(config: PaliGemmaSizes) -> Holder:
    """`paligemma.model`, named as Hugging Face's PaliGemma."""
    return Holder(
        vision_tower=Holder(vision_model=SigLIP(config.vision)),
        multi_modal_projector=Holder(linear=nn.Linear(config.vision.width, config.prefix.width)),
        language_model=Gemma(config.prefix, modulated=False, vocab=config.vocab),
    )


class Worded(Continued):
    """The half that pi0, pi0.5 and pi0-FAST share: images and words become a prefix, which text continues.

    paligemma: the module with `model` and `lm_head`. first: position of the first token.
    """

    config: Any
    first = 0

    @property
    def paligemma(self) -> Any:
        """`paligemma_with_expert.paligemma`"""
        outer: Any = self.paligemma_with_expert
        return outer.paligemma

    @property
    def dtype(self) -> torch.dtype:
        """Of the prefix stack."""
        return self.language_model.dtype

    @property
    def language_model(self) -> Gemma:
        """The prefix stack."""
        return self.paligemma.model.language_model

    @property
    def stack(self) -> Gemma:
        """The stack that continues a prefix, for packed forwards."""
        return self.language_model

    @property
    def vision(self) -> SigLIP:
        """The image encoder."""
        return self.paligemma.model.vision_tower.vision_model

    @property
    def projector(self) -> nn.Linear:
        """From the image encoder's tokens to the prefix stack's."""
        return self.paligemma.model.multi_modal_projector.linear

    @property
    def embed_table(self) -> Tensor:
        """The token embedding and language head [vocab, W], not scaled."""
        return self.language_model.embed_tokens.weight

    def encode(self, images: Tensor) -> Tensor:
        """images float [N, 3, S, S] in [-1, 1] -> image tokens [N, n_patch, W]. Not scaled by sqrt(W)."""
        model = self.paligemma.model
        return model.multi_modal_projector.linear(model.vision_tower.vision_model(images))

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """tokens int64 [...] -> [..., W], multiplied by sqrt(W)."""
        return self.language_model.embed_tokens(tokens) * math.sqrt(self.config.prefix.width)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., W] -> scores of the next token [..., vocab], through the tied embedding."""
        return F.linear(hidden, self.embed_table)


class Pi(Worded):
    """A pi0 or pi0.5 network of the given sizes, randomly initialised."""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.config = config
        width = config.expert.width
        pi05 = config.kind == "pi05"
        head = nn.Linear(config.prefix.width, config.vocab, bias=False, device="meta")
        self.paligemma_with_expert = Holder(
            paligemma=Holder(model=pali_gemma(config), lm_head=head),
            gemma_expert=Holder(model=Gemma(config.expert, modulated=pi05)),
        )
        self.tie_weights()
        self.action_in_proj = nn.Linear(config.action_dim, width)
        self.action_out_proj = nn.Linear(width, config.action_dim)
        if pi05:
            self.time_mlp_in = nn.Linear(width, width)
            self.time_mlp_out = nn.Linear(width, width)
        else:
            self.state_proj = nn.Linear(config.state_dim, width)
            self.action_time_mlp_in = nn.Linear(2 * width, width)
            self.action_time_mlp_out = nn.Linear(width, width)

    def tie_weights(self) -> None:
        """Make the language head and the token embedding one tensor again, after parameters were replaced."""
        self.paligemma.lm_head.weight = self.embed_table

    @property
    def expert(self) -> Gemma:
        """The action expert."""
        return self.paligemma_with_expert.gemma_expert.model

    def set_precision(self, dtype: torch.dtype) -> Pi:
        """Cast to dtype, except what openpi keeps in float32: patch and position embeddings, Gemma norms, and
        the action, state and time projections."""
        self.to(dtype)
        for module in self.modules():
            if isinstance(module, Embeddings | RMSNorm):
                module.float()
        for name, child in self.named_children():
            if name != "paligemma_with_expert":
                child.float()
        return self

    def velocity(
        self, x: Tensor, t: Tensor, state: Tensor | None, kv: KV, kv_mask: Tensor | None = None
    ) -> Tensor:
        """Evaluate the flow field once: data at t = 0, noise at t = 1.

        x float32 or float64 [B, H, A], noisy normalised actions. t float32 [B], or [B, H] with a time for
        each action (on the CPU, so that no GPU is waited for). state float [B, S]; pi05 ignores it.
        kv: the prefix, T tokens. kv_mask bool [B, T], False = not part of the prefix (padding, absent
        cameras, answer text), None = all valid. Returns [B, H, A] in the dtype of x.
        """
        tokens, condition = self.suffix(x, t, state)
        new, old = tokens.shape[1], kv.k.shape[3]
        positions = _count(tokens, old)
        if kv_mask is not None:
            positions = positions - old + kv_mask.sum(dim=1, keepdim=True)
        mask = self.suffix_mask(new, old, x.device, kv_mask)
        hidden, _, _ = self.expert(tokens, positions, mask, (kv,), condition)
        return self.read_out(hidden, x)

    def suffix(self, x: Tensor, t: Tensor, state: Tensor | None) -> tuple[Tensor, Condition | None]:
        """Return the expert's inputs for a flow step: tokens [B, H or 1 + H, W] and the condition of its
        norms."""
        tokens = self.action_in_proj(x)
        if self.config.kind == "pi05":
            return tokens, self._condition(t, x.device)
        assert state is not None, "pi0 needs the state"
        embedded = time_embedding(t.to(x.device), self.config.expert.width).to(tokens.dtype)
        embedded = embedded[:, None].expand_as(tokens) if t.ndim == 1 else embedded
        timed = torch.cat((tokens, embedded), dim=2)
        tokens = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(timed)))
        return torch.cat((self.state_proj(state.to(x.dtype))[:, None], tokens), dim=1), None

    def read_out(self, hidden: Tensor, x: Tensor) -> Tensor:
        """Return the velocity [B, H, A], in the dtype of x, from the expert's hidden states [B, .., W]."""
        actions = hidden[:, -x.shape[1] :].to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(actions).to(x.dtype)

    def _condition(self, t: Tensor, device: torch.device) -> Condition:
        """Return the condition of pi0.5's norms at times t [B] or [B, H], with few distinct values."""
        if t.ndim == 2:
            columns, inverse = t.unique(dim=1, return_inverse=True)
            values = tuple(self._modulator(column.to(device, copy=True)) for column in columns.unbind(dim=1))
            return PerToken(values, inverse.to(device))
        return self._modulator(t.to(device))

    def _modulator(self, t: Tensor) -> Tensor:
        embedded = time_embedding(t, self.config.expert.width)
        return F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(embedded))))

    def suffix_mask(
        self, suffix: int, old: int, device: torch.device, kv_mask: Tensor | None = None
    ) -> Tensor | None:
        """Return bool [B, suffix, old + suffix]: a suffix token sees the valid prefix and the suffix, but the
        state token of pi0 sees no action. None: all see everything."""
        if kv_mask is None and self.config.kind == "pi05":
            return None
        among = torch.ones(suffix, suffix, dtype=torch.bool, device=device)
        if self.config.kind == "pi0":
            among = torch.cat((torch.arange(suffix, device=device)[None] < 1, among[1:]))
        if kv_mask is None:
            kv_mask = torch.ones(1, old, dtype=torch.bool, device=device)
        batch = kv_mask.shape[0]
        return torch.cat(
            (kv_mask[:, None].expand(batch, suffix, old), among[None].expand(batch, suffix, suffix)), dim=2
        )


def _count(x: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + x.shape[1], device=x.device)[None]
