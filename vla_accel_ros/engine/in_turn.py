"""Frames of a policy that acts by tokens, several in one forward: a frame goes in, a finished one comes out.

The vision loop encodes a frame and keeps its embeddings; the action loop puts them into a pipeline
(engine.token_pipeline) by the schedule of a mode (engine.mode). What comes out may be an earlier frame, and
nothing comes out while the pipeline fills: it is an action of that frame, with its stamp and version, and
goes the way of all chunks. Its tokens are the greedy ones whatever the mode. With another instruction the
frames under way are forgotten: nobody wants their actions. Which forwards a mode can come to is known
beforehand, so that they can be made before the first frame.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.acting import Acted, How, Seen, TokenActing
from vla_accel_ros.engine.intake import Intake
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.mode import Frames, Mode, measure
from vla_accel_ros.engine.packed_stage import PackedForward
from vla_accel_ros.engine.prefixes import Prefix
from vla_accel_ros.engine.seeing import Extent
from vla_accel_ros.engine.stages import Progress
from vla_accel_ros.engine.token_pipeline import TokenPipeline
from vla_accel_ros.engine.towers import Towers
from vla_accel_ros.engine.types import Observation
from vla_accel_ros.models.packed import Forward, Segment
from vla_accel_ros.models.policies import WordedPolicy

MEASURED_WORDS = 24
"""Of the prompt whose forwards are timed for mode auto."""


SEQUENTIAL = "sequential"

IN_TURN = "frames are computed in turn, with their actions: nothing continues them; use mode sequential."


class InTurn(NamedTuple):
    """mode, prefer: see engine.mode; camera_hz: how often frames come, infinite where that is unknown."""

    mode: str = SEQUENTIAL
    prefer: str = "freshness"
    camera_hz: float = math.inf


def drafts(how: InTurn, tokens: int) -> tuple[int, ...]:
    """How many tokens of a draft may stand behind a new frame's prompt, of K = tokens."""
    return (0, tokens - 1) if how.mode in ("speculative", "auto") and tokens > 1 else (0,)


def riders(how: InTurn, tokens: int) -> int:
    """How many frames may ride at most in a new one's prefill."""
    overlaps = how.mode in ("pipelined", "auto") or (how.mode == "speculative" and how.prefer == "rate")
    return tokens - 1 if overlaps else 0


class Encoded:
    """A Seeing that only encodes: `embeddings` of a slot are what the pipeline takes.

    towers: encode images instead of the plain network.
    """

    def __init__(self, policy: WordedPolicy, pool: KVPool, towers: Towers | None = None) -> None:
        self._policy, self._towers, self._intake = policy, towers, Intake(policy)
        self._kept = pool.k.new_zeros(pool.slots, policy.config.max_tokens, policy.config.prefix.width)

    def observe(self, observation: Observation, slot: int) -> Extent:
        if self._towers is not None:
            n_tokens, n_words = self._towers.embed(observation, self._kept[slot])
            return Extent(n_tokens, n_tokens - n_words)
        inputs = self._intake(observation)
        embeddings = self._policy.embed(inputs)[0]
        self._kept[slot, : len(embeddings)].copy_(embeddings)
        return Extent(len(embeddings), len(embeddings) - len(inputs.tokens))

    def embeddings(self, slot: int, n_tokens: int) -> Tensor:
        """[1, T, W]"""
        return self._kept[slot, None, :n_tokens].clone()

    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        raise ValueError(IN_TURN)

    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        raise ValueError(IN_TURN)


