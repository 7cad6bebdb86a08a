"""Joints for the steps of a staggered chunk in progress, if `EngineConfig.joints_each_step` is set.

A staggered chunk takes several steps, and the robot moves meanwhile. A network with a state token can take
the newest joints in each step. The chunk records the joints of each step, so that it can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import numpy as np
from torch import Tensor

from vla_accel_ros.engine.request import Request
from vla_accel_ros.models.policies import FlowPolicy


def check_states(request: Request, size: int, steps: int) -> None:
    """Raise ValueError if the request's step_states are no states, or do not have shape [steps, size]. size:
    of the state that it begins with; steps: of a staggered chunk, 0 if the request is not one."""
    states = request.act.step_states
    if states is None:
        return
    if not steps:
        raise ValueError("step_states are for chunks in seats: give staggered 2 or more, and no steps")
    if states.shape != (steps, size):
        raise ValueError(f"step_states has shape {list(states.shape)}; give {[steps, size]}")
    for state in states:
        cast(FlowPolicy, request.frame.embodiment.policy).normalized_state(state)


def states_of_step(seated: Sequence[Request], newest: bool) -> dict[int, Tensor]:
    """Returns, by seat, the normalised states float32 [1, S] that change in the next step; appends the joints
    of that step to each chunk whose steps may differ.

    newest: whether steps take the newest joints. A replayed chunk takes the joints that were recorded. If
    joints are missing or cannot be read, or are no state, the last ones stay: the next chunk begins with that
    reading, and fails, and no other robot's does.
    """
    sensed: dict[str, np.ndarray | None] = {}
    changed: dict[int, Tensor] = {}
    for request in seated:
        denoising, states = request.progress, request.act.step_states
        if states is None and not (newest and request.act.sense is not None):
            continue
        if states is None and request.robot not in sensed:
            sensed[request.robot] = _sensed(request)
        state = sensed[request.robot] if states is None else states[denoising.steps]
        previous = denoising.step_states[-1] if denoising.step_states else denoising.origin
        state_of_step = previous
        with suppress(Exception):  # what cannot be a state is as if it could not be read
            newer = previous if state is None else np.array(state, np.float32)
            if newer.shape == previous.shape and not np.array_equal(newer, previous):
                changed[denoising.seat], state_of_step = denoising.policy.normalized_state(newer)[None], newer
        denoising.step_states.append(state_of_step)
    return changed


def _sensed(request: Request) -> np.ndarray | None:
    """The newest joints of a request's robot, None while there are none or the reading fails."""
    sense = request.act.sense
    assert sense is not None
    with suppress(Exception):
        newest = sense()
        return None if newest is None else newest[0]
    return None
