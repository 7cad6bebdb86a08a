"""Computes actions of policies that act by tokens: K greedy tokens that continue a prefix are one action.

A frame's prefill and the tokens of earlier frames go in one forward (ActionFlow, section 3); the scheduling
rule chooses the frames (rules.tokens). actors.continued continues prefixes that were computed by themselves.
Both give a frame's greedy tokens.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.profile import Times
from vla_accel_ros.engine.request import DECODE, PREFILL, MicroBatch, Request, failing_alone
from vla_accel_ros.engine.rules.tokens import draft_lengths, most_riders
from vla_accel_ros.engine.runner.frames import EncodeOnly
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.stages import Progress
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward, Segment
from vla_accel_ros.models.policies import TokenPolicy, WordedPolicy
from vla_accel_ros.types import Chunk

FRAME_SLOTS = 3
"""Slots for frames without an action in progress: the newest, one being encoded, one that begins next."""
MEASURED_WORDS = 24
"""Words of the prompt in the forwards that are timed for token_mode "auto"."""
_REPEATS = 5


def check(request: Request, acts: str = "acts by tokens") -> None:
    """Raise ValueError for arguments that only denoised chunks take."""
    arguments = {name: getattr(request.act, name) for name in ("noise", "steps", "guidance", "committed")}
    for name, value in arguments.items():
        if value is not None and not (name == "noise" and isinstance(value, int)):
            raise ValueError(f"act was given {name}, but the policy {acts} and has no use for it.")


def policy_of(request: Request) -> TokenPolicy:
    """The policy of the request's robot."""
    return cast(TokenPolicy, request.frame.embodiment.policy)


def finish(request: Request) -> None:
    """Make the request's tokens, which are complete, into an action of its robot."""
    prefix = request.frame
    del request.tokens[policy_of(request).most_tokens :]
    with failing_alone(request):
        chunk = Chunk(
            actions=prefix.embodiment.policy.actions(torch.tensor([request.tokens]), prefix.state),
            stamp_ns=prefix.stamp_ns,
            step_dt_s=prefix.embodiment.step_dt_s,
            kv_version=prefix.version,
            request_id=request.number,
            update_magnitudes=np.zeros(1, np.float32),
        )
        request.finish(chunk)


