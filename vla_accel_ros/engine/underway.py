"""Chunks under way of one engine: begun on the newest frame, a step at a time, finished one after another.

A chunk needs as many steps as ever, so it is finished that many calls after it was begun, as the chunk of its
own frame, state and request; meanwhile later ones are begun, and share the steps. Its frame is held until
then. With another instruction, and after a pause, what is under way is dropped: nobody wants to act on it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch

from vla_accel_ros.engine.acting import Acted, FlowActing
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.prefixes import Prefix
from vla_accel_ros.engine.staggered import Seats, StaggeredDenoising

BESIDE = 3
"""Slots for frames that no chunk under way holds: the newest, one being computed, one asked about."""


def check(staggered: int, steps: int, slots: int) -> None:
    """Raise ValueError if so many chunks, of so many steps, cannot be under way in so many slots."""
    if not 2 <= staggered <= steps:
        raise ValueError(
            f"staggered is {staggered}, but a chunk takes {steps} steps and one is begun in each: give 2 to "
            f"{steps}, or 0 for one chunk at a time."
        )
    if slots < staggered + BESIDE:
        raise ValueError(
            f"slots is {slots}, but {staggered} chunks under way hold a frame each and {BESIDE} more are "
            f"needed: give at least {staggered + BESIDE}."
        )


@dataclass(frozen=True)
class Begun:
    """A request: prefix, held for it; origin float [D]: the state that the network is given; state: the part
    of it that came with the request, None = none."""

    prefix: Prefix
    request: int
    origin: np.ndarray
    state: np.ndarray | None


class UnderWay:
    """Safe to use from several threads. acting: makes inputs and outputs of chunks; seats: compute them."""

    def __init__(self, acting: FlowActing, seats: Seats, pool: KVPool) -> None:
        self._acting, self._pool = acting, pool
        self._denoising = StaggeredDenoising[int](seats)
        self._begun: dict[int, Begun] = {}
        self._instruction: str | None = None
        self._lock = threading.Lock()

    @property
    def requests(self) -> tuple[int, ...]:
        """Of the chunks that are not finished, oldest first."""
        return tuple(self._begun)

    def prepare(self) -> None:
        """Capture what is captured, before the first chunk."""
        self._denoising.prepare()

    def room_for(self, instruction: str) -> bool:
        """Whether one with this instruction can be begun; another one than the last's finds all room there
        is."""
        return not self._denoising.full or instruction != self._instruction

    def advance(self, begun: Begun | None) -> tuple[Begun, Acted] | None:
        """Take a request, if there is one, and then the next step of all; returns the chunk that this
        finished.

        The request's prefix is given back when its chunk is finished or dropped. Raises ValueError if there
        is no room, or for a state that the policy cannot take.
        """
        with self._lock, torch.inference_mode():
            if begun is not None:
                self._begin(begun)
            try:
                finished = self._denoising.step()
                if not finished:
                    return None
                (done,) = finished  # one is begun in a step at most, and all take as many
                first = self._begun[done.key]
                acted = self._acting.acted(done.flow, first.origin)
            except BaseException:
                self._drop()
                raise
            self._begun.pop(done.key).prefix.release()
            return first, acted

    def forget(self) -> None:
        """Finish nothing that was begun so far."""
        with self._lock:
            self._drop()

    def _begin(self, begun: Begun) -> None:
        prefix = begun.prefix
        try:
            if prefix.instruction != self._instruction:
                self._drop()
                self._instruction = prefix.instruction
            noise, state = self._acting.start(begun.request, begun.origin)
            span = self._pool.span(prefix.slot, 0, prefix.n_tokens)
            self._denoising.begin(begun.request, noise, state, span)
        except BaseException:
            prefix.release()
            raise
        self._begun[begun.request] = begun

    def _drop(self) -> None:
        for request in self._denoising.under_way:
            self._denoising.drop(request)
        for begun in self._begun.values():
            begun.prefix.release()
        self._begun.clear()
