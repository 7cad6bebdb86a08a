"""Answers of several frames, written together (OxyGen, cross-frame continuous batching).

Every forward advances all open answers by one token, whatever their prompts, lengths and ages; weights are
read once for all of them. When to do so, and how often per frame, is not decided here: `advance` is one
token's work, or a group of its layers, so that the scheduler can stop between any two. Each answer's tokens
are those that it would have alone.

Between forwards an answer is its tokens and two references: to its prefix's slot, and to the pages of its own
keys and values, all of which are promised to it when it begins (OxyGen, section 3.2). A forward reads both
where they lie (models.layers.packed), so nothing is copied, stacked or padded.

`TextDecoder` answers requests: they are given text, not tokens (models.text.tokenizer), whose pieces wait in
the request until they are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.pool import KVPool, PagePool, PoolExhausted, Tail
from vla_accel_ros.engine.request import Request
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.prefill.layered import sizes
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward, Segment, Span
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import GREEDY, Sampling
from vla_accel_ros.models.text.tokenizer import TextStream

PAGES = 3
"""Of one answer at most: with its prefix they are parts that packed forwards have room for (PARTS there)."""

PAGE_TOKENS = 16
"""Of one page at least."""


InGroups = Callable[[Sequence[Segment]], Iterator["list[Tensor] | None"]]
"""See Answers."""


class Said(NamedTuple):
    """One token of one answer. token: None when the answer ended without one (end of text)."""

    answer: Answer
    token: int | None
    finished: bool


@dataclass(eq=False)
class Answer:
    """A text that continues a prefix. number: in order of beginning; slot, n_tokens: of its prefix; tail:
    keys and values of all of its tokens but the last; hidden [W]: what the next token is read from; tokens:
    ids so far."""

    number: int
    slot: int
    n_tokens: int
    tail: Tail
    hidden: Tensor
    max_tokens: int
    sampling: Sampling
    rng: np.random.Generator
    on_token: Callable[[Said], None] | None
    tokens: list[int] = field(default_factory=list)


class Answers:
    """The answers of one model. Not for several threads at once.

    model: whose language head continues prefixes; stop: the id that ends a text.
    together: False computes every answer's token by itself, to the bit what it is alone
        (models.layers.packed).
    forward: how segments are computed, None = in plain torch.
    in_groups: the same in groups of layers, one for each value that is taken, the last of which is the
        results; None = at once.

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
        self._in_groups: InGroups = in_groups or (lambda segments: iter([self._forward(segments)]))
        self._reading: Generator[None] | None = None  # the token in progress
        self._numbers = itertools.count()
        self.open: list[Answer] = []

    @property
    def in_progress(self) -> bool:
        """Whether some groups of layers of the next token are computed, and others are not."""
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
        on_token: Callable[[Said], None] | None = None,
    ) -> Answer:
        """Continue the first n_tokens of a held slot, until `drop`.

        hidden [W]: of the prefix's last valid token. max_tokens: 1 or more. on_token: called by advance.
        Raises ValueError for a length that cannot be and a slot that nobody holds, PoolExhausted if there is
        no room.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; an answer has at least 1.")
        tail = self._pages.begin(max_tokens - 1)  # the first token needs no place, and the last is never read
        try:
            self._prefixes.retain(slot)
        except ValueError:
            tail.close()
            raise
        number = next(self._numbers)
        rng = np.random.default_rng(number) if rng is None else rng
        answer = Answer(number, slot, n_tokens, tail, hidden.clone(), max_tokens, sampling, rng, on_token)
        self.open.append(answer)
        return answer

    @torch.inference_mode()
    def advance(self) -> list[Said]:
        """One more token for every open answer, oldest first; in groups of layers the next group of it, and
        no token before the last.

        A forward that fails adds no token, and the next call tries again. Every on_token is called; then the
        first exception that one of them raised is raised.
        """
        reading, self._reading = self._reading or self._read(), None
        for _ in reading:
            self._reading = reading
            return []
        said = [self._say(answer, token) for answer, token in zip(self.open, self._chosen(), strict=True)]
        self.open = [one.answer for one in said if not one.finished]
        errors: list[Exception] = []
        for one in said:
            try:
                if one.answer.on_token is not None:
                    one.answer.on_token(one)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return said

    def drop(self, answer: Answer) -> None:
        """Give back what an answer holds, finished or not. Once for each."""
        if answer in self.open:
            self.open.remove(answer)
            if self._reading is not None:  # it would write to what is given back: all begin it again
                self._reading.close()
                self._reading = None
        answer.tail.close()
        self._prefixes.release(answer.slot)

    def _read(self) -> Generator[None]:
        """Compute the last token of each answer, in one forward, unless that was done. Stops behind each
        group of layers but the last."""
        speaking = [answer for answer in self.open if answer.tail.length < len(answer.tokens)]
        if not speaking:
            return
        ids = torch.tensor([[answer.tokens[-1] for answer in speaking]], device=speaking[0].hidden.device)
        words = self._model.embed_tokens(ids).split(1, dim=1)
        try:
            segments = [
                Segment(x, self._past(answer), out=answer.tail.grow())
                for answer, x in zip(speaking, words, strict=True)
            ]
            for read in self._in_groups(segments):
                if read is None:
                    yield
        except BaseException:
            for answer in speaking:
                answer.tail.cut(len(answer.tokens) - 1)
            raise
        assert read is not None
        for answer, rows in zip(speaking, read, strict=True):
            answer.hidden = rows[0, -1]

    def _past(self, answer: Answer) -> tuple[Span, ...]:
        """What its next token looks at: its prefix and its tail, where they lie."""
        return (self._prefixes.span(answer.slot, 0, answer.n_tokens), *answer.tail.parts)

    def _chosen(self) -> list[int]:
        """The next id of each, read from the device once for all that are greedy."""
        if not self.open:
            return []
        if self._together:
            logits = self._model.logits(torch.stack([answer.hidden for answer in self.open]))
        else:
            logits = torch.stack([self._model.logits(answer.hidden) for answer in self.open])
        likeliest = logits.argmax(dim=-1).tolist()
        return [
            int(answer.sampling.choose(row.float()[None], answer.rng))
            if answer.sampling.temperature
            else first
            for answer, row, first in zip(self.open, logits, likeliest, strict=True)
        ]

    def _say(self, answer: Answer, token: int) -> Said:
        if token == self._stop:
            return Said(answer, None, True)
        answer.tokens.append(token)
        return Said(answer, token, len(answer.tokens) == answer.max_tokens)


class TextDecoder:
    """The open answers. pool: of the prefixes. forward: computes tokens, in EngineConfig.text_groups groups
    of layers; None = plain torch, at once."""

    def __init__(
        self, policy: AnyPolicy, config: EngineConfig, pool: KVPool, forward: PackedForward | None = None
    ) -> None:
        page_tokens = max(PAGE_TOKENS, -(-config.answer_tokens // PAGES))
        pages = config.answers * -(-config.answer_tokens // page_tokens)
        self._pages = PagePool(policy.config.prefix, pages, page_tokens, pool.k.device, pool.k.dtype)
        eos = policy.tokenizer.eos
        in_groups: InGroups | None = None
        if forward is not None and config.text_groups > 1:
            in_groups = partial(forward.in_groups, layers=layers_of_groups(policy, config.text_groups))
        self._answers = Answers(policy.model, pool, self._pages, eos, forward=forward, in_groups=in_groups)
        self._tokenizer, self._config, self._device = policy.tokenizer, config, pool.k.device
        self._open: list[Request] = []

    @property
    def places(self) -> int:
        """How many more answers may be begun."""
        return self._config.answers - len(self._open)

    def begin(self, request: Request, hidden: Tensor) -> None:
        """Take in a request whose prefix is held. hidden [W]: of the prefix's last token.

        Raises ValueError for a length that cannot be, PoolExhausted if there is no room.
        """
        most = self._config.answer_tokens
        if not 1 <= request.max_tokens <= most:
            raise ValueError(f"max_tokens is {request.max_tokens}; the engine takes 1 to {most}.")
        if not self.places:
            raise PoolExhausted(
                f"{len(self._open)} answers are open; close one, or give the engine more than "
                f"{self._config.answers} answers."
            )
        seed = (self._config.seed, request.number, 1) if request.seed is None else request.seed
        prefix, text = request.frame, TextStream(self._tokenizer, request.stop)
        request.progress = self._answers.begin(
            prefix.slot,
            prefix.n_tokens,
            hidden,
            request.max_tokens,
            sampling=request.sampling or GREEDY,
            rng=np.random.default_rng(seed),
            on_token=partial(_hear, request, text),
        )
        request.tokens = text.tokens
        self._open.append(request)

    def advance(self) -> Callable[[], None] | None:
        """One more token for every open answer, in one forward, or the next group of it; returns what waits
        for one that is not the last."""
        with torch.inference_mode():
            self._answers.advance()
        for request in self._open:
            request.partial = self._answers.in_progress
        if not self._answers.in_progress or self._device.type != "cuda":
            return None
        return torch.cuda.current_stream(self._device).record_event().synchronize

    def drop(self, request: Request) -> None:
        """Give back what an answer holds."""
        if request in self._open:
            self._open.remove(request)
            self._answers.drop(request.progress)

    def prepare(self, slot: int, n_tokens: int, hidden: Tensor) -> None:
        """Have the forwards of every number of answers made, on a held prefix."""
        most, tokens = self._config.answers, min(2, self._config.answer_tokens)
        counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
        any_word = Sampling(temperature=100.0)  # hardly the end of the text
        with torch.inference_mode():
            for count in (*counts, most):
                begun = [
                    self._answers.begin(slot, n_tokens, hidden, tokens, sampling=any_word)
                    for _ in range(count)
                ]
                while self._answers.open:
                    self._answers.advance()
                for answer in begun:
                    self._answers.drop(answer)


def layers_of_groups(policy: AnyPolicy, count: int) -> list[int]:
    """How many layers are in each of `count` groups of about the same weights; the language head comes behind
    the last. Raises ValueError where there are fewer layers."""
    prefix, words = policy.config.prefix, policy.config.vocab
    attention = 2 * (prefix.heads + prefix.kv_heads) * prefix.head_dim
    layer = float(prefix.width * (attention + 3 * prefix.mlp))
    return sizes([*[layer] * (prefix.depth - 1), layer + words * prefix.width], count)


def _hear(request: Request, text: TextStream, said: Said) -> None:
    """Take a token in. One that cannot be read ends this answer and no other."""
    try:
        if said.token is not None:
            _add(request, text.push(said.token))
        if said.finished:
            _add(request, text.finish())
        request.finished = said.finished or text.ended
    except Exception as error:
        request.error, request.finished = error, True


def _add(request: Request, piece: str) -> None:
    if piece:
        request.pieces.append(piece)
        request.result = f"{request.result or ''}{piece}"
