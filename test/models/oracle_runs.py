"""Our pi0 and pi0.5 on a recording's inputs, in one of two layouts: what there is to compare.

"padded" is a batch with masks, as the reference ran it; "packed" is one sample at a time with absent cameras
and padding left out, which is how the engine runs. What comes per token is given for the valid ones alone,
of all samples one after another, so that both layouts give the same numbers in the same order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property

import torch
from oracle import Oracle
from torch import Tensor

from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.pi.model import Pi

Velocity = Callable[[Tensor, float], Tensor]


class Run:
    """model: the recording's own, unless another one with its weights is given."""

    def __init__(self, oracle: Oracle, layout: str, model: Pi | None = None) -> None:
        self.oracle, self.layout = oracle, layout
        self.model = oracle.model if model is None else model
        self.dtype = self.model.action_in_proj.weight.dtype
        self.exact = oracle.exact
        self._valid = oracle["prefix_pad_mask"]
        self._parts = (
            [slice(0, oracle.batch)] if layout == "padded" else [slice(b, b + 1) for b in range(oracle.batch)]
        )

    @cached_property
    def in_float64(self) -> Run:
        """The same weights, computed with as good as no rounding."""
        return Run(self.oracle, self.layout, copy.deepcopy(self.model).double())

    def recorded(self, key: str) -> Tensor:
        """A recorded [B, T, ...] as [tokens, ...]."""
        return self.oracle[key][self._valid]

    def recorded_kv(self, which: str) -> Tensor:
        """See keys_or_values."""
        return by_token(self.oracle[f"prefix_{which}"])[self._valid]

    def embeddings(self) -> Tensor:
        """[tokens, W]"""
        return self._embeddings[self._valid]

    def hidden(self) -> Tensor:
        """[tokens, W]"""
        return torch.cat([_kept(hidden, mask) for hidden, _, mask in self._prefixes])

    def keys_or_values(self, which: str) -> Tensor:
        """[tokens, layers, kv_heads, head_dim]; which: "k" or "v"."""
        return torch.cat([_kept(by_token(getattr(kv, which)), mask) for _, kv, mask in self._prefixes])

    def velocities(self) -> Tensor:
        """[steps, B, H, A], at the recorded states."""
        x, times = self.oracle["x_t"], self.oracle["t"][:, 0].tolist()
        parts = []
        for index, part in enumerate(self._parts):
            velocity = self._velocity(index)
            parts.append(torch.stack([velocity(at[part].to(self.dtype), t) for at, t in zip(x, times)]))
        return torch.cat(parts, dim=1)

    def path(self) -> tuple[Tensor, Tensor]:
        """The states and the velocities [steps, B, H, A] on the way from the recorded noise."""
        states, velocities = [], []
        for index, part in enumerate(self._parts):
            way = _Path(self._velocity(index))
            sample(way, self._noise(part), self.oracle.spec["num_steps"], "openpi")
            states.append(torch.stack(way.states))
            velocities.append(torch.stack(way.velocities))
        return torch.cat(states, dim=1), torch.cat(velocities, dim=1)

    def actions(self, time_rule: str, guidance: tuple[str, str] | None = None) -> Tensor:
        """Sampled [B, H, A], guided in this (form, schedule) by the recorded previous chunk if asked."""
        oracle, out = self.oracle, []
        for index, part in enumerate(self._parts):
            velocity, noise = self._velocity(index), self._noise(part)
            if guidance is not None:
                velocity = Guidance(
                    previous=oracle["rtc_prev"][part],
                    delay=int(oracle["rtc_delay"]),
                    execution=int(oracle["rtc_exec_horizon"]),
                    schedule=guidance[1],
                    jacobian="exact" if guidance[0] == "vjp" else "identity",
                ).guide(velocity, noise)
            out.append(sample(velocity, noise, oracle.spec["num_steps"], time_rule).actions)
        return torch.cat(out)

    def scores(self) -> Tensor:
        """[B, n, vocab], of each recorded token of text; it continues each sample's last valid token."""
        return torch.stack([self._scores(b) for b in range(self.oracle.batch)])

    def _scores(self, b: int) -> Tensor:
        index, row = (0, b) if self.layout == "padded" else (b, 0)
        hidden, kv, mask = self._prefixes[index]
        keep = slice(None) if mask is None else mask[row]
        past = KV(kv.k[:, row : row + 1, :, keep], kv.v[:, row : row + 1, :, keep])
        assert past.k.shape[3] == int(self.oracle["text_n_valid"][b])
        last, tail, scores = hidden[row : row + 1, keep][:, -1:], None, []
        for token in self.oracle["text_tokens"][b]:
            scores.append(self.model.logits(last)[0, 0])
            last, new = self.model.extend(self.model.embed_tokens(token.view(1, 1)), past, tail=tail)
            tail = new if tail is None else KV(*(torch.cat(pair, dim=3) for pair in zip(tail, new)))
        return torch.stack(scores)

    @cached_property
    def _embeddings(self) -> Tensor:
        """[B, T, W], every camera and every token."""
        images = self.oracle.images().to(self.dtype)
        image = self.model.encode(images.flatten(0, 1)).unflatten(0, images.shape[:2]).flatten(1, 2)
        return torch.cat((image, self.model.embed_tokens(self.oracle["tokens"])), dim=1)

    @cached_property
    def _prefixes(self) -> list[tuple[Tensor, KV, Tensor | None]]:
        """(hidden, KV, mask or None if nothing is masked) of each part."""
        if self.layout == "padded":
            valid = self._valid
            attend = valid[:, None, :] & valid[:, :, None]
            hidden, kv = self.model.prefix(self._embeddings, attend, valid.cumsum(dim=1) - 1)
            return [(hidden, kv, valid)]
        packed = (self._embeddings[part][:, self._valid[part][0]] for part in self._parts)
        return [(*self.model.prefix(embs), None) for embs in packed]

    def _noise(self, part: slice) -> Tensor:
        return self.oracle["noise"][part].to(self.dtype)

    def _velocity(self, index: int) -> Velocity:
        """The flow field of a part, in the dtype of x."""
        _, kv, mask = self._prefixes[index]
        state = self.oracle["state"][self._parts[index]].to(self.dtype)

        def velocity(x: Tensor, t: float) -> Tensor:
            return self.model.velocity(x, torch.full((len(x),), t).to(x), state, kv, mask)

        return velocity


class _Path:
    """A velocity that remembers where it was asked and what it said."""

    def __init__(self, velocity: Velocity) -> None:
        self.velocity = velocity
        self.states: list[Tensor] = []
        self.velocities: list[Tensor] = []

    def __call__(self, x: Tensor, t: float) -> Tensor:
        self.states.append(x)
        self.velocities.append(self.velocity(x, t))
        return self.velocities[-1]


def by_token(kv: Tensor, back: bool = False) -> Tensor:
    """Keys or values [layers, B, kv_heads, T, head_dim] as [B, T, layers, kv_heads, head_dim], or back."""
    return kv.permute(2, 0, 3, 1, 4) if back else kv.permute(1, 3, 0, 2, 4)


def _kept(array: Tensor, mask: Tensor | None) -> Tensor:
    return array[0] if mask is None else array[mask]
