"""SmolVLA in plain torch: the reference that every faster path is compared with.

It has Pi's methods and signatures: encode (images to tokens), prefix (one pass whose keys and values the
actions read) and velocity (one flow step of the action expert). Differences: the state is the prefix's last
token, which sees everything and is seen only by the actions; actions are causal; and in the cross layers the
expert attends to projections of the prefix's keys and values, at positions that start at zero. There is no
language head, because the layers before it were cut off. Parameter names are those of lerobot's checkpoints
without the leading `model.`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.holder import Holder
from vla_accel_ros.models.layers.vision import SigLIP, joined
from vla_accel_ros.models.network import Network
from vla_accel_ros.models.pi.model import time_embedding
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.stack import Stack, rotary_tables

UNUSED = "vlm_with_expert.vlm.lm_head.weight"


class Connector(nn.Module):
    """Patches [N, side * side, C] to tokens [N, (side / s)^2, W]: s x s neighbours become one token."""

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__()
        self.shuffle = config.shuffle
        joined_width = config.vision.width * config.shuffle**2
        self.modality_projection = Holder(proj=nn.Linear(joined_width, config.prefix.width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.modality_projection.proj(joined(x, self.shuffle))


class SmolVLA(Network):
    """A SmolVLA network of the given sizes, randomly initialised."""

    def __init__(self, config: SmolVLAConfig) -> None:
        super().__init__()
        self.config = config
        width = config.expert.width
        model = Holder(
            vision_model=SigLIP(config.vision),
            connector=Connector(config),
            text_model=Stack(config.prefix, [False] * config.prefix.depth, config.vocab),
        )
        cross = [layer in config.crossing for layer in range(config.expert.depth)]
        self.vlm_with_expert = Holder(vlm=Holder(model=model), lm_expert=Stack(config.expert, cross))
        self.state_proj = nn.Linear(config.state_dim, config.prefix.width)
        self.action_in_proj = nn.Linear(config.action_dim, width)
        self.action_out_proj = nn.Linear(width, config.action_dim)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    @property
    def language_model(self) -> Stack:
        """The prefix stack."""
        return self.vlm_with_expert.vlm.model.text_model

    @property
    def embed_table(self) -> Tensor:
        """The token embedding [vocab, W], not scaled."""
        return self.language_model.embed_tokens.weight

    @property
    def vision(self) -> SigLIP:
        """The image encoder."""
        return self.vlm_with_expert.vlm.model.vision_model

    @property
    def projector(self) -> nn.Linear:
        """From the image encoder's joined tokens to the prefix stack's."""
        return self.vlm_with_expert.vlm.model.connector.modality_projection.proj

    @property
    def expert(self) -> Stack:
        """The action expert."""
        return self.vlm_with_expert.lm_expert

    def set_precision(self, dtype: torch.dtype) -> SmolVLA:
        """Cast to dtype, leaving the state, action and time projections in float32, as lerobot does."""
        self.float()
        self.vlm_with_expert.to(dtype)
        return self

    def encode(self, images: Tensor) -> Tensor:
        """images float [N, 3, S, S] in [-1, 1] -> image tokens [N, tokens, W], multiplied by sqrt(W)."""
        model = self.vlm_with_expert.vlm.model
        tokens = model.connector(model.vision_model(images.to(self.language_model.dtype)))
        return tokens * tokens.new_full((), self.config.prefix.width**0.5)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """tokens int64 [...] -> [..., W], multiplied by sqrt(W)."""
        return self.language_model.embed_tokens(tokens) * math.sqrt(self.config.prefix.width)

    def embed(self, images: Tensor, tokens: Tensor, state: Tensor) -> Tensor:
        """image tokens [B, P, W], prompt [B, T], state [B, S], normalised -> the whole prefix [B, P + T + 1,
        W]."""
        words = self.embed_tokens(tokens)
        last = self.state_proj(state.to(self.state_proj.weight.dtype))[:, None]
        return torch.cat((images.to(words.dtype), words, last), dim=1)

    def prefix(
        self,
        embs: Tensor,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]:
        """Compute the prefix.

        embs [B, T, W], see `embed`; attend bool [B, T, T], True = row may attend to column, None = all see
        all, except that only the last token, the state, sees itself; positions int [B, T], None = 0..T-1. A
        row that may attend to nothing (padding) gives finite but meaningless numbers.
        out: memory for the keys and values, each [layers, B, kv, T, head_dim], instead of allocating it.
        Returns hidden [B, T, W] after the final norm, and the KV of all T tokens.
        """
        tokens = embs.shape[1]
        if positions is None:
            positions = torch.arange(tokens, device=embs.device)[None]
        if attend is None:
            attend = torch.ones(1, tokens, tokens, dtype=torch.bool, device=embs.device)
            attend[:, :-1, -1] = False
        stack, keys, values = self.language_model, [], []
        tables, x = rotary_tables(positions, stack.head_dim), embs
        for layer in stack.layers:
            x, (k, v) = layer(x, tables, attend[:, None])
            keys.append(k)
            values.append(v)
        return stack.norm(x), KV.of(keys, values, out)

    def velocity(
        self, x: Tensor, t: Tensor, state: Tensor | None, kv: KV, kv_mask: Tensor | None = None
    ) -> Tensor:
        """Evaluate the flow field once: data at t = 0, noise at t = 1.

        x float32 or float64 [B, H, A], noisy normalised actions. t float32 [B], or [B, H] with a time for
        each action, on any device. state is ignored, because it is in the prefix.
        kv: the prefix, T tokens. kv_mask bool [B, T], False = not part of the prefix, None = all valid.
        Returns [B, H, A] in the dtype of x.
        """
        tokens, old = self.action_in_proj(x), kv.k.shape[3]
        embedded = time_embedding(t.to(x.device), self.config.expert.width).to(tokens.dtype)
        if t.ndim == 1:
            embedded = embedded[:, None].expand_as(tokens)
        mixed = self.action_time_mlp_in(torch.cat((tokens, embedded), dim=2))
        hidden = self.action_time_mlp_out(F.silu(mixed))

        horizon, stack = x.shape[1], self.expert
        order = torch.arange(horizon, device=x.device)[None]
        valid = torch.ones(1, old, dtype=torch.bool, device=x.device) if kv_mask is None else kv_mask
        tables = rotary_tables(valid.sum(dim=1, keepdim=True) + order, stack.head_dim)
        from_zero = rotary_tables(order, stack.head_dim)
        to_prefix = valid[:, None].expand(-1, horizon, -1)
        causal = torch.ones(len(valid), horizon, horizon, dtype=torch.bool, device=x.device).tril()
        to_all = torch.cat((to_prefix, causal), dim=2)[:, None]
        for index, layer in enumerate(stack.layers):
            past = kv.k[index], kv.v[index]
            if layer.is_cross:
                hidden, _ = layer(hidden, from_zero, to_prefix[:, None], past)
            else:
                hidden, _ = layer(hidden, tables, to_all, past)
        out = stack.norm(hidden).to(self.action_out_proj.weight.dtype)
        return self.action_out_proj(out).to(x.dtype)
