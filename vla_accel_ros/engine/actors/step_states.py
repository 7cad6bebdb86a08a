"""Joints for the steps of a chunk that is in progress, where `EngineConfig.joints_each_step` asks for it.

A chunk in a seat takes several steps, and the robot moves meanwhile. A network with a state token can be
given the newest joints with each of them. What each step was given is recorded in the chunk, so that it can
be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from torch import Tensor

from vla_accel_ros.engine.request import Request


def check_states(request: Request, joints: int, steps: int) -> None:
    """Raise ValueError for given joints that are not those of each step. steps: of a chunk in a seat, 0 for
    one that has none."""
    given = request.step_states
    if given is None:
        return
    if not steps:
        raise ValueError("step_states are for chunks in seats: give staggered 2 or more, and no steps")
    if given.shape != (steps, joints):
        raise ValueError(f"step_states has shape {list(given.shape)}; give {[steps, joints]}")


def states_of_step(seated: Sequence[Request], newest: bool) -> dict[int, Tensor]:
    """The states float32 [1, S], normalised, by seat, that chunks have otherwise in their next step; notes
    the joints of each chunk whose steps may differ.

    newest: whether steps take what is sensed. A recorded chunk takes what it was given then. Joints that are
    missing, or of which the reading fails, stay what they were: the next chunk begins with them, and fails.
    """
    sensed: dict[str, np.ndarray | None] = {}
    changed: dict[int, Tensor] = {}
    for request in seated:
        doing, given = request.progress, request.step_states
        if given is None and not (newest and request.sense is not None):
            continue
        if given is None and request.robot not in sensed:
            sensed[request.robot] = _sensed(request)
        state = sensed[request.robot] if given is None else given[doing.steps]
        before = doing.step_states[-1] if doing.step_states else doing.origin
        after = before if state is None else np.array(state, np.float32)
        doing.step_states.append(after)
        if not np.array_equal(after, before):
            changed[doing.seat] = doing.policy.normalized_state(after)[None]
    return changed


def _sensed(request: Request) -> np.ndarray | None:
    """The newest joints of a request's robot, None while there are none."""
    assert request.sense is not None
    with suppress(Exception):
        newest = request.sense()
        return None if newest is None else newest[0]
    return None
