"""Action tokens of consecutive camera frames, several frames in one forward (ActionFlow, section 3).

A frame's K greedy tokens need a prefill and K - 1 decodes, and alone each decode reads every weight for one
row. Here the decodes of earlier frames ride in the prefill of the newest: one forward per frame, and every
forward finishes a frame. That is the pipelined mode, for rate. The speculative mode, for freshness, puts the
tokens of the last finished frame behind the new prompt as a draft: where the network would have said the
same, the frame is finished in its own prefill; from the first difference on its decodes ride as before.
Either way a frame's tokens are its greedy tokens. Every frame has a slot of the pool to itself from its
prompt to its last token, so keys and values are never moved; slots are reused, not shifted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.models import packed
from vla_accel_ros.models.openvla import OpenVLA
from vla_accel_ros.models.packed import Forward, Segment


class Finished(NamedTuple):
    """frame: as it was given to step; tokens: its K greedy ids; forwards: that it took, 1 to K;
    drafted, accepted: tokens that were proposed for it, and how many the network would have said too."""

    frame: int
    tokens: tuple[int, ...]
    forwards: int
    drafted: int
    accepted: int


@dataclass
class _Frame:
    number: int
    slot: int
    prompt: int  # its tokens
    tokens: list[int] = field(default_factory=list)
    forwards: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def known(self) -> int:
        """Tokens whose keys and values are in the slot: the last one said is not."""
        return self.prompt + len(self.tokens) - 1


class TokenPipeline:
    """The frames of one robot on their way to K tokens each. Not for several threads at once.

    model: a causal network. pool: slots of at least prompt + K - 1 tokens; K slots for the pipeline to fill.
    together: False computes every frame's rows by itself, to the bit what they are alone (models.packed).
    forward: how segments are computed, None = in plain torch.
    """

    def __init__(
        self,
        model: OpenVLA,
        pool: KVPool,
        tokens: int,
        together: bool = True,
        forward: Forward | None = None,
    ) -> None:
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; a frame needs at least 1.")
        self._model, self._pool, self._wanted = model, pool, tokens
        stack = model.language_model.model
        self._forward = partial(packed.forward, stack, together=together) if forward is None else forward
        self._frames: list[_Frame] = []

    @property
    def tokens(self) -> int:
        """K, of a frame."""
        return self._wanted

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Numbers of the frames that have tokens to come, oldest first."""
        return tuple(frame.number for frame in self._frames)

    @torch.inference_mode()
    def step(
        self, frame: int | None = None, embeddings: Tensor | None = None, draft: tuple[int, ...] = ()
    ) -> list[Finished]:
        """One forward: a new frame's prefill, and the next token of every frame in flight.

        frame, embeddings [1, T, W]: the new frame's number and prompt; None if there is none, then only the
        others go on. draft: ids that it may say, the likeliest being what the last frame said; all but the
        last K - 1 of them are of no use. Returns what is finished, oldest first.
        Raises PoolExhausted if the new frame finds no slot; nothing has changed then.
        """
        new = None if frame is None else self._admit(frame, embeddings, draft)
        try:
            self._advance(new, embeddings, draft)
        except BaseException:
            if new is not None:
                self._pool.release(new.slot)
            raise
        if new is not None:
            self._frames.append(new)
        return self._finish()

    def drain(self) -> list[Finished]:
        """Finish what is in flight, without a new frame."""
        finished = []
        while self._frames:
            finished += self.step()
        return finished

    def drop(self, frame: int) -> None:
        """Forget a frame in flight, as when the instruction has changed. Raises KeyError if it is not."""
        found = [one for one in self._frames if one.number == frame]
        if not found:
            raise KeyError(f"frame {frame} is not in flight: {list(self.in_flight)} are")
        self._pool.release(found[0].slot)
        self._frames.remove(found[0])

    def clear(self) -> None:
        """Forget all frames in flight."""
        for frame in self.in_flight:
            self.drop(frame)

    def _advance(self, new: _Frame | None, embeddings: Tensor | None, draft: tuple[int, ...]) -> None:
        segments = self._decodes()
        if new is not None and embeddings is not None:
            segments.append(self._prefill(new, embeddings, draft[: new.drafted]))
        hidden = self._forward(segments)
        if new is not None:
            hidden[-1] = hidden[-1][:, new.prompt - 1 :]
        said = self._said(hidden)
        if new is not None:
            self._verify(new, said.pop(), draft)
        for frame, ids in zip(self._frames, said, strict=True):
            frame.tokens += ids

    def _admit(self, frame: int, embeddings: Tensor | None, draft: tuple[int, ...]) -> _Frame:
        assert embeddings is not None, "a frame has a prompt"
        prompt = embeddings.shape[1]
        if prompt + self._wanted - 1 > self._pool.max_tokens:
            raise ValueError(
                f"frame {frame} needs {prompt} + {self._wanted - 1} tokens but a KV slot has "
                f"{self._pool.max_tokens}: shorten the instruction or give the pool longer slots"
            )
        drafted = min(len(draft), self._wanted - 1)
        return _Frame(frame, self._pool.acquire(), prompt, drafted=drafted)

    def _prefill(self, frame: _Frame, embeddings: Tensor, draft: tuple[int, ...]) -> Segment:
        x = embeddings
        if draft:
            ids = torch.tensor([draft], device=x.device)
            x = torch.cat((x, self._model.embed_tokens(ids).to(x.dtype)), dim=1)
        rows = x.shape[1]
        return Segment(x, causal=True, out=self._pool.span(frame.slot, 0, rows))

    def _decodes(self) -> list[Segment]:
        if not self._frames:
            return []
        ids = torch.tensor([[frame.tokens[-1] for frame in self._frames]], device=self._model.device)
        return [
            Segment(
                x,
                (self._pool.span(frame.slot, 0, frame.known),),
                out=self._pool.span(frame.slot, frame.known, frame.known + 1),
            )
            for frame, x in zip(self._frames, self._model.embed_tokens(ids).split(1, dim=1), strict=True)
        ]

    def _said(self, hidden: list[Tensor]) -> list[list[int]]:
        """The likeliest id after each row, read from the device once."""
        if not hidden:
            return []
        rows = torch.cat(hidden, dim=1)
        ids = self._model.logits(rows)[0].argmax(dim=-1).tolist()
        said = []
        for part in hidden:
            said.append(ids[: part.shape[1]])
            ids = ids[part.shape[1] :]
        return said

    def _verify(self, frame: _Frame, said: list[int], draft: tuple[int, ...]) -> None:
        """Keep what was said up to the first token that the draft has otherwise, and that one too."""
        while frame.accepted < frame.drafted and said[frame.accepted] == draft[frame.accepted]:
            frame.accepted += 1
        frame.tokens = said[: frame.accepted + 1]

    def _finish(self) -> list[Finished]:
        finished = []
        for frame in list(self._frames):
            frame.forwards += 1
            if len(frame.tokens) == self._wanted:
                self._pool.release(frame.slot)
                self._frames.remove(frame)
                ids = tuple(frame.tokens)
                finished.append(Finished(frame.number, ids, frame.forwards, frame.drafted, frame.accepted))
        return finished
