"""Makes chunks for a policy that acts in one forward: no noise, no steps, nothing that can be agreed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch

from vla_accel_ros.engine.actors.tokens import check
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import MicroBatch, Request, Status, failing_alone
from vla_accel_ros.engine.runner.frames import Prefill
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.sampling import Pending
from vla_accel_ros.models.micro_requests import ACTIONS, FORWARD, STATE
from vla_accel_ros.models.policies import AnyPolicy, FlowPolicy, computed
from vla_accel_ros.types import Chunk


class ForwardActor:
    """Computes the action requests of one engine, a chunk each. The robot's own part comes from its prefix's
    embodiment. stages: compute chunks instead of the plain network."""

    def __init__(
        self,
        policy: AnyPolicy,
        config: EngineConfig,
        prefill: Prefill,
        stages: Stages | PlainStages | None = None,
    ) -> None:
        self._chain, self._device, self._prefill = policy.chain, policy.device, prefill
        self._stages = stages if isinstance(stages, PlainStages) else None
        self.horizon = int(policy.config.horizon)

    def first_stage(self, request: Request) -> str:
        """FORWARD."""
        check(request, "acts in one forward")
        return FORWARD

    def prepare(self) -> None:
        """Does nothing: `PlainStages.build` captures the forward."""

    def room(self, request: Request) -> bool:
        """Always True."""
        return True

    def begin(self, request: Request) -> None:
        """Note the state, if the network takes one."""
        has_state = request.act.state is not None and self._chain.takes_state
        state = np.array(request.act.state, np.float32) if has_state else None
        request.wish = replace(request.act, state=state)

    @torch.inference_mode()
    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        """Compute every chunk; see the scheduler's Runner."""
        raws = list[tuple[Request, torch.Tensor | Pending]]()
        for request in batch.requests:
            with failing_alone(request):
                raws.append((request, self._raw(request, request.frame)))
        if self._device.type != "cuda":
            self._finish(raws)
            return None
        for request, _ in raws:
            request.status = Status.LAUNCHED
        event = current_stream(self._device).record_event()
        return partial(self._finish, raws, event)

    def drop(self, request: Request) -> None:
        """Does nothing: the actor holds nothing for a request."""

    def idle(self) -> None:
        """Does nothing: nothing can be prepared."""

    def _raw(self, request: Request, prefix: Prefix) -> torch.Tensor | Pending:
        """float32 [H, A], normalised, on the device or on its way to the host."""
        policy, state = cast(FlowPolicy, prefix.embodiment.policy), None
        if self._chain.takes_state:
            state = policy.normalized_state(prefix.state if request.act.state is None else request.act.state)
        if self._stages is not None:
            return self._stages.forward(state, prefix.slot)
        values = {**self._prefill.kept(prefix), STATE: None if state is None else state.to(self._device)}
        for micro in (*self._chain.of_chunk, self._chain.acting):
            values |= computed(policy, micro, values)
        raw: torch.Tensor = values[ACTIONS]
        return raw.float().to("cpu", non_blocking=True) if raw.is_cuda else raw

    def _finish(
        self, made: list[tuple[Request, torch.Tensor | Pending]], over: torch.cuda.Event | None = None
    ) -> None:
        """Set the results. over: recorded behind them on the device."""
        if over is not None:
            over.synchronize()
        for request, raw in made:
            if request.cancelled:  # it was cancelled meanwhile
                continue
            with failing_alone(request):
                prefix, state = request.frame, request.act.state
                if isinstance(raw, Pending):
                    raw = torch.from_numpy(raw.wait().actions[0])
                chunk = Chunk(
                    actions=prefix.embodiment.policy.actions(raw, prefix.state if state is None else state),
                    stamp_ns=prefix.stamp_ns,
                    step_dt_s=prefix.embodiment.step_dt_s,
                    kv_version=prefix.version,
                    request_id=request.number,
                    update_magnitudes=np.zeros(self.horizon, np.float32),
                    state=state,
                )
                request.finish(chunk)