class FramesInTurn:
    """The frames of one engine on their way to actions. An Acting too, which computes one frame by itself."""

    horizon = 1

    def __init__(
        self, policy: WordedPolicy, encoded: Encoded, how: InTurn, forward: Forward | None = None
    ) -> None:
        config, device, dtype = policy.config, policy.device, policy.kv_dtype
        tokens = policy.joints
        room = config.max_tokens + tokens - 1
        self._policy, self._encoded, self._how = policy, encoded, how
        self._pool = pool = KVPool(config.prefix, tokens + 1, room, device, dtype)
        self._forward = forward
        self._pipeline = TokenPipeline(policy.model, pool, tokens, forward=forward)
        self._alone = TokenPipeline(policy.model, pool, tokens, forward=forward)
        self._lock = threading.Lock()
        times = None
        if how.mode == "auto":
            width = config.prefix.width
            words = config.max_tokens - config.max_prompt + MEASURED_WORDS
            prompt = torch.zeros(1, min(words, config.max_tokens), width, device=device, dtype=dtype)
            times = measure(self._pipeline, prompt, _clock(device))
        self.mode = Mode(how.mode, how.prefer, tokens, times, how.camera_hz)
        self._frames = Frames(self._pipeline, self.mode)
        self._under_way: dict[int, Prefix] = {}
        self._instruction: str | None = None

    def prepare(self, prompts: Iterable[int], progress: Progress) -> None:
        """Have the packed forwards made that frames with so many words may come to; nothing where they are
        computed in plain torch.

        progress: told of every number of rows. Raises PoolExhausted while frames are under way.
        """
        if not isinstance(self._forward, PackedForward):
            return
        config, tokens = self._policy.config, self._policy.joints
        images, most = config.max_tokens - config.max_prompt, riders(self._how, tokens)
        rows = {images + words + draft for words in prompts for draft in drafts(self._how, tokens)}
        counts = [*self._forward.distinct(rows), *([0] if tokens > 1 else [])]
        with self._lock, torch.inference_mode():
            slots = [self._pool.acquire() for _ in range(tokens)]
            try:
                for done, count in enumerate(counts):
                    progress(f"forwards of {count} new rows" if count else "decodes", done, len(counts))
                    for riding in range(most + 1) if count else range(1, max(most, 1) + 1):
                        self._forward(self._segments(count, slots[: riding + bool(count)]))
            finally:
                for slot in slots:
                    self._pool.release(slot)

    def _segments(self, rows: int, slots: list[int]) -> list[Segment]:
        """Of nothing: a new frame of so many rows, or none for 0, and riders in the other slots."""

        def nothing(count: int) -> Tensor:
            return self._pool.k.new_zeros(1, count, self._policy.config.prefix.width)

        span, riding = self._pool.span, slots[bool(rows) :]
        made = [Segment(nothing(1), (span(slot, 0, 1),), out=span(slot, 1, 2)) for slot in riding]
        if rows:
            made.append(Segment(nothing(rows), causal=True, out=span(slots[0], 0, rows)))
        return made

    def take(self, prefix: Prefix) -> tuple[Prefix, Acted] | None:
        """A held frame that was not taken before; returns the newest that is finished with it, if any is.

        The Prefix returned says what frame it is; it may have been released. Where it fails, all frames that
        were taken are forgotten.
        """
        with self._lock, torch.inference_mode():
            if prefix.instruction != self._instruction:
                self._clear()
                self._instruction = prefix.instruction
            try:
                return self._take(prefix)
            except BaseException:
                self._clear()
                raise

    def _take(self, prefix: Prefix) -> tuple[Prefix, Acted] | None:
        embeddings = self._encoded.embeddings(prefix.slot, prefix.n_tokens)
        self._under_way[prefix.version] = prefix
        finished = self._frames.take(prefix.version, embeddings)
        done = [(self._under_way.pop(one.frame), one.tokens) for one in finished]
        if not done:
            return None
        frame, tokens = done[-1]
        return frame, self._acted(tokens, frame.state)

    def forget(self) -> None:
        """Finish nothing that was taken so far, as after a pause."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._frames.clear()
        self._under_way.clear()

    def __call__(self, seen: Seen, how: How) -> Acted:
        TokenActing.check(how)
        with self._lock, torch.inference_mode():
            embeddings = self._encoded.embeddings(seen.slot, seen.kv.k.shape[3])
            try:
                (finished,) = self._alone.step(0, embeddings) or self._alone.drain()
            except BaseException:
                self._alone.clear()
                raise
        return self._acted(finished.tokens, seen.state)

    def noise(self, request: int) -> None:
        return None

    def _acted(self, tokens: tuple[int, ...], state: np.ndarray) -> Acted:
        return Acted(self._policy.actions(torch.tensor([tokens]), state), np.zeros(1, np.float32))


def _clock(device: torch.device) -> Callable[[], float]:
    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock
