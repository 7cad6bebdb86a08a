"""Guidance to the chunk that is being executed, for tests that call `Engine.act` as no control loop does."""

from __future__ import annotations

import numpy as np

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.models.flow.rtc import Guidance, guidance_weight
from vla_accel_ros.models.flow.sampling import flow_times
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
    """What the engine makes of an Agreement with what is left of `previous` at the frame's stamp.

    execution: by default all that the previous chunk covers. max_weight: by default the engine's steps.
    """
    policy, strength = prefix.embodiment.policy, max_weight or float(engine.config.steps)
    origin = prefix.state if state is None or not policy.chain.takes_state else np.asarray(state, np.float32)
    rest, horizon = previous.rest(prefix.stamp_ns), policy.config.horizon
    end = min(len(rest), horizon) if execution is None else execution
    agreement = Agreement("guidance", rest, delay, end, schedule, jacobian, strength, previous.request_id)
    return Guidance.of(policy, agreement, origin, horizon)


def kept(weight: float, steps: int, most: float | None = None) -> float:
    """Which share of a difference to the previous chunk guidance closes for an action of this weight.

    Each step closes weight * strength / steps of what is left, exactly so for a straight flow. most: see
    Guidance.max_weight.
    """
    share = 1.0
    for t in flow_times(steps):
        share *= 1.0 - weight * guidance_weight(t, most or float(steps)) / steps
    return 1.0 - share
