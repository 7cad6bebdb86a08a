"""Guidance by a chunk that is being executed, for whoever calls `Engine.act` by hand.

Chunks are in the robot's units and on its clock, guidance (models.flow.rtc) in raw actions and steps. What is
left of the previous chunk after the frame's stamp is what the new one has to continue. A loop gives a request
an `Agreement` instead (control.chunking.rtc).
"""

from __future__ import annotations

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import Prefix
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.policies import FLOW
from vla_accel_ros.types import Agreement, Chunk


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
    default the engine's steps.

    Raises ValueError if the previous chunk ends before the new one begins, or begins after it, or is of
    another robot, or the policy acts by tokens, which nothing guides.
    """
    policy, strength = prefix.embodiment.policy, max_weight or float(engine.config.steps)
    if policy.acts != FLOW:
        raise ValueError(f"{policy.config.kind} acts by tokens, which cannot be guided.")
    if previous.step_dt_s != prefix.embodiment.step_dt_s:
        raise ValueError(
            f"the previous chunk's actions are {previous.step_dt_s:g} s apart, the robot's "
            f"{prefix.embodiment.step_dt_s:g} s; guide only with a chunk of the same robot."
        )
    origin = prefix.state if state is None or not policy.takes_state else np.asarray(state, np.float32)
    rest, horizon = previous.rest(prefix.stamp_ns), policy.config.horizon
    end = min(len(rest), horizon) if execution is None else execution
    number = previous.request_id
    agreement = Agreement("guidance", rest, delay, end, schedule, jacobian, strength, number)
    return Guidance.of(policy, agreement, origin, horizon)
