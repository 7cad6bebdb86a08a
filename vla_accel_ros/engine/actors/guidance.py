"""Makes guidance from the chunk that is being executed, for direct callers of `Engine.act`.

Chunks are in the robot's units and on its clock; guidance (models.flow.rtc) is in raw actions and steps. The
new chunk continues what is left of the previous one after the frame's stamp. A control loop gives a request
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
    """Returns the guidance with which `engine.act(prefix, state, guidance=...)` agrees with the chunk
    `previous`.

    delay: actions of the new chunk that will be past when it arrives (inference time in steps, rounded up).
    execution: actions after which the new chunk is free, by default all that the previous chunk covers.
    max_weight: by default the engine's number of steps.

    Raises ValueError if the previous chunk ends before the new one begins, begins after it, or has another
    step time than the robot; and if the policy acts by tokens, which cannot be guided.
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
