"""Computes the micro-requests of a frame by a policy's plain functions, as its chain declares them.

What is kept for an instruction is computed once for the words and shared by their frames. What is computed
several times (`video_denoise`) is a micro-batch each time, so that the scheduler can run others in between;
everything before and after goes in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.kv.results import Results
from vla_accel_ros.engine.runner.frames import Extent, Part, Prefill, Preprocess, worded_policy
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.micro_requests import INDEX, KV, STATE, WORDS, MicroRequest, micro_batches
from vla_accel_ros.models.policies import AnyPolicy, FlowPolicy, computed
from vla_accel_ros.types import Observation


@dataclass(eq=False)
class PlainFrame:
    """A frame in progress. slot: of its results; given: inputs and results so far; left: micro-batches to
    compute, see micro_requests.micro_batches."""

    slot: int
    policy: AnyPolicy
    given: dict[str, Any]
    left: deque[Sequence[tuple[MicroRequest, int]]]
    length: int = field(default=0, init=False)

    @property
    def stage(self) -> str:
        """The next one; empty once all are computed."""
        return self.left[0][0][0].stage if self.left else ""

    @property
    def images(self) -> int:
        """Number of image tokens."""
        return max(0, self.length - len(self.given[WORDS]))

    def drop(self) -> None:
        """Compute nothing more of the frame."""
        self.left.clear()


class PlainPrefill(Prefill):
    """Prefill by the plain network. results: where they are kept, None = in its own."""

    def __init__(self, policy: AnyPolicy, pool: KVPool, results: Results | None = None) -> None:
        self._chain, self._pool, self._preprocess = policy.chain, pool, Preprocess(policy)
        self.results = results or Results(policy, pool)
        self.in_parts = any(micro.times > 1 for micro in self._chain.of_frame)

    def observe(self, observation: Observation, policy: AnyPolicy, slot: int) -> Extent:
        frame = self.begin(observation, policy, slot)
        while frame.stage:
            self.advance(frame)
        return Extent(frame.length, frame.images)

    def begin(self, observation: Observation, policy: AnyPolicy, slot: int) -> Part:
        frame = self._frame(observation, policy, slot)
        self._next(frame)
        return frame

    def advance(self, frame: Any) -> None:
        with torch.inference_mode():
            self._next(frame)

    def launched(self, frame: Any) -> Callable[[], None] | None:
        device = self._pool.k.device
        return current_stream(device).record_event().synchronize if device.type == "cuda" else None

    def kept(self, prefix: Prefix) -> Mapping[str, Any]:
        return self.results.of(prefix.slot)

    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        policy = worded_policy(frame)
        words = policy.words(instruction, frame.state)
        results = self.results.of(frame.slot)
        recomputed = {leaf.name for micro in self._chain.of_words for leaf in micro.leaves}
        values = {name: value for name, value in results.items() if name not in recomputed} | {WORDS: words}
        if self._chain.causal:
            previous = policy.words(frame.instruction, frame.state)
            pairs = zip(words[:-1].tolist(), previous.tolist())  # the last word's hidden state is needed
            alike = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            self.results.put(slot, {**values, **self._rest(policy, results, words, slot, alike)})
            return int(self.results.of(slot)[KV].k.shape[3])
        if any(STATE in micro.reads for micro in self._chain.of_words):
            values[STATE] = cast(FlowPolicy, policy).normalized_state(frame.state).to(policy.device)
        values |= self.results.of_words(policy, words)
        new = PlainFrame(slot, policy, values, deque(micro_batches(self._chain.of_words)))
        self._next(new)
        while new.left:
            self._next(new)
        return new.length

    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        return cast(Tensor, self.results.of(slot)["hidden"])

    def _frame(self, observation: Observation, policy: AnyPolicy, slot: int) -> PlainFrame:
        inputs = self._preprocess(observation, policy)
        values = {**inputs.named, **self.results.of_words(policy, inputs.tokens)}
        return PlainFrame(slot, policy, values, deque(micro_batches(self._chain.of_frame)))

    def _next(self, frame: PlainFrame) -> None:
        """Compute a micro-batch; after the last, keep the results."""
        for micro, index in frame.left.popleft() if frame.left else ():
            frame.given |= computed(frame.policy, micro, {**frame.given, INDEX: index})
        if not frame.left:
            self.results.put(frame.slot, frame.given)
            kv = frame.given.get(KV)
            frame.length = 0 if kv is None else int(kv.k.shape[3])

    def _rest(
        self, policy: Any, kept: Mapping[str, Any], words: Tensor, slot: int, alike: int
    ) -> Mapping[str, Any]:
        """A causal prefix whose first words are another's: their keys and values are copied."""
        embeddings = policy.join(kept["seen"], words)
        n_tokens, shared = embeddings.shape[1], len(kept["seen"]) + alike if alike else 0
        for into, part in zip(self._pool.view(slot, shared), kept[KV], strict=True):
            into.copy_(part[:, :, :, :shared])
        past = (self._pool.span(slot, 0, shared),) if shared else ()
        out = self._pool.span(slot, shared, n_tokens)
        segment = Segment(embeddings[:, shared:], past, causal=True, out=out)
        (hidden,) = packed.forward(policy.model.stack, [segment])
        return {KV: self._pool.view(slot, n_tokens), "hidden": hidden[0, -1]}
