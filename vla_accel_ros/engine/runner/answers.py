"""Answers about several frames, decoded together (OxyGen, cross-frame continuous batching).

Every forward advances all open answers by one token, whatever their prompts, lengths and ages, so the weights
are read once for all of them. `advance` computes one token, or one group of its layers, so that the scheduler
can stop between any two; the scheduler decides when to call it. Each answer has the same tokens that it would
have alone.

Between forwards an answer is its tokens and two references: to its prefix's slot, and to the pages of its own
keys and values, all of which are reserved when it begins (OxyGen, section 3.2). A forward reads both in place
(models.layers.packed), so nothing is copied, stacked or padded.

On a GPU no launch waits for a token: the next token's embedding reads the chosen id on the device, and the id
is copied to page-locked host memory for its reader. Only sampled ids come from the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pages import PagePool, Tail
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.packed_forward import NextWords
from vla_accel_ros.engine.stages.stage import put
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward, Segment, Span
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.text.decoding import GREEDY, Sampling

InGroups = Callable[[Sequence[Tensor], Sequence[Segment]], Iterator[NextWords | None]]
"""Computes a forward in groups of layers; see Answers."""


class Said(NamedTuple):
    """One token of one answer. token: None if the answer ended without one (end of text)."""

    answer: Answer
    token: int | None
    finished: bool


@dataclass(eq=False)
class Answer:
    """A text that continues a prefix. number: in order of beginning; slot, n_tokens: of its prefix; tail:
    keys and values of all of its tokens but the last; hidden [W]: the state that gives the next token;
    tokens: ids so far; chosen int64 []: the last id on the device, None if it was sampled on the host."""

    number: int
    slot: int
    n_tokens: int
    tail: Tail
    hidden: Tensor
    max_tokens: int
    sampling: Sampling
    rng: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    chosen: Tensor | None = None


class _Choice(NamedTuple):
    """The likeliest id int64 [] and the logits [vocab], on the device."""

    likeliest: Tensor
    scores: Tensor


class Answers:
    """The answers of one model. Not safe for several threads at once.

    model: its language head continues prefixes; stop: the end-of-text id.
    together: False computes every answer's token by itself, bit for bit as if it were alone
        (models.layers.packed).
    forward: computes segments, None = in plain torch.
    in_groups: takes the ids and segments of a token (it ignores the segments' x) and yields once per group of
        layers: None, and the forward's result after the last; None = `forward` computes all at once.

    Attribute `open`: answers that are not finished, oldest first.
    """

    def __init__(
        self,
        model: Pi | OpenVLA,
        prefixes: KVPool,
        pages: PagePool,
        stop: int | None,
        together: bool = True,
        forward: Forward | None = None,
        in_groups: InGroups | None = None,
    ) -> None:
        self._model, self._stop, self._together = model, stop, together
        self._prefixes, self._pages = prefixes, pages
        torch_forward = partial(packed.forward, model.stack, together=together)
        self._forward: Forward = torch_forward if forward is None else forward
        self._in_groups = in_groups
        self._reading: Generator[None, None, dict[Answer, _Choice]] | None = None  # the token in progress
        self._device = prefixes.k.device
        self._blank = prefixes.k.new_zeros(1, 1, model.config.prefix.width)
        self._numbers = itertools.count()
        self.open: list[Answer] = []

    @property
    def in_progress(self) -> bool:
        """Whether only some groups of layers of the next token are computed."""
        return self._reading is not None

    def begin(
        self,
        slot: int,
        n_tokens: int,
        hidden: Tensor,
        max_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        rng: np.random.Generator | None = None,
    ) -> Answer:
        """Continue the first n_tokens of a held slot, until `drop`.

        hidden [W]: of the prefix's last valid token. max_tokens: 1 or more.
        Raises ValueError if max_tokens is below 1 or nobody holds the slot, PoolExhausted if there is no
        room.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; an answer has at least 1.")
        hidden = hidden.clone()  # first: it may fail, and nothing is held yet
        tail = self._pages.begin(max_tokens - 1)  # the first token needs no place, and the last is never read
        try:
            self._prefixes.retain(slot)
        except ValueError:
            tail.close()
            raise
        number = next(self._numbers)
        rng = np.random.default_rng(number) if rng is None else rng
        answer = Answer(number, slot, n_tokens, tail, hidden, max_tokens, sampling, rng)
        self.open.append(answer)
        return answer

    def advance(self) -> list[Said]:
        """Compute one more token for every open answer, oldest first, or with groups of layers the next
        group, which gives no token before the last. Blocks until it is computed.

        A forward that fails adds no token, and the next call tries again.
        """
        say = self.launch()
        if self._device.type == "cuda":
            current_stream(self._device).synchronize()
        return say()

    @torch.inference_mode()
    def launch(self) -> Callable[[], list[Said]]:
        """Like advance, without blocking. Call the returned function before the next token is launched, once
        the work now in the current stream is done; it leaves out answers that were dropped meanwhile."""
        reading, self._reading = self._reading or self._read(), None
        try:
            next(reading)
        except StopIteration as over:
            read = cast("dict[Answer, _Choice]", over.value)
        else:
            self._reading = reading
            return list
        if not self.open:
            return list
        answers = tuple(self.open)
        read |= self._scored([answer for answer in answers if answer not in read])
        ids = torch.stack([read[answer].likeliest for answer in answers])
        for answer, token in zip(answers, ids, strict=True):
            answer.chosen = token
        drawn = [answer for answer in answers if answer.sampling.temperature]
        scores = {answer: to_host(read[answer].scores) for answer in drawn}
        return partial(self._hear, answers, to_host(ids), scores)

    def _hear(self, answers: Sequence[Answer], likeliest: Tensor, scores: dict[Answer, Tensor]) -> list[Said]:
        """Add the chosen tokens. likeliest: ids int64 [answers] on the host; scores: logits [vocab] of the
        answers that sample."""
        tokens: dict[Answer, int] = dict(zip(answers, likeliest.tolist(), strict=True))
        answered = [answer for answer in answers if answer in self.open]
        for answer in answered:
            if answer in scores:
                tokens[answer] = int(answer.sampling.choose(scores[answer].float()[None], answer.rng))
                answer.chosen = None
        tokens_said = [self._say(answer, tokens[answer]) for answer in answered]
        for token_said in tokens_said:
            if token_said.finished:
                self.open.remove(token_said.answer)
        return tokens_said

    def drop(self, answer: Answer) -> None:
        """Free what an answer holds, finished or not. Call it once for each answer."""
        if answer in self.open:
            self.open.remove(answer)
            if self._reading is not None:  # it would write to freed memory: all answers begin the token again
                self._reading.close()
                self._reading = None
        answer.tail.close()
        self._prefixes.release(answer.slot)

    def _read(self) -> Generator[None, None, dict[Answer, _Choice]]:
        """Compute the last token of each answer, in one forward, unless that was done; returns the forward's
        choices, if it makes any. Yields after each group of layers but the last."""
        speaking = [answer for answer in self.open if answer.tail.length < len(answer.tokens)]
        if not speaking:
            return {}
        ids = [self._last(answer) for answer in speaking]
        words = self._embedded(ids) if self._in_groups is None else [self._blank] * len(ids)
        results = None
        try:
            segments = [
                Segment(x, self._past(answer), out=answer.tail.grow())
                for answer, x in zip(speaking, words, strict=True)
            ]
            if self._in_groups is None:
                rows = self._forward(segments)
            else:
                for results in self._in_groups(ids, segments):
                    if results is None:
                        yield
                assert results is not None
                rows = results.hidden
        except BaseException:
            for answer in speaking:
                answer.tail.cut(len(answer.tokens) - 1)
            raise
        for answer, hidden in zip(speaking, rows, strict=True):
            answer.hidden = hidden[0, -1]
        if results is None:
            return {}
        choices = map(_Choice, results.likeliest, results.scores)
        return dict(zip(speaking, choices, strict=True))

    def _last(self, answer: Answer) -> Tensor:
        """The id int64 [] of an answer's last token, on the device."""
        if answer.chosen is None:
            answer.chosen = torch.empty((), dtype=torch.int64, device=self._device)
            put(answer.chosen, torch.tensor(answer.tokens[-1]))
        return answer.chosen

    def _embedded(self, ids: Sequence[Tensor]) -> Sequence[Tensor]:
        """Embeddings of the ids, [1, 1, W] each."""
        return self._model.embed_tokens(torch.stack([*ids])[None]).split(1, dim=1)

    def _past(self, answer: Answer) -> tuple[Span, ...]:
        """The keys and values that the next token attends to, in place: the prefix's and the tail's."""
        return (self._prefixes.span(answer.slot, 0, answer.n_tokens), *answer.tail.parts)

    def _scored(self, answers: Sequence[Answer]) -> dict[Answer, _Choice]:
        """Choices from the answers' hidden states, in one product."""
        if not answers:
            return {}
        if self._together:
            scores = self._model.logits(torch.stack([answer.hidden for answer in answers]))
        else:
            scores = torch.stack([self._model.logits(answer.hidden) for answer in answers])
        choices = map(_Choice, scores.argmax(dim=-1), scores)
        return dict(zip(answers, choices, strict=True))

    def _say(self, answer: Answer, token: int) -> Said:
        if token == self._stop:
            return Said(answer, None, True)
        answer.tokens.append(token)
        return Said(answer, token, len(answer.tokens) == answer.max_tokens)


def to_host(values: Tensor) -> Tensor:
    """A copy in page-locked memory, valid once the work now in the current stream is done. The memory is
    reused when nobody refers to it and the copy has ended."""
    if not values.is_cuda:
        return values.clone()
    answered = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return answered.copy_(values, non_blocking=True)