class PackedTokenActor:
    """Computes prefills and decodes of several frames in one forward. Keys and values of a frame's prompt and
    tokens are written to the prefix's own slot, which has room for both. While an action writes to it,
    another action from the same frame takes a slot of its own.

    forward: computes segments, None = in plain torch. together: False computes every frame's rows by
    themselves, bit for bit as if they were alone (models.layers.packed). counts: tokens in an action, of each
    robot; () = the policy's.
    """

    horizon = 1

    def __init__(
        self,
        policy: WordedPolicy,
        config: EngineConfig,
        pool: KVPool,
        encoded: EncodeOnly,
        forward: Forward | None = None,
        together: bool = True,
        counts: Collection[int] = (),
    ) -> None:
        self._policy, self._config, self._pool, self._encoded = policy, config, pool, encoded
        plain: Forward = partial(packed.forward, policy.model.language_model.model, together=together)
        self._captured, self._forward = forward, forward or plain
        self._counts = counts or (cast(TokenPolicy, policy).most_tokens,)
        self.tokens = max(self._counts)
        self._slots: dict[Request, int] = {}  # of actions in progress

    def first_stage(self, request: Request) -> str:
        """PREFILL: the frame was only encoded."""
        check(request)
        return PREFILL

    def room(self, request: Request) -> bool:
        """Whether a slot is free, if the request needs one besides its prefix's."""
        prefix = request.prefix
        return prefix is None or prefix.slot not in self._slots.values() or self._pool.free > 0

    def begin(self, request: Request) -> None:
        """Give the request a slot. Raises PoolExhausted if another action writes to the frame's slot and no
        other is free."""
        slot = request.frame.slot
        self._slots[request] = self._pool.acquire() if slot in self._slots.values() else slot
        request.wish = replace(request.act, state=None)

    @torch.inference_mode()
    def run(self, batch: MicroBatch) -> None:
        """One forward: the prompts of requests whose stage is PREFILL, and one token of all others."""
        new = [request for request in batch.requests if request.stage == PREFILL]
        riding = [request for request in batch.requests if request.stage == DECODE]
        segments = [*self._decodes(riding), *(self._prefill(request, batch.draft) for request in new)]
        hidden = self._forward(segments)
        for row, request in enumerate(new, len(riding)):
            hidden[row] = hidden[row][:, request.frame.n_tokens - 1 :]
        spoken = self._said(hidden)
        for request, ids in zip([*riding, *new], spoken, strict=True):
            request.tokens += ids if request.stage == DECODE else _verified(ids, batch.draft)
            request.stage = DECODE
            if len(request.tokens) >= policy_of(request).most_tokens:
                finish(request)

    def drop(self, request: Request) -> None:
        """Free the request's slot for another action."""
        slot = self._slots.pop(request, None)
        if slot is not None and request.prefix is not None and slot != request.prefix.slot:
            self._pool.release(slot)

    def idle(self) -> None:
        """Does nothing: nothing can be prepared."""

    def prepare(
        self, prompts: Iterable[int] = (), progress: Progress = lambda name, done, total: None
    ) -> None:
        """Build the captured forwards that frames with these numbers of words may need.

        progress: called for every number of rows. Raises PoolExhausted while frames are held.
        """
        forward, mode = self._captured, self._config.token_mode
        if not isinstance(forward, PackedForward):
            return
        config = self._policy.config
        images = config.max_tokens - config.max_prompt
        riders = most_riders(mode, self._config.token_prefer, self.tokens)
        drafts = {draft for tokens in self._counts for draft in draft_lengths(mode, tokens)}
        rows = {images + words + draft for words in prompts for draft in drafts}
        counts = [*forward.distinct(rows), *([0] if self.tokens > 1 else [])]
        with torch.inference_mode(), self._pool.holding(riders + 2) as slots:
            for done, count in enumerate(counts):
                progress(f"forwards of {count} new rows" if count else "decodes", done, len(counts))
                for riding in range(riders + 1) if count else range(1, max(riders, 1) + 1):
                    forward(self._nothing(count, slots[: riding + bool(count)]))

    def measure(self) -> Times:
        """Returns the median times of the forwards that token_mode "auto" chooses by, after warm-up."""
        config, decodes = self._policy.config, self.tokens - 1
        words = min(config.max_tokens - config.max_prompt + MEASURED_WORDS, config.max_tokens)
        with torch.inference_mode(), self._pool.holding(self.tokens) as slots:

            def taken(rows: int, riders: int) -> float:
                seconds = []
                for _ in range(2 + _REPEATS):
                    segments = self._nothing(rows, slots[: riders + bool(rows)])
                    begin_s = self._now_s()
                    self._said(self._forward(segments))
                    seconds.append(self._now_s() - begin_s)
                return statistics.median(seconds[2:])

            prefill = taken(words, 0)
            if not decodes:
                return Times(prefill, prefill, prefill, prefill)
            return Times(prefill, taken(words + decodes, 0), taken(words, decodes), taken(0, 1))

    def _now_s(self) -> float:
        if self._policy.device.type == "cuda":
            torch.cuda.synchronize(self._policy.device)
        return time.perf_counter()

    def _nothing(self, rows: int, slots: list[int]) -> list[Segment]:
        """Segments of zeros: a new frame of so many rows, or none for 0, and riders in the other slots."""

        def zeros(count: int) -> Tensor:
            return self._pool.k.new_zeros(1, count, self._policy.config.prefix.width)

        span, riding = self._pool.span, slots[bool(rows) :]
        segments = [Segment(zeros(1), (span(slot, 0, 1),), out=span(slot, 1, 2)) for slot in riding]
        if rows:
            segments.append(Segment(zeros(rows), causal=True, out=span(slots[0], 0, rows)))
        return segments

    def _prefill(self, request: Request, draft: tuple[int, ...]) -> Segment:
        prefix = request.frame
        x = self._encoded.embeddings(prefix.slot, prefix.n_tokens)
        if draft:
            ids = torch.tensor([draft], device=x.device)
            x = torch.cat((x, self._policy.model.embed_tokens(ids).to(x.dtype)), dim=1)
        return Segment(x, causal=True, out=self._pool.span(self._slots[request], 0, x.shape[1]))

    def _decodes(self, riding: list[Request]) -> list[Segment]:
        if not riding:
            return []
        model = self._policy.model
        ids = torch.tensor([[request.tokens[-1] for request in riding]], device=self._policy.device)
        segments = []
        for request, x in zip(riding, model.embed_tokens(ids).split(1, dim=1), strict=True):
            prefix = request.frame
            length = prefix.n_tokens + len(request.tokens) - 1  # the last token is not in the slot yet
            slot, span = self._slots[request], self._pool.span
            segments.append(Segment(x, (span(slot, 0, length),), out=span(slot, length, length + 1)))
        return segments

    def _said(self, hidden: list[Tensor]) -> list[list[int]]:
        """The likeliest id after each row, read from the device in one copy."""
        ids = iter(self._policy.model.logits(torch.cat(hidden, dim=1))[0].argmax(dim=-1).tolist())
        return [list(itertools.islice(ids, rows.shape[1])) for rows in hidden]


def _verified(said: list[int], draft: tuple[int, ...]) -> list[int]:
    """The tokens up to the first that differs from the draft, including that one."""
    right = 0
    while right < len(draft) and said[right] == draft[right]:
        right += 1
    return said[: right + 1]


def slots_for(config: EngineConfig, tokens: int) -> int:
    """Number of slots that frames of K tokens need: those with an action in progress, and FRAME_SLOTS."""
    return max(config.slots, most_riders(config.token_mode, config.token_prefer, tokens) + 1 + FRAME_SLOTS)
