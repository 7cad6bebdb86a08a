"""Computes actions whose tokens continue a prefix that was computed by itself.

The prefix's last hidden state gives the first token. Then every forward gives each open action its next
token, whatever their robots, frames and lengths, so the weights are read once for all (as for answers,
OxyGen). Captured, a micro-batch is several forwards, launched one behind the other: the next one reads the
ids on the device, and the host reads all of them at the end. What is behind an action's end is dropped. An
action's tokens are its greedy ones; beside others they may differ by rounding, but not in plain torch, which
computes each action's rows alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from vla_accel_ros.engine.actors.tokens import check, finish, policy_of
from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pages import PagePool, Tail
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.request import DECODE, LAUNCHED, RUNNING, MicroBatch, Request
from vla_accel_ros.engine.runner.answers import to_host
from vla_accel_ros.engine.runner.text import PAGES
from vla_accel_ros.engine.stages.packed_forward import NextWords, PackedForward
from vla_accel_ros.engine.stages.stages import powers_of_two
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.policies import AnyPolicy

AT_ONCE = 4
"""Captured forwards in a micro-batch: enough that the host is no part of their time, and few, because a frame
waits for them and an action's end is only seen behind them."""


@dataclass(eq=False)
class Writing:
    """An open action. tail: keys and values of its tokens but the last; last int64 []: that one, on the
    device; None before the first."""

    tail: Tail
    last: Tensor | None = None


class ContinuedActor:
    """last_hidden: hidden state of a prefix's last token, by slot and length. forward: captured; None = in
    plain torch. tokens: most tokens in an action of any robot. actions: how many may be open at once."""

    def __init__(
        self,
        policy: AnyPolicy,
        pool: KVPool,
        last_hidden: Callable[[int, int], Tensor],
        forward: PackedForward | None,
        tokens: int,
        actions: int,
    ) -> None:
        self._model, self._pool, self._forward = policy.model, pool, forward
        self._last_hidden, self.actions = last_hidden, actions
        self.horizon = int(getattr(policy.config, "horizon", 1))
        self.tokens, self._room, sizes = tokens, max(1, tokens - 1), policy.config.prefix
        page_tokens = -(-self._room // PAGES)
        pages = actions * -(-self._room // page_tokens)
        self._pages = PagePool(sizes, pages, page_tokens, pool.k.device, pool.k.dtype)
        self._layers, self._blank = [sizes.depth], pool.k.new_zeros(1, 1, sizes.width)

    def first_stage(self, request: Request) -> str:
        """DECODE: the prefix was computed when the frame was observed."""
        check(request)
        return DECODE

    def room(self, request: Request) -> bool:
        """Whether one more action may be open."""
        return self._pages.unpromised >= self._pages.needed(self._room)

    def begin(self, request: Request) -> None:
        """Reserve the room of all its tokens. Raises PoolExhausted if there is none."""
        request.progress = Writing(self._pages.begin(self._room))
        request.wish = replace(request.act, state=None)

    @torch.inference_mode()
    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        """Compute the next tokens of these requests. On a GPU that is only launched; returns a function that
        waits for it and adds the tokens."""
        written: dict[Request, list[Tensor]] = {request: [] for request in batch.requests}
        for _ in range(1 if self._forward is None else AT_ONCE):
            self._write(
                [
                    request
                    for request, ids in written.items()
                    if len(request.tokens) + len(ids) < policy_of(request).most_tokens
                ],
                written,
            )
        ids = to_host(torch.stack(list(itertools.chain.from_iterable(written.values()))))
        counts = {request: len(tokens) for request, tokens in written.items()}
        if self._pool.k.device.type != "cuda":
            self._read(counts, ids)
            return None
        for request in counts:
            request.status = LAUNCHED
        return partial(self._read, counts, ids, current_stream(self._pool.k.device).record_event())

    def drop(self, request: Request) -> None:
        """Free the room of its tokens."""
        if request.progress is not None:
            cast(Writing, request.progress).tail.close()

    def idle(self) -> None:
        """Does nothing: nothing can be prepared."""

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture the forwards of every number of actions."""
        if self._forward is None:
            return
        with self._pool.holding(1) as (slot,):
            self._first(slot, 1)
            for count in (*powers_of_two(self.actions), self.actions):
                tails = [self._pages.begin(1) for _ in range(count)]
                try:
                    past = (self._pool.span(slot, 0, 1),)
                    segments = [Segment(self._blank, past, out=tail.grow()) for tail in tails]
                    self._next([torch.zeros_like(self._first(slot, 1))] * count, segments)
                finally:
                    for tail in tails:
                        tail.close()

    def _write(self, requests: Sequence[Request], written: dict[Request, list[Tensor]]) -> None:
        """Launch one more token of each request."""
        further = [request for request in requests if request.progress.last is not None]
        for request in requests:
            if request.progress.last is None:
                prefix = request.frame
                request.progress.last = self._first(prefix.slot, prefix.n_tokens)
        if further:
            segments = [self._segment(request) for request in further]
            ids = self._next([request.progress.last for request in further], segments)
            for request, token in zip(further, ids, strict=True):
                request.progress.last = token
        for request in requests:
            written[request].append(request.progress.last)

    def _segment(self, request: Request) -> Segment:
        prefix, tail = request.frame, cast(Writing, request.progress).tail
        past = (self._pool.span(prefix.slot, 0, prefix.n_tokens), *tail.parts)
        return Segment(self._blank, past, out=tail.grow())

    def _first(self, slot: int, length: int) -> Tensor:
        """The id that continues a prefix."""
        return self._model.logits(self._last_hidden(slot, length)).argmax()

    def _next(self, ids: Sequence[Tensor], segments: Sequence[Segment]) -> Sequence[Tensor]:
        """The ids that follow these."""
        if self._forward is None:
            rows = self._model.embed_tokens(torch.stack([*ids])[None]).split(1, dim=1)
            segments = [segment._replace(x=x) for segment, x in zip(segments, rows, strict=True)]
            hidden = packed.forward(self._model.stack, segments, together=False)
            return [self._model.logits(x[0, -1]).argmax() for x in hidden]
        (words,) = self._forward.next_words(ids, segments, self._layers)
        return cast(NextWords, words).likeliest.clone().unbind()

    def _read(self, counts: dict[Request, int], ids: Tensor, over: torch.cuda.Event | None = None) -> None:
        """Add the tokens of a micro-batch. over: recorded behind it."""
        if over is not None:
            over.synchronize()
        values = iter(ids.tolist())
        for request, count in counts.items():
            tokens = list(itertools.islice(values, count))
            if request.finished:
                continue
            request.status, policy = RUNNING, policy_of(request)
            end = policy.end_token
            ended = end in tokens
            request.tokens += tokens[: tokens.index(end) + 1] if ended else tokens
            if ended or len(request.tokens) >= policy.most_tokens:
                finish(request)
