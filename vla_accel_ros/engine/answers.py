"""Answers of several frames, written together (OxyGen, cross-frame continuous batching).

Every forward advances all open answers by one token, whatever their prompts, lengths and ages; weights are
read once for all of them. When to do so, and how often per frame, is not decided here: `advance` is one
token's work, or a group of its layers, so that the scheduler can stop between any two. Each answer's tokens
are those that it would have alone. `TextDecoder` answers requests: they are given text, not tokens
(models.text.detokenizer), whose pieces wait in the request until they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted
from vla_accel_ros.engine.kv.store import KVStore, PagePool, State
from vla_accel_ros.engine.request import Request
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.prefill.layered import sizes
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward, Segment
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import GREEDY, Sampling
from vla_accel_ros.models.text.detokenizer import TextStream

PAGES = 3
"""Of one answer at most: with its prefix they are parts that packed forwards have room for (PARTS there)."""

PAGE_TOKENS = 16
"""Of one page at least."""


InGroups = Callable[[Sequence[Segment]], Iterator["list[Tensor] | None"]]
"""See Answers."""


class Said(NamedTuple):
    """One token of one answer. token: None when the answer ended without one (end of text)."""

    request: int
    token: int | None
    finished: bool


@dataclass
class _Answer:
    state: State
    hidden: Tensor  # [W], what the next token is read from
    max_tokens: int
    sampling: Sampling
    rng: np.random.Generator
    on_token: Callable[[Said], None] | None


class Answers:
    """The answers of one model. Not for several threads at once.

    model: whose language head continues prefixes; stop: the id that ends a text.
    together: False computes every answer's token by itself, to the bit what it is alone
        (models.layers.packed).
    forward: how segments are computed, None = in plain torch.
    in_groups: the same in groups of layers, one for each value that is taken, the last of which is the
        results; None = at once.
    """

    def __init__(
        self,
        model: Pi | OpenVLA,
        store: KVStore,
        stop: int | None,
        together: bool = True,
        forward: Forward | None = None,
        in_groups: InGroups | None = None,
    ) -> None:
        self._model, self._store, self._stop, self._together = model, store, stop, together
        torch_forward = partial(packed.forward, model.stack, together=together)
        self._forward: Forward = torch_forward if forward is None else forward
        self._in_groups: InGroups = in_groups or (lambda segments: iter([self._forward(segments)]))
        self._reading: Generator[None] | None = None  # the token in progress
        self._answers: dict[int, _Answer] = {}

    @property
    def in_progress(self) -> bool:
        """Whether some groups of layers of the next token are computed, and others are not."""
        return self._reading is not None

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Requests that are not finished, oldest first."""
        return tuple(self._answers)

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
    ) -> int:
        """Take in a request to continue a held prefix; returns its number.

        hidden [W]: of the prefix's last valid token. max_tokens: 1 or more. on_token: called by advance.
        Raises ValueError for a length that cannot be, PoolExhausted if there is no room.
        """
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; an answer has at least 1.")
        state = self._store.store(slot, n_tokens, max_tokens)
        made = np.random.default_rng(state.request) if rng is None else rng
        hidden = hidden.clone()
        self._answers[state.request] = _Answer(state, hidden, max_tokens, sampling, made, on_token)
        return state.request

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
        answers = list(self._answers.values())
        said = [self._say(answer, token) for answer, token in zip(answers, self._chosen(answers))]
        for one in said:
            if one.finished:
                del self._answers[one.request]
                self._store.finish(one.request)
        errors: list[Exception] = []
        for answer, one in zip(answers, said, strict=True):
            try:
                if answer.on_token is not None:
                    answer.on_token(one)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return said

    def cancel(self, request: int) -> None:
        """Break an answer off and give back what it holds. Raises KeyError if it is not open."""
        if request not in self._answers:
            raise KeyError(f"answer {request} is not open: {list(self._answers)} are")
        if self._reading is not None:  # it would write to what is given back: all begin it again
            self._reading.close()
            self._reading = None
        del self._answers[request]
        self._store.remove(request)

    def _read(self) -> Generator[None]:
        """Compute the last token of each answer, in one forward, unless that was done. Stops behind each
        group of layers but the last."""
        states = [(answer, answer.state) for answer in self._answers.values()]
        speaking = [answer for answer, state in states if state.tail.length < len(state.tokens)]
        if not speaking:
            return
        ids = torch.tensor(
            [[answer.state.tokens[-1] for answer in speaking]], device=speaking[0].hidden.device
        )
        words = self._model.embed_tokens(ids).split(1, dim=1)
        try:
            segments = [
                Segment(x, self._store.past(answer.state), out=answer.state.tail.grow())
                for answer, x in zip(speaking, words, strict=True)
            ]
            for read in self._in_groups(segments):
                if read is None:
                    yield
        except BaseException:
            for answer in speaking:
                answer.state.tail.cut(len(answer.state.tokens) - 1)
            raise
        assert read is not None
        for answer, rows in zip(speaking, read, strict=True):
            answer.hidden = rows[0, -1]

    def _chosen(self, answers: list[_Answer]) -> list[int]:
        """The next id of each, read from the device once for all that are greedy."""
        if not answers:
            return []
        if self._together:
            logits = self._model.logits(torch.stack([answer.hidden for answer in answers]))
        else:
            logits = torch.stack([self._model.logits(answer.hidden) for answer in answers])
        likeliest = logits.argmax(dim=-1).tolist()
        return [
            int(answer.sampling.choose(row.float()[None], answer.rng))
            if answer.sampling.temperature
            else first
            for answer, row, first in zip(answers, logits, likeliest, strict=True)
        ]

    def _say(self, answer: _Answer, token: int) -> Said:
        if token == self._stop:
            return Said(answer.state.request, None, True)
        answer.state.tokens.append(token)
        return Said(answer.state.request, token, len(answer.state.tokens) == answer.max_tokens)


