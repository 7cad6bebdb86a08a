"""Answers as text: what the language head continues, of several frames in one forward, piece by piece.

Whoever advances one answer advances all that are under way by one token (engine.answers): a reader that waits
for its own words, or a loop that gives text the time it has. The pieces of the others wait until they are
read. What is given out is text, not tokens (models.detokenising). An answer that nobody refers to any more
ends, in whatever thread that is noticed: it is only noted there, and taken out before or after the next
forward.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.answers import Answers, Said
from vla_accel_ros.engine.kv_pool import KVPool, PoolExhausted
from vla_accel_ros.engine.kv_store import KVStore
from vla_accel_ros.engine.pages import PagePool
from vla_accel_ros.models import packed
from vla_accel_ros.models.decoding import Sampling
from vla_accel_ros.models.detokenising import TextStream
from vla_accel_ros.models.packed import Forward
from vla_accel_ros.models.policies import AnyPolicy

PAGES = 3
"""Of one answer at most: with its prefix they are parts that packed forwards have room for (PARTS there)."""

PAGE_TOKENS = 16
"""Of one page at least."""


class _Line:
    """What one answer has said: its text, and the pieces of it that nobody has read."""

    def __init__(self, written: TextStream) -> None:
        self.written, self.pieces, self.ended = written, deque[str](), False

    def hear(self, said: Said) -> None:
        """Take a token in. The last one ends the line even if it cannot be read."""
        try:
            if said.token is not None:
                self._add(self.written.push(said.token))
            if said.finished:
                self._add(self.written.finish())
        finally:
            self.ended = said.finished or self.written.ended

    def _add(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)


class Answer(Iterator[str]):
    """Pieces of text, whose concatenation is the answer; computed when read, unless they were before.

    Ends at the end-of-sequence token, at a text of `stop`, or at its most tokens. Gives back what it holds
    when it ends, is closed, leaves a `with` block or is no longer referred to. One thread reads it.
    request: its number.
    """

    def __init__(self, texts: Texts, request: int, line: _Line) -> None:
        self._texts, self._line, self.request = texts, line, request
        self._open = True

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, without the one that ends the text."""
        return self._line.written.tokens

    @property
    def ended(self) -> bool:
        """Whether nothing comes beyond what `take` gives."""
        return self._line.ended or not self._open

    def take(self) -> str:
        """What was said and not read yet; computes nothing."""
        pieces = self._line.pieces
        return "".join(pieces.popleft() for _ in range(len(pieces)))

    def __next__(self) -> str:
        pieces = self._line.pieces
        while not pieces and not self.ended:
            self._texts.advance(self._line)
        if not pieces:
            raise StopIteration
        return pieces.popleft()

    def close(self) -> None:
        """Stop writing and give back the prefix and the place for keys and values."""
        if self._open:
            self._open = False
            self._line.pieces.clear()
            self._texts.drop(self.request)

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Texts:
    """The answers under way of one engine. Safe to use from several threads.

    pool: of the prefixes. answers, answer_tokens: most at once, and most tokens in one. forward: how their
    tokens are computed, None = in plain torch. seed: of draws whose request has none of its own.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        pool: KVPool,
        answers: int,
        answer_tokens: int,
        seed: int,
        forward: Forward | None = None,
    ) -> None:
        device, dtype = pool.k.device, pool.k.dtype
        page_tokens = max(PAGE_TOKENS, -(-answer_tokens // PAGES))
        pages = answers * -(-answer_tokens // page_tokens)
        store = KVStore(pool, PagePool(policy.config.prefix, pages, page_tokens, device, dtype))
        plain: Forward = partial(packed.forward, policy.model.stack)
        self._answers = Answers(policy.model, store, policy.tokenizer.eos, forward=forward or plain)
        self._store, self._tokenizer, self._seed = store, policy.tokenizer, seed
        self.most, self.most_tokens = answers, answer_tokens
        self._requests = itertools.count()
        self._open: dict[int, tuple[int, _Line]] = {}  # request -> the store's number of it, and what it said
        self._dropped: deque[int] = deque()
        self._lock = threading.Lock()

    def prepare(self, slot: int, n_tokens: int, hidden: Tensor) -> None:
        """Have the forwards of every number of answers made, on a held prefix. Raises as begin does."""
        counts = [1 << power for power in range(self.most.bit_length()) if 1 << power < self.most]
        tokens, any_word = min(2, self.most_tokens), Sampling(temperature=100.0)  # hardly the end of the text
        for count in (*counts, self.most):
            made = [self.begin(slot, n_tokens, hidden, tokens, any_word, 0, ()) for _ in range(count)]
            while self.advance():
                pass
            del made

    @property
    def places(self) -> int:
        """How many more may be begun."""
        return self.most - len(self._open)

    def begin(
        self,
        slot: int,
        n_tokens: int,
        hidden: Tensor,
        max_tokens: int,
        sampling: Sampling,
        seed: int | None,
        stop: Sequence[str],
    ) -> Answer:
        """Begin an answer on a held prefix, whose last token's hidden state is given; see Engine.ask."""
        if not 1 <= max_tokens <= self.most_tokens:
            raise ValueError(f"max_tokens is {max_tokens}; the engine takes 1 to {self.most_tokens}.")
        line = _Line(TextStream(self._tokenizer, stop))
        with self._locked():
            if len(self._open) >= self.most:
                raise PoolExhausted(
                    f"{len(self._open)} answers are under way; close one, or give the engine more than "
                    f"{self.most} answers."
                )
            request = next(self._requests)
            rng = np.random.default_rng((self._seed, request, 1) if seed is None else seed)
            number = self._answers.begin(
                slot, n_tokens, hidden, max_tokens, sampling=sampling, rng=rng, on_token=line.hear
            )
            self._open[request] = number, line
        return Answer(self, request, line)

    def advance(self, wanted: _Line | None = None) -> bool:
        """One more token for every answer under way; False if there is none.

        wanted: whose reader asks; nothing is done if it has something to read by now.
        """
        with self._locked(), torch.inference_mode():
            if not self._open or (wanted is not None and (wanted.pieces or wanted.ended)):
                return False
            try:
                self._answers.advance()
            finally:
                for request, (_, line) in list(self._open.items()):
                    if line.ended:
                        self._end(request)
            return True

    def drop(self, request: int) -> None:
        """Forget an answer, now or when a forward that runs is over."""
        self._dropped.append(request)
        self._settle()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Take out who was dropped, before and, whatever happens, after."""
        try:
            with self._lock:
                self._take_out()
                yield
        finally:
            self._settle()

    def _settle(self) -> None:
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._take_out()
            finally:
                self._lock.release()

    def _take_out(self) -> None:
        while self._dropped:
            self._end(self._dropped.popleft())

    def _end(self, request: int) -> None:
        """Give back what it holds; it may have ended before."""
        if request in self._open:
            number, _ = self._open.pop(request)
            if number in self._answers.under_way:
                self._answers.cancel(number)
            else:
                self._store.remove(number)
