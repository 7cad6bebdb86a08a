"""Computes micro-batches: chooses the prefill, the actor and the text decoder for a policy and its options.

Policies that act by flow prefill and denoise with the plain network or with captured stages: stages of
kernels if the model family has them, else the plain functions if the policy can be captured. Policies that
act by tokens prefill a whole prefix and continue it, or only encode, and compute prefills and tokens of
several frames in one forward. Text needs a language head and a prefix to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch

from vla_accel_ros.engine.actors.continued import ContinuedActor
from vla_accel_ros.engine.actors.flow import FlowActor
from vla_accel_ros.engine.actors.forward import ForwardActor
from vla_accel_ros.engine.actors.tokens import PackedTokenActor, slots_for
from vla_accel_ros.engine.config import (
    ACTIONS_APART,
    ALL_APART,
    AUTO,
    ONE,
    SEQUENTIAL,
    TEXT,
    EngineConfig,
    offload_share,
)
from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.lanes.partitioned import Partitioned
from vla_accel_ros.engine.lanes.times import GpuTimes
from vla_accel_ros.engine.options import check_options, has_kernels
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DECODE,
    OBSERVE,
    WHOLE,
    MicroBatch,
    Request,
    failing_alone,
)
from vla_accel_ros.engine.robots import Embodiment, Robots
from vla_accel_ros.engine.rules.rule import Plan, Setup, chosen
from vla_accel_ros.engine.rules.rules import Rules, lanes_of
from vla_accel_ros.engine.runner.captured_prefill import CapturedPlainPrefill, CapturedPrefill
from vla_accel_ros.engine.runner.frames import ENCODED_ONLY, EncodeOnly, Frames, Prefill
from vla_accel_ros.engine.runner.plain_prefill import PlainPrefill
from vla_accel_ros.engine.runner.text import TextDecoder
from vla_accel_ros.engine.stages.denoise.denoise import Form
from vla_accel_ros.engine.stages.dropping import drop, few_bits_in_prefix
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.memory.offload_report import OffloadReport
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.packed_stage import Words
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.engine.stages.precision import ROWS, W8A8_INT4
from vla_accel_ros.engine.stages.prefill.towers import Towers
from vla_accel_ros.engine.stages.stages import Progress, Stages
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.calibration import read
from vla_accel_ros.models.layers.quantized import INT4, INT8, W8A8
from vla_accel_ros.models.micro_requests import DENOISE, FORWARD, FRAME
from vla_accel_ros.models.policies import AnyPolicy, CapturablePolicy, WordedPolicy


class ModelRunner:
    """Everything of one engine that computes; see engine.runner.interface.Runner.

    robots: the robots it serves; more may be added at any time. Attribute offload: what streaming weights
    costs and saves, once the stages are prepared; None without it. Raises ValueError for options that the
    policy does not support.
    """

    def __init__(
        self, policy: AnyPolicy, config: EngineConfig, robots: Mapping[str, Embodiment] | None = None
    ) -> None:
        self.policy, self.config, self._device = policy, config, policy.device
        self.robots = Robots(Embodiment(policy, config.step_dt_s), robots)
        most_tokens = self.robots.most_tokens
        self.time_rule = policy.time_rule if config.time_rule == AUTO else config.time_rule
        check_options(policy, config)
        if config.offload == TEXT:
            policy.model.text_encoder.cpu()
        kernels = config.fast and has_kernels(policy)
        self.int8 = _int8(policy, config)
        if not config.keep_exact:
            drop(policy.model, config.precision, policy.device, self.int8, config.calibration)
        chain = policy.chain
        silent = chain.acts == DENOISE and few_bits_in_prefix(policy.model) and self.int8 is None
        speaks = chain.decodes and not silent
        forward = _forward(policy, config, most_tokens, self.int8) if kernels and speaks else None
        self.partitioned = Partitioned(config, policy.device, kernels and chain.acts == DENOISE)
        packs = chain.acts == DECODE and chain.causal and (config.fast or config.token_mode != SEQUENTIAL)
        slots = (slots_for(config, most_tokens) if packs else config.slots) + len(self.robots.names)
        tokens = policy.config.max_tokens + (most_tokens - 1 if packs else 0) if chain.holds_kv else 1
        stack = policy.config.prefix if chain.holds_kv else None
        self.pool = KVPool(stack, slots, tokens, policy.device, policy.kv_dtype)
        self.prefixes = Prefixes(self.pool)
        self.stages: Stages | PlainStages | None = None
        self.text: TextDecoder | None = None
        self.packed_forward = forward
        self.towers: Towers | None = None
        self.offload: OffloadReport | None = None
        self.prefill: Prefill
        self.actor: FlowActor | PackedTokenActor | ContinuedActor | ForwardActor
        if packs:
            worded, share = cast(WordedPolicy, policy), offload_share(config.offload)
            self.towers = Towers(worded, ops_for(policy.device), share) if config.fast else None
            self.prefill = encoded = EncodeOnly(worded, self.pool, self.towers)
            counts = self.robots.tokens
            self.actor = PackedTokenActor(worded, config, self.pool, encoded, forward, counts=counts)
        else:
            self.prefill = self._make_prefill(kernels)
            if chain.acts == DENOISE:
                self.actor = FlowActor(policy, config, self.pool, self.time_rule, self.prefill, self.stages)
            elif chain.acts == FORWARD:
                self.actor = ForwardActor(policy, config, self.prefill, self.stages)
            else:
                # An action keeps its frame's slot while its robot's next ones are computed.
                overlaps = config.token_mode != SEQUENTIAL or config.lanes != ONE
                actions = max(1, (self.pool.slots - 1) // 2) if overlaps else self.pool.slots
                hidden = self.prefill.last_hidden
                self.actor = ContinuedActor(policy, self.pool, hidden, forward, most_tokens, actions)
                if forward is not None:  # text may run in another lane
                    forward = _forward(policy, config, most_tokens, self.int8)
            if speaks:
                self.text = TextDecoder(policy, config, self.pool, forward)
        self._apart = policy.device.type == "cuda" and config.lanes in (ACTIONS_APART, ALL_APART)
        # The stream that last waited for a prefix, and the event it waited for.
        self._reads: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None
        self.frames = Frames(self.prefill, self.pool, self.prefixes, self.robots, self._apart)
        self.plan = Plan()
        self.lanes = self._make_lanes()

    def _make_prefill(self, kernels: bool) -> Prefill:
        """The prefill; makes its stages, if there are any."""
        policy, config = self.policy, self.config
        if not config.fast:
            return PlainPrefill(policy, self.pool)
        if not kernels:
            plain = cast(CapturablePolicy, policy)
            self.stages = PlainStages(plain, self.pool, self.time_rule, config.solver, config.staggered)
            return CapturedPlainPrefill(plain, self.pool, self.stages)
        self.stages = stages = Stages(
            policy.model,
            self.pool,
            self.time_rule,
            precision=config.precision,
            rule=policy.pixel_rule,
            joints=policy.joints,
            offload=offload_share(config.offload),
            groups=config.prefill_groups,
            solver=config.solver,
            int8=self.int8,
            **self.partitioned.ops(),
        )
        self.partitioned.serve(stages, self.packed_forward)
        return CapturedPrefill(stages)

    @property
    def copied_bytes(self) -> int:
        """Bytes of the quantised copies of weights so far; see engine.stages.precision."""
        stages = self.stages.small.nbytes if isinstance(self.stages, Stages) else 0
        stages += 0 if self.int8 is None else self.int8.nbytes
        return stages + (0 if self.packed_forward is None else self.packed_forward.copied_bytes)

    def rules(self) -> Rules:
        """The scheduling rules for these options."""
        config, plan, tokens, times, actions = self.config, self.plan, 0, None, 0
        if isinstance(self.actor, PackedTokenActor):
            tokens = self.actor.tokens
            times = self.actor.measure() if config.token_mode == AUTO else None
        elif isinstance(self.actor, ContinuedActor):
            tokens, actions = self.actor.tokens, self.actor.actions
        return Rules(
            chosen(Setup(config, plan.profile, tokens, times, actions)),
            plan,
            lanes_of(config),
            text=self.text is not None,
            text_groups=config.text_groups,
            text_share=config.text_share,
            partitions=self.partitioned.rule,
        )

    def _make_lanes(self) -> tuple[Lane, ...]:
        device, streams = self.policy.device, self.partitioned.streams
        lanes = [Lane(name, kinds=kinds) for name, kinds in lanes_of(self.config).items()]
        for lane in lanes if device.type == "cuda" else ():
            lane.timing = GpuTimes(lane.name, device)
            if streams is not None:
                lane.computing = partial(streams.on, lane.name)
        return tuple(lanes)

    def is_captured(self, batch: MicroBatch) -> bool:
        last = batch.requests[-1]
        if self._device.type != "cuda" or not self.config.fast:
            return False
        if last.kind == ASK:
            return self.packed_forward is not None
        if last.want == OBSERVE:  # copying pixels would hold up the steps of another lane
            return not self._apart and self.prefill.captured(last)
        return not any(request.act.exact for request in batch.requests)

    def first_stage(self, request: Request) -> str:
        if request.want == ACT:
            return self.actor.first_stage(request)
        if request.want == ASK and self.text is None:
            kind = self.policy.config.kind
            packs = isinstance(self.actor, PackedTokenActor)
            if self.policy.chain.decodes and not packs:
                raise ValueError(
                    f"keep_exact is false and precision {self.config.precision}, so the language model has "
                    "no exact weights to answer with or to take other words; set keep_exact to true."
                )
            raise ValueError(
                ENCODED_ONLY if packs else f"a {kind} policy has no language head; ask it nothing."
            )
        if request.want == OBSERVE:
            return next(micro.stage for micro in self.policy.chain.of_frame if micro.kept == FRAME)
        return request.stage

    def kind(self, request: Request) -> str:
        seats = self.config.staggered > 0 and request.want == ACT
        return WHOLE if seats and request.whole else request.kind

    def room(self, request: Request) -> bool:
        if request.want == ACT:
            return self.actor.room(request)
        takes_slot = request.want != ASK or request.ask.question is not None
        if takes_slot and not self.pool.free:
            return False
        return request.want != ASK or (self.text is not None and self.text.room)

    def begin(self, request: Request) -> None:
        prefix = request.prefix
        if prefix is not None and prefix.ready is not None:  # another lane may have computed it
            stream = current_stream(self._device)
            if self._reads is None or self._reads[1] is not prefix.ready or self._reads[0] != stream:
                stream.wait_event(prefix.ready)
                self._reads = stream, prefix.ready
        if request.want == ACT:
            self.actor.begin(request)

    def run(self, batch: MicroBatch) -> Callable[[], None] | None:
        with self.partitioned.computing(batch):
            return self._run(batch)

    def _run(self, batch: MicroBatch) -> Callable[[], None] | None:
        if batch.requests[-1].want == ACT:
            return self.actor.run(batch)
        if batch.stage == DECODE:
            assert self.text is not None
            return self.text.advance()
        if len(batch.requests) > 1 and all(request.want == OBSERVE for request in batch.requests):
            with torch.inference_mode():
                return self.frames.run_together(batch.requests)
        wait = None
        for request in batch.requests:
            with failing_alone(request):
                wait = self._prefill(request)
        return wait

    def drop(self, request: Request) -> None:
        if request.want == ACT:
            self.actor.drop(request)
        elif request.want == OBSERVE:
            self.frames.drop(request)
        elif request.want == ASK and self.text is not None:
            self.text.drop(request)

    def idle(self) -> None:
        self.actor.idle()

    def remove(self, robot: str) -> None:
        """Stop serving a robot, and release its newest frame. Call it after its stream has ended: requests
        that have begun are finished, unless they are cancelled."""
        self.robots.remove(robot)
        self.prefixes.remove(robot)

    def prepare(self, views: Iterable[int], prompts: Iterable[int], progress: Progress) -> None:
        """See Engine.prepare. Measures `offload` at the end."""
        views, prompts = tuple(views), tuple(prompts)
        if isinstance(self.actor, PackedTokenActor):
            self.actor.prepare(prompts, progress)
        if self.stages is not None:
            self._prepare_stages(views, prompts, progress)
        if not offload_share(self.config.offload):
            return
        if self.towers is not None:
            self.offload = self.towers.measure_offload()
        elif isinstance(self.stages, Stages) and views:
            self.offload = self.stages.measure_offload(max(views))

    def _prepare_stages(self, views: Sequence[int], prompts: Sequence[int], progress: Progress) -> None:
        assert self.stages is not None
        forms = tuple(Form) if self.policy.trained_delay else (Form.FREE, Form.GUIDED)
        steps = (self.config.steps,) if self.policy.chain.acts == DENOISE else ()
        if len(self.lanes) == 1 or not isinstance(self.stages, Stages):
            self.stages.build(views, prompts, steps, progress=progress, forms=forms)

        def make() -> None:
            for _ in self.partitioned.each():
                for lane, kinds in zip(self.lanes, lanes_of(self.config).values(), strict=True):
                    with lane.computing():
                        self._prepare(kinds, views, prompts, steps, progress, forms)

        make()
        if self.partitioned.chooses and views and prompts and isinstance(self.stages, Stages):
            self.partitioned.choose(self.stages, cast(FlowActor, self.actor), max(views), max(prompts))
            make()

    def _prepare(
        self,
        kinds: Sequence[str],
        views: Sequence[int],
        prompts: Sequence[int],
        steps: Sequence[int],
        progress: Progress,
        forms: Sequence[Form],
    ) -> None:
        """Prepare what a lane with these kinds needs, on its stream, whose priority the graphs keep."""
        if len(self.lanes) > 1 and isinstance(self.stages, Stages):
            if WHOLE in kinds:
                self.stages.build((), (), steps, progress=progress, forms=forms)
            if OBSERVE in kinds or (ASK in kinds and self.text is not None):
                together = self.config.frames_together
                self.stages.build(views, prompts, (), progress=progress, together=together)
        if ACT in kinds:
            self.actor.prepare()
        if ASK in kinds and self.text is not None and self.policy.chain.answers:
            with self.pool.holding(1) as (slot,):
                self.text.prepare(slot, 1, self.prefill.last_hidden(slot, 1))

    def _prefill(self, request: Request) -> Callable[[], None] | None:
        """Compute a frame's prefix or its next group, or the beginning of an answer."""
        with torch.inference_mode():
            if request.want == OBSERVE:
                return self.frames.run(request)
            prefix = request.frame
            question = request.ask.question
            if question is not None and question != prefix.instruction:
                request.prefix = prefix = self._reworded(prefix, question)
                request.instruction = prefix.instruction
            assert self.text is not None
            self.text.begin(request, self.prefill.last_hidden(prefix.slot, prefix.n_tokens))
            request.stage = DECODE
            return None

    def _reworded(self, frame: Prefix, question: str) -> Prefix:
        """The same frame with other words; releases the given handle."""
        with self.pool.filling() as slot:
            n_tokens = self.prefill.reword(frame, question, slot)
            prefix = self.prefixes.with_words(frame, slot, n_tokens, question)
        frame.release()
        return prefix


def _forward(policy: AnyPolicy, config: EngineConfig, tokens: int, int8: Int8 | None) -> PackedForward:
    positions = policy.config.max_tokens + max(config.answer_tokens, tokens)
    weights = {INT8: INT8, INT4: INT4, W8A8_INT4: INT4}.get(config.precision)
    rows = int8 if config.precision == W8A8 else None
    if config.precision == W8A8_INT4 and not config.keep_exact:  # the stack has int8 weights only
        weights, rows = None, int8
    model = policy.model
    words = Words(model.embed_tokens, model.logits)
    return PackedForward(
        model.stack, policy.config.prefix, positions, weights=weights, int8=rows, words=words
    )


def _int8(policy: AnyPolicy, config: EngineConfig) -> Int8 | None:
    """Weights for stages with rows in 8 bits. Raises ValueError for a calibration that does not fit."""
    if config.precision not in ROWS:
        return None
    calibration = read(Path(config.calibration), policy.model) if config.calibration else None
    return Int8.of(config.precision, calibration)
