"""Training samples on the training device: statistics, encoding, random batches.

The dataset is a list of parts, one for each round, each a few flat tensors, so adding a round copies nothing.
Images stay uint8 until a batch is drawn. Colours are jittered then, because no two renderers or cameras agree
on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training import vocabulary
from training.objective import Batch
from vla_accel_ros.models.processing.conventions import Normalizer, pi05_prompt, state_bins

MAX_ANSWER = 8
Arrays = Mapping[str, np.ndarray]
"""One part: front, wrist uint8 [N, 3, S, S]; state float32 [N, D]; chunk float32 [N, H, D] absolute;
instruction, answer str [N]; uv float32 [N, 2, 2]; uv_mask bool [N, 2]."""


@dataclass(frozen=True)
class Statistics:
    """Normalisation of states and (delta) actions, in openpi's norm_stats form.

    The state's q01 and q99 are the data's extremes plus a margin, because pi0.5 writes a state below q01 as
    bin -1, a word that a word-level vocabulary does not have.
    """

    state: dict[str, list[float]]
    actions: dict[str, list[float]]

    @classmethod
    def of(cls, part: Arrays, delta_mask: np.ndarray) -> Statistics:
        """Compute them from the first round's data, over all samples and all actions of a chunk."""
        actions = relative(part, delta_mask)
        state, low, high = _describe(part["state"]), part["state"].min(0), part["state"].max(0)
        margin = 0.05 * (high - low)
        state |= {"q01": _rounded(low - margin), "q99": _rounded(high + margin)}
        return cls(state, _describe(actions.reshape(-1, actions.shape[-1])))

    def normalizers(self) -> tuple[Normalizer, Normalizer]:
        """Return (state, actions), by quantiles as in pi0.5."""
        state, actions = (
            Normalizer.quantile(np.array(stats["q01"]), np.array(stats["q99"]))
            for stats in (self.state, self.actions)
        )
        return state, actions


def relative(part: Arrays, delta_mask: np.ndarray) -> np.ndarray:
    """Return the chunks float32 [N, H, D] with delta joints relative to the observed state."""
    return part["chunk"] - np.where(delta_mask, part["state"], 0.0)[:, None].astype(np.float32)


def _describe(values: np.ndarray) -> dict[str, list[float]]:
    q01, q99 = np.quantile(values[:: max(1, len(values) // 1_000_000)], (0.01, 0.99), axis=0)
    rows = {"mean": values.mean(0), "std": values.std(0), "q01": q01, "q99": q99}
    return {name: _rounded(row) for name, row in rows.items()}


def _rounded(row: np.ndarray) -> list[float]:
    return [round(float(x), 6) for x in row]


@dataclass(frozen=True)
class Part:
    """One round's encoded samples on the training device."""

    images: Tensor  # uint8 [N, 2, 3, S, S]
    tokens: Tensor  # [N, P]
    token_mask: Tensor
    answer: Tensor  # [N, A]
    answer_mask: Tensor
    actions: Tensor  # float32 [N, H, D]
    uv: Tensor
    uv_mask: Tensor

    @classmethod
    def of(cls, part: Arrays, statistics: Statistics, delta_mask: np.ndarray, device: torch.device) -> Part:
        """Encode one round."""
        state, actions = statistics.normalizers()
        tokens = _prompts(part["instruction"], state.normalize(part["state"]))
        answers = _answers(part["answer"])
        normal = actions.normalize(relative(part, delta_mask)).astype(np.float32)
        images = torch.empty((len(normal), 2, *part["front"].shape[1:]), dtype=torch.uint8, device=device)
        for view, name in enumerate(("front", "wrist")):
            images[:, view] = torch.from_numpy(part[name]).to(device)
        return cls(
            images,
            *(torch.from_numpy(a).to(device) for a in (tokens, tokens != vocabulary.PAD)),
            *(torch.from_numpy(a).to(device) for a in (answers, answers != vocabulary.PAD)),
            *(
                torch.from_numpy(np.ascontiguousarray(a)).to(device)
                for a in (normal, part["uv"], part["uv_mask"])
            ),
        )

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, index: Tensor) -> list[Tensor]:
        """Return these rows of every field."""
        return [getattr(self, name)[index] for name in self.__dataclass_fields__]


def batch(parts: list[Part], size: int, generator: torch.Generator) -> Batch:
    """Return a batch drawn uniformly from all parts, with jittered colours."""
    total = sum(map(len, parts))
    index = torch.randint(total, (size,), device=generator.device, generator=generator).sort().values
    batches, start = [], 0
    for part in parts:
        local = index[(index >= start) & (index < start + len(part))] - start
        batches.append(part.take(local))
        start += len(part)
    images, *rest = (torch.cat(column) for column in zip(*batches, strict=True))
    return Batch(jitter(images, generator), *rest)


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """uint8 [B, V, 3, S, S] -> float in [-1, 1], with colours and noise varied for each image."""

    def spread(shape: tuple[int, ...], amount: float) -> Tensor:
        return (torch.rand(shape, device=images.device, generator=generator) * 2 - 1) * amount

    lead = images.shape[:2]
    x = images.float() / 255
    contrast, gain = 1 + spread((*lead, 1, 1, 1), 0.15), 1 + spread((*lead, 3, 1, 1), 0.06)
    x = (x - 0.5) * contrast * gain + 0.5 + spread((*lead, 1, 1, 1), 0.08)
    x = x + torch.randn(x.shape, device=x.device, generator=generator) * 0.01
    return x.clamp(0, 1) * 2 - 1


def _prompts(instructions: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return int64 [N, P] padded prompts, equal to those of `Policy.inputs`, one instruction at a time."""
    tokenizer = vocabulary.build()
    bins = state_bins(state).clip(0, vocabulary.STATE_BINS - 1)
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for instruction in np.unique(instructions):
        template = np.array(
            [vocabulary.BOS, *tokenizer.encode(pi05_prompt(str(instruction), np.zeros(state.shape[1]))).ids]
        )
        slots = np.flatnonzero(template >= vocabulary.FIRST_BIN)
        assert len(slots) == state.shape[1], (
            f"'{instruction}' has a number in it, or the prompt lost its state"
        )
        where = np.flatnonzero(instructions == instruction)
        filled = np.repeat(template[None], len(where), 0)
        filled[:, slots] = vocabulary.FIRST_BIN + bins[where]
        rows.append((where, filled))
    tokens = np.full((len(state), max(r.shape[1] for _, r in rows)), vocabulary.PAD, dtype=np.int64)
    for where, filled in rows:
        tokens[where, : filled.shape[1]] = filled
    return tokens


def _answers(answers: np.ndarray) -> np.ndarray:
    """Return int64 [N, MAX_ANSWER] padded answers, each ending in eos."""
    tokenizer = vocabulary.build()
    unique, inverse = np.unique(answers, return_inverse=True)
    table = np.full((len(unique), MAX_ANSWER), vocabulary.PAD, dtype=np.int64)
    for row, answer in enumerate(unique):
        ids = [*tokenizer.encode(str(answer)).ids, vocabulary.EOS]
        table[row, : len(ids)] = ids
    return table[inverse]