class TextDecoder:
    """The open answers. pool: of the prefixes. forward: computes tokens, in EngineConfig.text_groups groups
    of layers; None = plain torch, at once."""

    def __init__(
        self, policy: AnyPolicy, config: EngineConfig, pool: KVPool, forward: PackedForward | None = None
    ) -> None:
        page_tokens = max(PAGE_TOKENS, -(-config.answer_tokens // PAGES))
        pages = config.answers * -(-config.answer_tokens // page_tokens)
        memory = PagePool(policy.config.prefix, pages, page_tokens, pool.k.device, pool.k.dtype)
        plain: Forward = partial(packed.forward, policy.model.stack)
        self._store = KVStore(pool, memory)
        in_groups: InGroups | None = None
        if forward is not None and config.text_groups > 1:
            in_groups = partial(forward.in_groups, layers=layers_of_groups(policy, config.text_groups))
        self._answers = Answers(
            policy.model, self._store, policy.tokenizer.eos, forward=forward or plain, in_groups=in_groups
        )
        self._tokenizer, self._config, self._device = policy.tokenizer, config, pool.k.device
        self._open: dict[int, Request] = {}

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
        self._open[request.progress] = request

    def advance(self) -> Callable[[], None] | None:
        """One more token for every open answer, in one forward, or the next group of it; returns what waits
        for one that is not the last."""
        with torch.inference_mode():
            self._answers.advance()
        for request in self._open.values():
            request.partial = self._answers.in_progress
        if not self._answers.in_progress or self._device.type != "cuda":
            return None
        return torch.cuda.current_stream(self._device).record_event().synchronize

    def drop(self, request: Request) -> None:
        """Give back what an answer holds."""
        if self._open.pop(request.progress, None) is None:
            return
        if request.progress in self._answers.unfinished:
            self._answers.cancel(request.progress)
        else:
            self._store.remove(request.progress)

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
                while self._answers.unfinished:
                    self._answers.advance()
                for number in begun:
                    self._store.remove(number)


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
