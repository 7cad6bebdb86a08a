"""What makes a chunk agree with the one that is being executed when it comes.

Chunks are in the robot's units and on its clock, guidance (models.flow.rtc) in raw actions and steps. What is
left of the previous chunk after the frame's stamp is what the new one has to continue.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.policies import FLOW, AnyPolicy
from vla_accel_ros.types import Agreement, Chunk


class Engine(Protocol):
    """What guidance asks of an engine."""

    @property
    def config(self) -> EngineConfig: ...


class Overlap(NamedTuple):
    """How far two chunks are to agree.

    delay: actions of the new chunk that will be past when it comes (inference time in steps, rounded up).
    execution: actions after which it is free, None = all that the previous chunk covers.
    schedule, jacobian: see models.flow.rtc. max_weight: greatest strength of the correction.
    """

    delay: int
    execution: int | None
    schedule: str
    jacobian: str
    max_weight: float


def guidance(
    policy: AnyPolicy, previous: Chunk, stamp_ns: int, origin: np.ndarray, horizon: int, overlap: Overlap
) -> Guidance:
    """For a chunk of `horizon` actions from a frame of that stamp; origin float [D]: the
    state that the network is given.

    Raises ValueError if the previous chunk ends before the new one begins, or begins after it, or has another
    number of joints, or the policy acts by tokens, which nothing guides.
    """
    if policy.acts != FLOW:
        raise ValueError(f"{policy.config.kind} acts by tokens, which cannot be guided.")
    if previous.actions.shape[1] != policy.joints:
        raise ValueError(
            f"the previous chunk has actions of {previous.actions.shape[1]} numbers, the robot's have "
            f"{policy.joints}; guide only with a chunk of the same robot."
        )
    rest = previous.rest(stamp_ns)[:horizon]
    if not len(rest):
        raise ValueError(
            f"the previous chunk, of {previous.horizon} actions, ends before the new one begins; "
            "guide only with a chunk that overlaps."
        )
    end = len(rest) if overlap.execution is None else overlap.execution
    raw = policy.raw_actions(rest, origin)
    return Guidance(raw, overlap.delay, end, overlap.schedule, overlap.jacobian, overlap.max_weight)


def guidance_to(
    engine: Engine,
    prefix: Prefix,
    previous: Chunk,
    delay: int,
    execution: int | None = None,
    schedule: str = "LINEAR",
    jacobian: str = "identity",
    state: np.ndarray | None = None,
    max_weight: float | None = None,
) -> Guidance:
    """What makes `engine.act(prefix, state, guidance=...)` agree with a chunk that is being executed.

    delay: actions of the new chunk that will be past when it comes (inference time in steps, rounded up).
    execution: actions after which it is free, by default all that the previous chunk covers. max_weight: by
    default the engine's steps. Raises as `guidance` does, and for a chunk of another step time.
    """
    policy, strength = prefix.embodiment.policy, max_weight or float(engine.config.steps)
    if previous.step_dt_s != prefix.embodiment.step_dt_s:
        raise ValueError(
            f"the previous chunk's actions are {previous.step_dt_s:g} s apart, the robot's "
            f"{prefix.embodiment.step_dt_s:g} s; guide only with a chunk of the same robot."
        )
    origin = prefix.state if state is None or not policy.takes_state else np.asarray(state, np.float32)
    horizon = policy.config.horizon if policy.acts == FLOW else 1
    overlap = Overlap(delay, execution, schedule, jacobian, strength)
    return guidance(policy, previous, prefix.stamp_ns, origin, horizon, overlap)


def guidance_of(
    policy: AnyPolicy, agreement: Agreement, stamp_ns: int, origin: np.ndarray, horizon: int, step_dt_s: float
) -> Guidance:
    """The guidance of a recorded or planned agreement, for a chunk from a frame of that stamp."""
    rest = Chunk(agreement.actions, stamp_ns, step_dt_s, 0, agreement.previous, np.zeros(0, np.float32))
    overlap = Overlap(
        agreement.delay, agreement.end, agreement.schedule, agreement.jacobian, agreement.max_weight
    )
    return guidance(policy, rest, stamp_ns, origin, horizon, overlap)
