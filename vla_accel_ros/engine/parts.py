"""Which parts compute an engine's prefixes, actions and text: it follows from the policy and what was chosen.

Policies that act by flow see and act by the plain network or by captured stages; those that act by tokens see
a whole prefix and continue it, or take frames in turn. Text needs a language head, and a prefix to continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from vla_accel_ros.engine.acting import Acting, Settings, acting
from vla_accel_ros.engine.in_turn import SEQUENTIAL, Encoded, FramesInTurn, InTurn
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.packed_stage import PackedForward
from vla_accel_ros.engine.precision import EXACT, check
from vla_accel_ros.engine.seeing import FastSeeing, PlainSeeing, Seeing
from vla_accel_ros.engine.stages import Stages
from vla_accel_ros.engine.text import Texts
from vla_accel_ros.models.openvla import OpenVLA
from vla_accel_ros.models.packed import Forward
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.policies import FLOW, AnyPolicy, WordedPolicy


@dataclass(frozen=True)
class Choices:
    """What the user chose, see Engine."""

    settings: Settings
    answers: int
    answer_tokens: int
    fast: bool
    turns: InTurn
    precision: str = EXACT


@dataclass(frozen=True)
class Parts:
    """texts: None where nothing is said; stages: None where nothing is captured; in_turn: the same as acting,
    where frames are taken in turn, else None."""

    seeing: Seeing
    acting: Acting
    texts: Texts | None = None
    stages: Stages | None = None
    in_turn: FramesInTurn | None = None


def parts(policy: AnyPolicy, pool: KVPool, choices: Choices) -> Parts:
    """The parts over a pool of prefixes. Raises ValueError for choices that the policy does not have."""
    kind, turns, fast = policy.config.kind, choices.turns, choices.fast
    check(choices.precision, fast, pool.k.device, pool.k.dtype)
    forward = _forward(policy, choices) if fast else None
    if policy.acts == FLOW and turns.mode != SEQUENTIAL:
        raise ValueError(
            f"mode is '{turns.mode}', but a {kind} policy does not act by tokens; use {SEQUENTIAL}."
        )
    worded = cast(WordedPolicy, policy)
    if policy.acts != FLOW and (fast or turns.mode != SEQUENTIAL):
        encoded = Encoded(worded, pool)
        in_turn = FramesInTurn(worded, encoded, turns, forward)
        return Parts(encoded, in_turn, in_turn=in_turn)
    rule, precision = choices.settings.time_rule, choices.precision
    stages = Stages(policy.model, pool, rule, precision=precision) if fast else None
    return Parts(
        PlainSeeing(policy, pool) if stages is None else FastSeeing(worded, stages),
        acting(policy, choices.settings, stages),
        _texts(policy, pool, choices, forward) if policy.decodes else None,
        stages,
    )


def _forward(policy: AnyPolicy, choices: Choices) -> Forward:
    config = policy.config
    if not isinstance(policy.model, Pi | OpenVLA):
        raise ValueError(f"fast is true, but a {config.kind} policy has no fast stages; leave it false.")
    positions = config.max_tokens + max(choices.answer_tokens, policy.joints)
    return PackedForward(policy.model.stack, config.prefix, positions)


def _texts(policy: AnyPolicy, pool: KVPool, choices: Choices, forward: Forward | None) -> Texts:
    return Texts(policy, pool, choices.answers, choices.answer_tokens, choices.settings.seed, forward)
