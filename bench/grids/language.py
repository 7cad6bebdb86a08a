"""The language model of a policy that acts by tokens, alone, behind the product's scheduler.

A frame is a prompt of embeddings that is copied in where the product would encode an image. The rest is the
product's own: requests, scheduler, policies.tokens, PackedTokenActor. Tokens are not converted to actions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.actors.tokens import PackedTokenActor, slots_for
from vla_accel_ros.engine.config import SPECULATIVE, EngineConfig
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.request import ACT, PREFILL, Act, MicroBatch, Observe, Request, Waits
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.rules.tokens import TokenFrames, overlaps
from vla_accel_ros.engine.scheduler import Scheduler
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.types import Observation


class Finished(NamedTuple):
    """frame: its number; tokens: its K greedy ids; accepted: of its draft."""

    frame: int
    tokens: tuple[int, ...]
    accepted: int


class GivenDrafts(TokenFrames):
    """TokenFrames whose drafts are given: frame n has draft n modulo their number."""

    def __init__(self, drafts: Sequence[tuple[int, ...]], prefer: str, tokens: int) -> None:
        super().__init__(SPECULATIVE, prefer, tokens)
        self._given, self._frame = [draft[: tokens - 1] for draft in drafts], 0

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        batch = super().next(lane, ready, now_s, due_s)
        if batch is None or batch.stage != PREFILL:
            return batch
        draft = self._given[self._frame % len(self._given)]
        self._frame += 1
        return replace(batch, draft=draft)


@dataclass(frozen=True)
class _Words:
    """What PackedTokenActor needs of a policy. joints: tokens of an action."""

    model: OpenVLA
    joints: int
    end_token: None = None

    @property
    def most_tokens(self) -> int:
        return self.joints

    @property
    def config(self) -> OpenVLAConfig:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        return raw.numpy()


class Language:
    """An engine.runner.interface.Runner. prompts [1, T, W]: frame n has prompt n modulo their number.

    forward: None = plain torch. drafts: of the prompts, for token_mode speculative.
    """

    def __init__(
        self,
        model: OpenVLA,
        prompts: Sequence[Tensor],
        tokens: int,
        mode: str,
        prefer: str,
        forward: PackedForward | None,
        drafts: Sequence[tuple[int, ...]] = (),
    ) -> None:
        config = EngineConfig(token_mode=mode, token_prefer=prefer)
        sizes, length = model.config.prefix, max(prompt.shape[1] for prompt in prompts)
        dtype = model.language_model.model.dtype
        pool = KVPool(sizes, slots_for(config, tokens), length + tokens, model.device, dtype)
        self._prompts, self._pool, self.prefixes = prompts, pool, Prefixes(pool)
        self._kept = pool.k.new_zeros(pool.slots, length, sizes.width)
        words: Any = _Words(model, tokens)
        self._actor = PackedTokenActor(words, config, pool, cast(Any, self), forward)
        self._robot = Embodiment(words, config.step_dt_s)
        rule = (
            GivenDrafts(drafts, prefer, tokens) if mode == SPECULATIVE else TokenFrames(mode, prefer, tokens)
        )
        self.scheduler = Scheduler(self, Rules(rule, text=False))
        self._rides = overlaps(mode, prefer)

    def is_captured(self, batch: MicroBatch) -> bool:
        return True

    def embeddings(self, slot: int, n_tokens: int) -> Tensor:
        """As engine.runner.frames.EncodeOnly's."""
        return self._kept[slot, None, :n_tokens]

    def frame(self, number: int, finish: Callable[[Finished, float], None]) -> None:
        """See a frame and act on it until it is finished, or was prefilled if later frames finish it.

        finish: told of each frame that is finished meanwhile, and the seconds since it came.
        """
        on_progress = partial(self._acted, number, time.perf_counter(), finish)
        observed = self.scheduler.submit(
            Request(Observe(Observation({}, np.zeros(0, np.float32), "", stamp_ns=number)))
        )
        act = self.scheduler.submit(Request(Act(), on_progress=on_progress, waits=Waits.NEWS))
        self.scheduler.wait(act, lambda act: act.progress is not None if self._rides else act.finished)
        cast(Prefix, observed.result).release()

    def once(self) -> Finished:
        """Frame 0 alone, in a mode in which no frame waits for the next."""
        finished: list[Finished] = []
        self.frame(0, lambda one, age_s: finished.append(one))
        return finished[0]

    @staticmethod
    def _acted(number: int, begin_s: float, finish: Callable[[Finished, float], None], act: Request) -> None:
        if act.progress is None:
            act.progress = len(act.tokens) - 1
        if act.finished and act.error is None and not act.cancelled:
            finish(Finished(number, tuple(act.tokens), act.progress), time.perf_counter() - begin_s)

    def first_stage(self, request: Request) -> str:
        return self._actor.first_stage(request) if request.want == ACT else request.stage

    def kind(self, request: Request) -> str:
        return request.kind

    def idle(self) -> None:
        """Does nothing."""

    def room(self, request: Request) -> bool:
        return self._actor.room(request) if request.want == ACT else True

    def begin(self, request: Request) -> None:
        if request.want == ACT:
            self._actor.begin(request)

    def run(self, batch: MicroBatch) -> None:
        if batch.requests[-1].want == ACT:
            self._actor.run(batch)
            return
        (request,) = batch.requests
        assert request.observation is not None
        prompt = self._prompts[request.observation.stamp_ns % len(self._prompts)]
        with torch.inference_mode(), self._pool.filling() as slot:
            self._kept[slot, : prompt.shape[1]].copy_(prompt[0])
            prefix = self.prefixes.publish(slot, request.observation, self._robot, prompt.shape[1], 0)
        request.finish(prefix)

    def drop(self, request: Request) -> None:
        if request.want == ACT:
            self._actor.drop(request)
