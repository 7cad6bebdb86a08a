"""An experiment: the rest of the last chunk, shifted, is a draft of the next one, which one forward verifies.

With noise e and a draft d the flow would be straight, x(t) = (1 - t) d + t e. Velocities at the first x of
all steps are computed in one batch. Step by step from t = 1 on, an update is accepted if it differs from the
straight one by no more than a tolerance (RMS over the chunk, in the network's units of actions, times the
number of steps). At the first that is not accepted, the flow continues from the x before it by steps of the
solver, with the velocity that is already computed. A draft that is accepted to its end costs one forward with
S times as many rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Request
from vla_accel_ros.models.flow.sampling import Pending, Samples, flow_times
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.types import Chunk


@dataclass
class Counts:
    """chunks: number that had a draft; accepted: their accepted steps; whole: drafts accepted to the end;
    errors: distances to the chunks without a draft, RMS in the network's units of actions."""

    chunks: int = 0
    accepted: int = 0
    whole: int = 0
    errors: list[float] = field(default_factory=list)

    @classmethod
    def total(cls, counts: Iterable[Counts]) -> Counts:
        """Of several."""
        found = cls()
        for one in counts:
            found.chunks += one.chunks
            found.accepted += one.accepted
            found.whole += one.whole
            found.errors += one.errors
        return found

    def as_dict(self, steps: int) -> dict[str, Any]:
        """forwards: number of consecutive forwards of a chunk, of which the first has `steps` times as many
        rows."""
        chunks = max(self.chunks, 1)
        after = steps * self.chunks - self.accepted - (self.chunks - self.whole)
        return {
            "chunks": self.chunks,
            "accepted_steps": self.accepted / chunks,
            "accepted_whole": self.whole / chunks,
            "forwards": 1 + after / chunks,
        }


class Drafting:
    """Makes the chunks of an engine in plain torch, by Euler. Attribute `compare`: whether each is compared
    with the one without a draft."""

    def __init__(self, engine: Engine, tolerance: float) -> None:
        self._actor = cast(FlowActor, engine.runner.actor)
        self._policy, self._config, self._rule = engine.policy, engine.config, engine.runner.time_rule
        self._pool, self._tolerance = engine.runner.pool, tolerance
        self._last: Chunk | None = None
        self.counts, self.compare = Counts(), False

    @classmethod
    def of(cls, engine: Engine, tolerance: float) -> Drafting:
        """Replaces the engine's own sampling."""
        drafting = cls(engine, tolerance)
        drafting._actor._whole = drafting.whole  # type: ignore[method-assign]
        return drafting

    def begin(self) -> None:
        """A new episode: there is no last chunk."""
        self._last, self.counts = None, Counts()

    @torch.inference_mode()
    def whole(self, request: Request) -> Pending:
        """As FlowActor has it."""
        prefix, doing = request.frame, request.progress
        kv = self._pool.view(prefix.slot, prefix.n_tokens)
        draft = self._draft(prefix.stamp_ns, doing.origin)
        x, accepted = self._sample(doing.noise, doing.state, kv, draft)
        if draft is not None:
            self.counts.chunks += 1
            self.counts.accepted += accepted
            self.counts.whole += accepted == self._config.steps
            if self.compare:
                ordinary, _ = self._sample(doing.noise, doing.state, kv, None)
                apart = (x - ordinary)[..., : self._policy.joints]
                self.counts.errors.append(float(apart.square().mean().sqrt()))
        actions = doing.policy.actions(x[0], doing.origin)
        self._last = Chunk(
            actions, prefix.stamp_ns, self._config.step_dt_s, 0, 0, np.zeros(len(actions), np.float32)
        )
        none = np.zeros((self._config.steps, 1, x.shape[1]), np.float32)
        return Pending(Samples(x.numpy(), none))

    def _draft(self, stamp_ns: int, origin: np.ndarray) -> Tensor | None:
        """The rest of the last chunk, and its last action again where it has no more, float32 [1, H, A]."""
        rest = None if self._last is None else self._last.rest(stamp_ns)
        if rest is None or not len(rest):
            return None
        horizon = self._policy.config.horizon
        rest = np.concatenate((rest, np.repeat(rest[-1:], max(0, horizon - len(rest)), axis=0)))[:horizon]
        return self._policy.raw_actions(rest, origin)[None].to(self._policy.device)

    def _sample(
        self, noise: Tensor, state: Tensor | None, kv: KV, draft: Tensor | None
    ) -> tuple[Tensor, int]:
        """The chunk, and how many steps of the draft were accepted."""
        steps, accepted, x = self._config.steps, 0, noise
        times, ready = flow_times(steps, self._rule), None
        if draft is not None:
            at = torch.tensor(times)
            straight = draft + at[:, None, None] * (noise - draft)
            wide = KV(*(part.expand(-1, steps, -1, -1, -1) for part in kv))
            states = None if state is None else state.expand(steps, -1)
            found = self._policy.model.velocity(straight, at, states, wide)
            apart = (found - (noise - draft))[..., : self._policy.joints].square().mean((1, 2)).sqrt()
            within = (apart <= self._tolerance).tolist()
            accepted = within.index(False) if False in within else steps
            if accepted == steps:
                return straight[-1:] - found[-1:] / steps, steps
            x, ready = straight[accepted : accepted + 1], found[accepted : accepted + 1]
        for step in range(accepted, steps):
            v = ready if ready is not None else self._velocity(x, times[step], state, kv)
            x, ready = x - v / steps, None
        return x, accepted

    def _velocity(self, x: Tensor, t: float, state: Tensor | None, kv: KV) -> Tensor:
        return self._policy.model.velocity(x, torch.full((1,), t), state, kv)
