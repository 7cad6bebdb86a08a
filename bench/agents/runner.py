"""Requests of agents as a Runner: a screen is an OBSERVE (encode, prefill), its answer an ASK (decode).

A `Computing` object does the computing, so a simulation goes through the same states. A screen takes a slot
of the pool when it begins and keeps it until its answer is finished; a request waits for a free slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch

from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.kv.pool import KVPool, Prefix, Prefixes
from vla_accel_ros.engine.request import ASK, DECODE, ENCODE, OBSERVE, PREFILL, MicroBatch, Request
from vla_accel_ros.types import Observation


class Computing(Protocol):
    """Computes stages of requests by their slots, and waits for the results. split: of the GPU, None = not
    divided."""

    def encode(self, slot: int, split: Split | None) -> None:
        """Encode the screen of a slot."""
        ...

    def prefill(
        self, slot: int, begin: int, tokens: int, beside: Sequence[int], split: Split | None
    ) -> list[int]:
        """Tokens of its prompt from `begin` on, 0 = all, and the next token of the slots beside, which it
        returns."""
        ...

    def decode(self, slots: Sequence[int], split: Split | None) -> list[int]:
        """Compute the next token of each slot."""
        ...

    def open(self, slot: int, ready: torch.cuda.Event | None) -> int:
        """Prefill its prompt after the event `ready`; returns the first token of its answer."""
        ...

    def close(self, slot: int) -> None:
        """Free the slot of an answer that is finished or cancelled."""
        ...


@dataclass
class _Screen:
    """slot: of its keys and values. done: tokens of the prompt that are prefilled."""

    slot: int
    done: int = 0


class AgentRunner:
    """prompt: tokens of a screen and its words.

    steps: by how many answers were open, decode steps so far.
    """

    def __init__(self, pool: KVPool, prompt: int, computing: Computing) -> None:
        self.prefixes, self.steps = Prefixes(pool), Counter[int]()
        self._pool, self._prompt, self._computing = pool, prompt, computing

    def first_stage(self, request: Request) -> str:
        if request.want == OBSERVE:
            return ENCODE
        if request.want == ASK and request.prefix is not None:
            return DECODE
        raise ValueError(f"an agent's request is a screen, or the answer to a prefix, not to {request.want}.")

    def kind(self, request: Request) -> str:
        return request.kind

    def idle(self) -> None:
        """Does nothing."""

    def room(self, request: Request) -> bool:
        return request.want != OBSERVE or self._pool.free > 0

    def begin(self, request: Request) -> None:
        if request.want == OBSERVE:
            request.progress = _Screen(self._pool.acquire())
            return
        prefix = cast(Prefix, request.prefix)
        request.tokens.append(self._computing.open(prefix.slot, prefix.ready))
        self._end_if_whole(request)

    def run(self, batch: MicroBatch) -> None:
        split = batch.split
        asks = [request for request in batch.requests if request.want == ASK]
        slots = [cast(Prefix, request.prefix).slot for request in asks]
        if batch.stage == ENCODE:
            (request,) = batch.requests
            self._computing.encode(request.progress.slot, split)
            request.stage = PREFILL
            return
        if batch.stage == DECODE:
            tokens = self._computing.decode(slots, split)
        else:
            tokens = self._prefill(batch.requests[-1], batch.steps, slots, split)
        if asks:
            self.steps[len(asks)] += 1
        for request, token in zip(asks, tokens, strict=True):
            request.tokens.append(token)
            self._end_if_whole(request)

    def drop(self, request: Request) -> None:
        if request.want == ASK:
            self._computing.close(cast(Prefix, request.prefix).slot)
        elif request.progress is not None and request.result is None:
            self._pool.release(request.progress.slot)

    def _prefill(self, request: Request, tokens: int, slots: Sequence[int], split: Split | None) -> list[int]:
        screen = cast(_Screen, request.progress)
        made = self._computing.prefill(screen.slot, screen.done, tokens, slots, split)
        screen.done += tokens or self._prompt
        if screen.done >= self._prompt:
            request.result = self._publish(screen.slot, request)
            request.finished = True
        return made

    def _publish(self, slot: int, request: Request) -> Prefix:
        """Make the screen's prefix. It is not published as the newest one, because screens are no stream."""
        state = np.zeros(0, np.float32)
        seen = request.observation or Observation({}, state, "", stamp_ns=0, robot=request.robot)
        nobody: Any = None
        prefix = self.prefixes.publish(slot, seen, nobody, self._prompt, self._prompt)
        self.prefixes.remove(prefix.robot)
        return prefix

    def _end_if_whole(self, request: Request) -> None:
        if len(request.tokens) >= request.max_tokens:
            request.result, request.finished = "", True
