"""Which parts compute an engine's prefixes, actions and text: it follows from the policy and what was chosen.

Policies that act by flow see and act by the plain network or by captured stages; those that act by tokens see
a whole prefix and continue it, or take frames in turn. Text needs a language head, and a prefix to continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from vla_accel_ros.engine import underway
from vla_accel_ros.engine.acting import Acting, FlowActing, Settings, acting
from vla_accel_ros.engine.in_turn import IN_TURN, SEQUENTIAL, Encoded, FramesInTurn, InTurn
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.packed_stage import PackedForward
from vla_accel_ros.engine.precision import EXACT, check
from vla_accel_ros.engine.seeing import FastSeeing, PlainSeeing, Seeing
from vla_accel_ros.engine.stages import Progress, Stages
from vla_accel_ros.engine.staggered import PlainSeats, Seats
from vla_accel_ros.engine.staggered_stage import CapturedSeats, OneByOne
from vla_accel_ros.engine.text import Texts
from vla_accel_ros.engine.towers import Towers
from vla_accel_ros.engine.underway import UnderWay
from vla_accel_ros.kernels.ops import ops_for
from vla_accel_ros.models.openvla import OpenVLA
from vla_accel_ros.models.packed import Forward
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.policies import FLOW, AnyPolicy, FlowPolicy, WordedPolicy
from vla_accel_ros.models.quantized import FP8, INT4, INT8


@dataclass(frozen=True)
class Choices:
    """What the user chose, see Engine."""

    settings: Settings
    answers: int
    answer_tokens: int
    fast: bool
    turns: InTurn
    precision: str = EXACT
    staggered: int = 0


@dataclass(frozen=True)
class Parts:
    """texts: None where nothing is said; stages, packed: None where nothing is captured; in_turn: the same as
    acting, where frames are taken in turn, else None; under_way: None where one chunk is made at a time."""

    seeing: Seeing
    acting: Acting
    texts: Texts | None = None
    stages: Stages | None = None
    packed: PackedForward | None = None
    in_turn: FramesInTurn | None = None
    under_way: UnderWay | None = None

    @property
    def copied_bytes(self) -> int:
        """Memory of the quantised copies of weights so far; see engine.precision."""
        stages = 0 if self.stages is None else self.stages.small.nbytes
        return stages + (0 if self.packed is None else self.packed.copied_bytes)

    def speaking(self, kind: str) -> Texts:
        """texts. Raises ValueError where nothing is said; kind: of the policy, for the reader."""
        if self.texts is None:
            raise ValueError(
                IN_TURN if self.in_turn else f"a {kind} policy has no language head; ask it nothing."
            )
        return self.texts

    def prepare(
        self, pool: KVPool, steps: int, views: Iterable[int], prompts: Iterable[int], progress: Progress
    ) -> None:
        """See Engine.prepare."""
        if self.in_turn is not None:
            self.in_turn.prepare(prompts, progress)
        if self.stages is None:
            return
        self.stages.build(views, prompts, (steps,), progress=progress)
        if self.under_way is not None:
            self.under_way.prepare()
        if self.texts is not None:
            slot, n_tokens = pool.acquire(), 1
            try:
                self.texts.prepare(slot, n_tokens, self.seeing.last_hidden(slot, n_tokens))
            finally:
                pool.release(slot)

    def forget(self) -> None:
        """Finish no chunk that takes several frames and was begun so far."""
        for part in (self.in_turn, self.under_way):
            if part is not None:
                part.forget()


def parts(policy: AnyPolicy, pool: KVPool, choices: Choices) -> Parts:
    """The parts over a pool of prefixes. Raises ValueError for choices that the policy does not have."""
    kind, turns, fast = policy.config.kind, choices.turns, choices.fast
    check(choices.precision, fast, pool.k.device, pool.k.dtype)
    if policy.acts != FLOW:
        _check_tokens(kind, choices)
    forward = _forward(policy, choices) if fast else None
    if policy.acts == FLOW and turns.mode != SEQUENTIAL:
        raise ValueError(
            f"mode is '{turns.mode}', but a {kind} policy does not act by tokens; use {SEQUENTIAL}."
        )
    if choices.staggered:
        if policy.acts != FLOW:
            raise ValueError(
                f"staggered is {choices.staggered}, but a {kind} policy acts by tokens, it denoises nothing: "
                "use 0."
            )
        underway.check(choices.staggered, choices.settings.steps, pool.slots)
    worded = cast(WordedPolicy, policy)
    if policy.acts != FLOW and (fast or turns.mode != SEQUENTIAL):
        encoded = Encoded(worded, pool, Towers(worded, ops_for(policy.device)) if fast else None)
        in_turn = FramesInTurn(worded, encoded, turns, forward)
        return Parts(encoded, in_turn, in_turn=in_turn, packed=forward)
    rule, precision = choices.settings.time_rule, choices.precision
    pixels = policy.pixel_rule
    stages = Stages(policy.model, pool, rule, precision=precision, rule=pixels) if fast else None
    acts, under_way = _acting(policy, pool, choices, stages)
    return Parts(
        PlainSeeing(policy, pool) if stages is None else FastSeeing(worded, stages),
        acts,
        _texts(policy, pool, choices, forward) if policy.decodes else None,
        stages,
        packed=forward,
        under_way=under_way,
    )


def _acting(
    policy: AnyPolicy, pool: KVPool, choices: Choices, stages: Stages | None
) -> tuple[Acting, UnderWay | None]:
    count, settings = choices.staggered, choices.settings
    if not count:
        return acting(policy, settings, stages), None
    flow = cast(FlowPolicy, policy)
    if stages is None:
        # Each by itself: in plain torch a chunk is the same to the bit in company only so.
        seats: Seats = PlainSeats(policy.model, count, settings.steps, settings.time_rule, together=False)
        acts = FlowActing(flow, settings)
    else:
        seats = CapturedSeats(stages, count, settings.steps)
        acts = FlowActing(flow, settings, OneByOne(stages, CapturedSeats(stages, count, settings.steps)))
    return acts, UnderWay(acts, seats, pool)


def _check_tokens(kind: str, choices: Choices) -> None:
    """Refuse a precision with which the tokens of a frame would depend on which frames it shares."""
    if choices.precision == FP8:
        raise ValueError(f"precision is {FP8}, but {kind} has no stages in it; use {INT8} or {INT4}.")
    if choices.precision != EXACT and choices.turns.mode != SEQUENTIAL:
        raise ValueError(
            f"precision is {choices.precision} and mode '{choices.turns.mode}', but only forwards of few "
            f"rows have small weights, so actions would depend on the mode; use {SEQUENTIAL} or {EXACT}."
        )


def _forward(policy: AnyPolicy, choices: Choices) -> PackedForward:
    config = policy.config
    if not isinstance(policy.model, Pi | OpenVLA):
        raise ValueError(f"fast is true, but a {config.kind} policy has no fast stages; leave it false.")
    positions = config.max_tokens + max(choices.answer_tokens, policy.joints)
    weights = choices.precision if choices.precision in (INT8, INT4) else None
    return PackedForward(policy.model.stack, config.prefix, positions, weights=weights)


def _texts(policy: AnyPolicy, pool: KVPool, choices: Choices, forward: Forward | None) -> Texts:
    return Texts(policy, pool, choices.answers, choices.answer_tokens, choices.settings.seed, forward)
