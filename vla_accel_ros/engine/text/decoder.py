"""Answers as text: what the language head continues, of several frames in one forward, piece by piece.

A token's work advances all open answers (engine.text.answers). What is given out is text, not tokens
(models.text.detokenizer); pieces wait in the request until they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool, PoolExhausted
from vla_accel_ros.engine.kv.store import KVStore
from vla_accel_ros.engine.request import ASK, Cancelled, Request
from vla_accel_ros.engine.scheduler import Scheduler
from vla_accel_ros.engine.text.answers import Answers, Said
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import GREEDY, Sampling
from vla_accel_ros.models.text.detokenizer import TextStream

PAGES = 3
"""Of one answer at most: with its prefix they are parts that packed forwards have room for (PARTS there)."""

PAGE_TOKENS = 16
"""Of one page at least."""


class TextDecoder:
    """The open answers. pool: of the prefixes. forward: computes tokens, None = plain torch."""

    def __init__(
        self, policy: AnyPolicy, config: EngineConfig, pool: KVPool, forward: Forward | None = None
    ) -> None:
        page_tokens = max(PAGE_TOKENS, -(-config.answer_tokens // PAGES))
        pages = config.answers * -(-config.answer_tokens // page_tokens)
        memory = PagePool(policy.config.prefix, pages, page_tokens, pool.k.device, pool.k.dtype)
        plain: Forward = partial(packed.forward, policy.model.stack)
        self._store = KVStore(pool, memory)
        self._answers = Answers(policy.model, self._store, policy.tokenizer.eos, forward=forward or plain)
        self._tokenizer, self._config = policy.tokenizer, config
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

    def advance(self) -> None:
        """One more token for every open answer, in one forward."""
        with torch.inference_mode():
            self._answers.advance()

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


class Answer(Iterator[str]):
    """Pieces of text, whose concatenation is the answer; computed when read, unless they were before.

    Ends at the end-of-sequence token, at a text of `stop`, or at its most tokens. Gives back what it holds
    when it ends, is closed, leaves a `with` block or is no longer referred to. One thread reads it.
    """

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        assert request.want == ASK
        self._scheduler, self._request = scheduler, request

    @property
    def request(self) -> int:
        """Its number."""
        return self._request.number

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, without the one that ends the text."""
        return self._request.tokens

    @property
    def ended(self) -> bool:
        """Whether nothing comes beyond what `take` gives."""
        return self._request.finished

    def take(self) -> str:
        """The text that was not read yet; computes nothing."""
        pieces: deque[str] = self._request.pieces
        return "".join(pieces.popleft() for _ in range(len(pieces)))

    def __next__(self) -> str:
        request = self._request
        if not request.pieces and not request.cancelled:
            with suppress(Cancelled):  # by another thread
                self._scheduler.wait(request, lambda one: bool(one.pieces))
        if not request.pieces:
            raise StopIteration
        return request.pieces.popleft()

    def close(self) -> None:
        """Stop writing and give back the prefix and the place for keys and values."""
        self._request.pieces.clear()
        if not self._request.finished:
            self._scheduler.cancel(self._request)

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
