"""What networks of policies share: a device and a dtype, and a prefix that text or actions continue."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from vla_accel_ros.models.layers.gemma import KV

_N = TypeVar("_N", bound="Network")


class Network(nn.Module):
    """A whole network. Its first parameter is one that no stage moves or frees."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of what a prefix leaves."""
        return next(self.parameters()).dtype

    def set_precision(self: _N, dtype: torch.dtype) -> _N:
        """Cast to dtype, except what the family's own code keeps in float32."""
        return self.to(dtype)


class Continued(Network):
    """A network whose decoder stack, `stack`, computes a prefix, and tokens that continue it. causal: whether
    no token of a prefix sees a later one."""

    causal: ClassVar[bool] = False

    @property
    def stack(self) -> Any:
        """The stack, a layers.gemma.Gemma or layers.llama.Llama."""
        raise NotImplementedError

    def prefix(
        self,
        embs: Tensor,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]:
        """Compute the prefix.

        embs [B, T, W]; attend bool [B, T, T], True = row may attend to column, None = all see all, or what
        came before if the network is causal; positions int [B, T], None = 0..T-1. A row that may attend to
        nothing (padding) gives finite but meaningless numbers.
        out: memory for the keys and values, each [layers, B, kv, T, head_dim], instead of allocating it.
        Returns hidden [B, T, W] after the final norm, and the KV of all T tokens.
        """
        return self._run(embs, (), attend, positions, out, self.causal)

    def extend(
        self,
        embs: Tensor,
        past: KV,
        attend: Tensor | None = None,
        positions: Tensor | None = None,
        tail: KV | None = None,
        out: KV | None = None,
    ) -> tuple[Tensor, KV]:
        """Continue a prefix causally.

        embs [B, t, W]. past: the prefix, P tokens. tail: tokens that already continue it, R tokens. attend
        bool [B, t, P + R + t], None = all of past and tail, and causal within embs. positions int [B, t],
        None = P + R onwards. out: as in prefix.
        Returns hidden [B, t, W] and the KV of the t new tokens alone.
        """
        before = (past,) if tail is None else (past, tail)
        return self._run(embs, before, attend, positions, out, True)

    def _run(
        self,
        embs: Tensor,
        before: tuple[KV, ...],
        attend: Tensor | None,
        positions: Tensor | None,
        out: KV | None,
        causal: bool,
    ) -> tuple[Tensor, KV]:
        old, new = sum(kv.k.shape[3] for kv in before), embs.shape[1]
        if positions is None:
            positions = torch.arange(old, old + new, device=embs.device)[None]
        if attend is None and causal and new > 1:
            attend = torch.ones(1, new, old + new, dtype=torch.bool, device=embs.device).tril(old)
        hidden, keys, values = self.stack(embs, positions, attend, before)
        return hidden, KV.of(keys, values, out)
