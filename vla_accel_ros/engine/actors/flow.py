"""Makes chunks for a policy that acts by flow: whole ones, or staggered in seats.

Every chunk starts from noise that is a function of the seed and of the chunk's request or time
(models.flow.noise), so it can be computed again. Captured stages, if there are any, compute it, also with
agreement with the chunk being executed (models.flow.rtc); only guidance by the exact Jacobian always uses the
plain network. Between submission and result nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.actors.noise import ChunkNoise
from vla_accel_ros.engine.actors.step_states import check_states, states_of_step
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix
from vla_accel_ros.engine.request import DENOISE, Act, MicroBatch, Request, Status, failing_alone
from vla_accel_ros.engine.runner.frames import Prefill
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart, PlainSeats, Seats
from vla_accel_ros.engine.stages.plain.stages import CapturedPlainSeats, PlainStages
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import Guidance, Inpainting
from vla_accel_ros.models.flow.sampling import SHIFTED, Pending, Samples, Velocity, flow_times, sample
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.micro_requests import STATE
from vla_accel_ros.models.policies import AnyPolicy, FlowField, FlowPolicy, computed
from vla_accel_ros.types import Chunk

FRAME_SLOTS = 3
"""Slots for frames that no staggered chunk holds: the newest, one being computed, one for text. Frames that
are computed together need one each."""


@dataclass
class _Denoising:
    """policy: the robot's. origin float32 [D]: the state given to the network, to which relative actions are
    relative. noise float32 [1, H, A] and state float32 [1, S]: may be on the host. committed: leading
    actions. seated: the seat has been given it. step_states float32 [D]: of each step so far, if they may
    differ."""

    policy: FlowPolicy
    origin: np.ndarray
    noise: Tensor
    state: Tensor | None
    guidance: Guidance | None
    committed: Committed | None
    seat: int | None = None
    seated: bool = False
    steps: int = 0
    step_states: list[np.ndarray] = field(default_factory=list)


class FlowActor:
    """Computes the action requests of one engine. policy: the engine's own, for what all robots share; a
    robot's own part comes from its prefix's embodiment. stages: compute chunks instead of the plain network.
    Raises ValueError if there are too few slots for staggered chunks."""

    def __init__(
        self,
        policy: AnyPolicy,
        config: EngineConfig,
        pool: KVPool,
        time_rule: str,
        prefill: Prefill,
        stages: Stages | PlainStages | None = None,
    ) -> None:
        self._policy, self._config, self._pool = cast(FlowPolicy, policy), config, pool
        self._device, self._prefill, self._flow = policy.device, prefill, FlowField(policy)
        self._time_rule, self._stages = time_rule, stages
        flow_times(config.steps, time_rule)
        if time_rule.startswith(SHIFTED) and (config.solver != EULER or "dt" in policy.chain.acting.reads):
            raise ValueError(
                f"solver is '{config.solver}' and the steps of a {policy.config.kind} policy are not equal "
                f"({time_rule}); use '{EULER}', and let its denoise read no dt."
            )
        self.horizon = int(policy.config.horizon)
        self._seats: Seats | None = None
        count, spare = config.staggered, FRAME_SLOTS + config.frames_together - 1
        if count and pool.slots < count + spare:
            raise ValueError(
                f"slots is {pool.slots}, but {count} chunks in progress hold a frame each and {spare} more "
                f"are needed: give at least {count + spare}."
            )
        if count and isinstance(stages, Stages):
            committed, by_load = policy.trained_delay > 0, config.seats_by_load
            self._seats = CapturedSeats(stages, count, config.steps, committed=committed, by_load=by_load)
        elif count and isinstance(stages, PlainStages):
            self._seats = CapturedPlainSeats(stages, count, config.steps)
        elif count:
            # Each by itself: else, in plain torch, a chunk's bits would depend on the others in its batch.
            arguments = count, config.steps, time_rule
            self._seats = PlainSeats(self._flow, *arguments, together=False, solver=config.solver)
        self._seated: dict[int, Request] = {}
        self._noise = ChunkNoise(config.seed, (self.horizon, int(policy.config.action_dim)))

    def first_stage(self, request: Request) -> str:
        """Always DENOISE."""
        return DENOISE

    def prepare(self) -> None:
        """Capture what staggered chunks need, before the first one."""
        if self._seats is not None:
            self._seats.prepare()

    def rehearse(self, slot: int, length: int, steps: int) -> None:
        """Compute one step of all seats or, without seats, one chunk from a prefix, only to time it. Call it
        before the first request; needs captured stages."""
        assert isinstance(self._stages, Stages)
        if isinstance(self._seats, CapturedSeats):
            self._seats.rehearse(slot, length)
            return
        config, device = self._policy.config, self._policy.device
        noise = torch.zeros(1, config.horizon, config.action_dim, device=device)
        state = torch.zeros(1, config.state_dim, device=device) if self._policy.chain.takes_state else None
        self._stages.act(noise, state, [slot], [length], steps)

    def room(self, request: Request) -> bool:
        """Whether a seat is free, or will be when chunks of another instruction are dropped."""
        if self._seats is None or request.whole:
            return True
        seated = [chunk for chunk in self._seated.values() if chunk.robot == request.robot and chunk.stream]
        makes_way = any(chunk.instruction != request.instruction for chunk in seated)
        return len(self._seated) < self._seats.count or makes_way

    def begin(self, request: Request) -> None:
        """Prepare noise and state, and take a seat. Raises ValueError for arguments that do not fit the
        policy."""
        prefix = request.frame
        policy, act = cast(FlowPolicy, prefix.embodiment.policy), request.act
        if act.committed is not None and act.guidance is not None:
            raise ValueError("act was given guidance and committed; they are two ways to agree, give one.")
        if act.exact and not self._config.keep_exact:
            raise ValueError(
                "guidance by the exact Jacobian needs the plain network, whose exact weights were given up; "
                "set keep_exact to true, or guide with jacobian 'identity'."
            )
        takes_state = policy.chain.takes_state
        has_state = act.state is not None and takes_state
        state = np.array(act.state, np.float32) if has_state else None
        origin = prefix.state if state is None else state
        check_states(request, len(origin), self._seats.steps if self._seats and not request.whole else 0)
        request.wish = act = self._agree(replace(act, state=state), prefix, origin)
        committed = None if act.committed is None else Committed.of(policy, act.committed, origin)
        normalized = policy.normalized_state(origin)[None] if takes_state else None
        noise = self._noise.begin(request)
        denoising = _Denoising(policy, origin, noise, normalized, act.guidance, committed)
        if self._seats is not None and not request.whole:
            denoising.seat = self._free_seat(self._seats.count)
            self._seated[denoising.seat] = request
            if isinstance(self._seats, CapturedSeats):
                self._take(denoising, self._seats, self._pool.span(prefix.slot, 0, prefix.n_tokens))
        request.progress = denoising

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        """Compute all steps of chunks without a seat, and one step of the others. See
        engine.runner.interface.Runner."""
        seated = [request for request in batch.requests if request.progress.seat is not None]
        pending = self._step(seated, batch.steps or self._config.steps) if seated else []
        for request in batch.requests:
            if request not in seated:
                with failing_alone(request):
                    pending.append((request, self._whole(request)))
        if self._device.type != "cuda":
            self._finish(pending)
            return None
        for request, _ in pending:
            request.status = Status.LAUNCHED
        if pending:  # whose results come last
            return partial(self._finish, pending, pending[-1][1].wait)
        event = torch.cuda.Event()
        event.record(current_stream(self._device))
        return partial(self._finish, pending, event.synchronize)

    def drop(self, request: Request) -> None:
        """Free the request's seat."""
        denoising = request.progress
        if self._seats is not None and denoising is not None and denoising.seat is not None:
            self._seats.leave(denoising.seat)
            self._seated.pop(denoising.seat)
            denoising.seat = None

    def idle(self) -> None:
        """Make the noise of the next request."""
        self._noise.prepare()

    def noise(self, number: int) -> np.ndarray:
        """Noise of an action request, float32 [H, A]; see models.flow.noise."""
        return self._noise.of(number).copy()

    def _agree(self, act: Act, prefix: Prefix, origin: np.ndarray) -> Act:
        """Turn a recorded agreement into committed actions or guidance."""
        agreement = act.agreement
        if agreement is None or act.guidance is not None or act.committed is not None:
            return act
        if agreement.method == "trained":
            return replace(act, committed=agreement.actions)
        policy = prefix.embodiment.policy
        return replace(act, guidance=Guidance.of(policy, agreement, origin, self.horizon))

    @torch.inference_mode()
    def _step(self, seated: list[Request], steps: int) -> list[tuple[Request, Pending]]:
        """Compute the next steps of chunks in seats, until some are finished; these leave their seats."""
        assert self._seats is not None
        for request in seated:
            if not request.progress.seated:
                with failing_alone(request):
                    results = self._prefill.kept(request.frame)
                    if self._stages is None:
                        results = self._kept(request.frame, request.progress, self._seats.steps)
                    self._take(request.progress, self._seats, results)
        seated = [request for request in seated if request.error is None]
        finished: list[Request] = []
        for _ in range(steps):
            if changed := states_of_step(seated, self._config.joints_each_step):
                self._seats.restate(changed)
            self._seats.step([request.progress.seat for request in seated])
            for request in seated:
                request.progress.steps += 1
            finished = [request for request in seated if request.progress.steps == self._seats.steps]
            if finished:
                break
        pending = self._seats.results([request.progress.seat for request in finished]) if finished else []
        for request in finished:
            self.drop(request)
        return list(zip(finished, pending, strict=True))

    def _take(self, doing: _Denoising, seats: Seats, kept: Any) -> None:
        """Put a chunk into its seat."""
        assert doing.seat is not None
        guide, joints = self._inpainting(doing), doing.policy.joints
        noise = doing.noise.to(self._device) if self._stages is None else doing.noise
        seats.take(doing.seat, ChunkStart(noise, doing.state, kept, guide, joints))
        doing.seated = True

    def _free_seat(self, count: int) -> int:
        """The first free seat. Raises PoolExhausted if the scheduling rule began more chunks than there are
        seats."""
        if len(self._seated) == count:
            raise PoolExhausted(f"all {count} seats are taken; a step has at most {count} staggered chunks.")
        return next(seat for seat in range(count) if seat not in self._seated)

    def _inpainting(self, doing: _Denoising) -> Inpainting | None:
        agreement = doing.guidance or doing.committed
        if agreement is None:
            return None
        return Inpainting.of(agreement, self.horizon, self._policy.config.action_dim)

    def _whole(self, request: Request) -> Pending:
        prefix, denoising = request.frame, request.progress
        steps = self._config.steps if request.act.steps is None else request.act.steps
        flow_times(steps, self._time_rule)
        if self._stages is None or request.act.exact:
            return self._plain(denoising, self._kept(prefix, denoising, steps), steps, request.act.exact)
        guide = self._inpainting(denoising)
        guides = None if guide is None else [guide]
        extent, joints = ([prefix.slot], [prefix.n_tokens]), [denoising.policy.joints]
        return self._stages.submit(denoising.noise, denoising.state, *extent, steps, guides, joints=joints)

    def _kept(self, prefix: Prefix, doing: _Denoising, steps: int) -> dict[str, Any]:
        """What a chunk's steps read, by name: results of the frame, and what is computed once for the
        chunk."""
        results, device, chain = {**self._prefill.kept(prefix)}, self._device, self._policy.chain
        if {"noise", "dt"} & set(chain.acting.reads):
            results |= {"noise": doing.noise.to(device), "dt": torch.full((1,), -1.0 / steps, device=device)}
        if chain.of_chunk:
            results[STATE] = None if doing.state is None else doing.state[0].to(device)
            for micro in chain.of_chunk:
                results |= computed(doing.policy, micro, results)
        return results

    def _plain(self, doing: _Denoising, kept: dict[str, Any], steps: int, exact: bool) -> Pending:
        """Compute a chunk with the plain network. exact: with its derivative."""
        policy, guidance, committed = doing.policy, doing.guidance, doing.committed
        start = doing.noise.to(policy.device)
        state = None if doing.state is None else doing.state.to(policy.device)
        moved: list[Tensor] = []

        def at(x: Tensor, t: Tensor) -> Tensor:
            return self._flow.velocity(x, t, state, kept)

        def velocity(x: Tensor, t: float) -> Tensor:
            return at(x, torch.full((1,), t, device=x.device))

        def measure(update: Tensor) -> None:
            moved.append(update[..., : policy.joints].square().mean(dim=-1).sqrt())

        def guide(field: Velocity) -> Velocity:
            return field if guidance is None else guidance.guide(field, start)

        with torch.no_grad() if exact else torch.inference_mode():
            field: Velocity = velocity
            if committed is not None:
                start, field = committed.begin(start), committed.hold(at)
            flow = sample(field, start, steps, self._time_rule, self._config.solver, guide, measure)
            return Pending(Samples.of(flow, moved))

    def _finish(
        self, made: Sequence[tuple[Request, Pending]], wait: Callable[[], object] | None = None
    ) -> None:
        """Set the results. wait: blocks until the whole micro-batch is computed."""
        if wait is not None:
            wait()
        for request, pending in made:
            if not request.cancelled:  # it may have been cancelled meanwhile
                with failing_alone(request):
                    request.finish(self._chunk(request, pending.wait()))

    def _chunk(self, request: Request, made: Samples) -> Chunk:
        prefix, denoising, act = request.frame, request.progress, request.act
        actions = denoising.policy.actions(torch.from_numpy(made.actions[0]), denoising.origin)
        if act.committed is not None:
            actions[: len(act.committed)] = act.committed
        return Chunk(
            actions=actions,
            stamp_ns=prefix.stamp_ns,
            step_dt_s=prefix.embodiment.step_dt_s,
            kv_version=prefix.version,
            request_id=request.number,
            update_magnitudes=made.magnitudes[-1, 0, : len(actions)],
            agreement=act.agreement,
            state=act.state,
            step_magnitudes=made.magnitudes[:, 0, : len(actions)],
            step_states=np.stack(denoising.step_states) if denoising.step_states else None,
        )
