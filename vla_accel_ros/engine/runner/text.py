"""Answers requests in text (models.text.tokenizer).

It says which requests may begin, decodes their open answers together (engine.runner.answers), and turns
tokens into text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.engine.request import Request, Status, failing_alone
from vla_accel_ros.engine.runner.answers import Answer, Answers, InGroups, Said
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.prefill.layered import sizes
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.text.decoding import GREEDY, Sampling
from vla_accel_ros.models.text.tokenizer import TextStream

PAGES = 3
"""Most pages of one answer: with its prefix they are the parts that packed forwards have room for (PARTS
there)."""

PAGE_TOKENS = 16
"""Fewest tokens of a page."""


class TextDecoder:
    """Decodes the open answers of requests. pool: of the prefixes. forward: computes tokens, in
    EngineConfig.text_groups groups of layers; None = plain torch, at once. ahead: whether `advance` returns
    before the token is computed; None = on a GPU."""

    def __init__(
        self,
        policy: AnyPolicy,
        config: EngineConfig,
        pool: KVPool,
        forward: PackedForward | None = None,
        ahead: bool | None = None,
    ) -> None:
        page_tokens = max(PAGE_TOKENS, -(-config.answer_tokens // PAGES))
        pages = config.answers * -(-config.answer_tokens // page_tokens)
        self._pages = PagePool(policy.config.prefix, pages, page_tokens, pool.k.device, pool.k.dtype)
        eos = policy.tokenizer.eos
        in_groups: InGroups | None = None
        if forward is not None:
            in_groups = partial(forward.next_words, layers=layers_of_groups(policy, config.text_groups))
        self._answers = Answers(policy.model, pool, self._pages, eos, forward=forward, in_groups=in_groups)
        self._tokenizer, self._config, self._device = policy.tokenizer, config, pool.k.device
        self._ahead = pool.k.device.type == "cuda" if ahead is None else ahead
        self._open: dict[Answer, tuple[Request, TextStream]] = {}
        # Others are of the newest frame, the action on the one before, and the frames being computed.
        reserved = 1 + max(1, config.staggered) + config.frames_together
        self._most_slots = max(1, config.slots - reserved)

    @property
    def places(self) -> int:
        """How many more answers may begin."""
        return self._config.answers - len(self._open)

    @property
    def room(self) -> bool:
        """Whether an answer that can wait may begin: there is a place, and frames and actions keep the slots
        that they need."""
        slots = {request.frame.slot for request, _ in self._open.values()}
        return self.places > 0 and len(slots) < self._most_slots

    def begin(self, request: Request, hidden: Tensor) -> None:
        """Begin the answer of a request whose prefix is held. hidden [W]: of the prefix's last token.

        Raises ValueError if max_tokens or stop is not allowed, PoolExhausted if there is no room.
        """
        limit, ask = self._config.answer_tokens, request.ask
        if ask.max_tokens not in range(1, limit + 1):
            raise ValueError(f"max_tokens is {ask.max_tokens}; the engine takes 1 to {limit}.")
        if not self.places:
            raise PoolExhausted(
                f"{len(self._open)} answers are open; close one, or give the engine more than "
                f"{self._config.answers} answers."
            )
        seed = (self._config.seed, request.number, 1) if ask.seed is None else ask.seed
        prefix, text = request.frame, TextStream(self._tokenizer, ask.stop)
        request.progress = answer = self._answers.begin(
            prefix.slot,
            prefix.n_tokens,
            hidden,
            ask.max_tokens,
            sampling=ask.sampling or GREEDY,
            rng=np.random.default_rng(seed),
        )
        request.tokens = text.tokens
        self._open[answer] = request, text

    def advance(self) -> Callable[[], None] | None:
        """Compute one more token for every open answer, in one forward, or its next group of layers.

        On a GPU the work is only launched. Returns a function that waits for it and, after the last group,
        adds the tokens; until then the requests are launched. Returns None if everything is computed.
        """
        say, spoken = self._answers.launch(), tuple(request for request, _ in self._open.values())
        for request in spoken:
            request.partial = self._answers.in_progress
        if not self._ahead:
            self._hear(say())
            return None
        event = current_stream(self._device).record_event()
        if self._answers.in_progress:
            return event.synchronize
        for request in spoken:
            request.status = Status.LAUNCHED
        return partial(self._say, event, say, spoken)

    def drop(self, request: Request) -> None:
        """Free what an answer holds."""
        if self._open.pop(request.progress, None) is not None:
            self._answers.drop(request.progress)

    def _say(self, over: torch.cuda.Event, say: Callable[[], list[Said]], spoken: Sequence[Request]) -> None:
        """Add the tokens of a launch. over: recorded behind it."""
        try:
            over.synchronize()
            self._hear(say())
        finally:
            for request in spoken:
                if request.launched:
                    request.status = Status.RUNNING

    def _hear(self, said: Sequence[Said]) -> None:
        """Add tokens to their requests. A token that cannot be decoded ends its answer and no other."""
        for answer, token, finished in said:
            request, text = self._open[answer]
            with failing_alone(request):
                if token is not None:
                    _add(request, text.push(token))
                if finished:
                    _add(request, text.finish())
                if finished or text.ended:
                    request.finish(request.result)

    def prepare(self, slot: int, n_tokens: int, hidden: Tensor) -> None:
        """Build the forwards of every number of answers, on a held prefix."""
        limit, tokens = self._config.answers, min(2, self._config.answer_tokens)
        counts = [1 << power for power in range(limit.bit_length()) if 1 << power < limit]
        any_word = Sampling(temperature=100.0)  # makes the end of the text unlikely
        for count in (*counts, limit):
            begun = [
                self._answers.begin(slot, n_tokens, hidden, tokens, sampling=any_word) for _ in range(count)
            ]
            while self._answers.open:
                self._answers.advance()
            for answer in begun:
                self._answers.drop(answer)


def layers_of_groups(policy: AnyPolicy, count: int) -> list[int]:
    """Number of layers in each of `count` groups with about the same weights; the language head belongs to
    the last. Raises ValueError if there are fewer layers."""
    prefix, words = policy.config.prefix, policy.config.vocab
    attention = 2 * (prefix.heads + prefix.kv_heads) * prefix.head_dim
    layer = float(prefix.width * (attention + 3 * prefix.mlp))
    return sizes([*[layer] * (prefix.depth - 1), layer + words * prefix.width], count)


def _add(request: Request, piece: str) -> None:
    if piece:
        request.result = f"{request.result or ''}{piece}"
