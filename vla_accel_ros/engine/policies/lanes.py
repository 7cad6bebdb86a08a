"""Frames, actions and text at once: each in the lane that is its own.

A lane's policy sees the requests of its kinds alone. So an action never waits for a frame that is being
encoded, nor either for text; what they share of the GPU, the GPU divides (streams, their priorities, sets of
processors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, ONE
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.policies.text import TextAlone
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, REWORD, MicroBatch, Request

LANES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    ONE: {"main": (OBSERVE, ACT, ASK, REWORD)},
    ACTIONS_APART: {"action": (ACT,), "vision": (OBSERVE, ASK, REWORD)},
    ALL_APART: {"action": (ACT,), "vision": (OBSERVE,), "language": (ASK, REWORD)},
}
"""By the word of EngineConfig.lanes: what runs in which lane, the most urgent first."""


class InLanes:
    """A policy for each lane. wants: what it runs."""

    def __init__(self, lanes: Mapping[str, tuple[tuple[str, ...], Policy]]) -> None:
        self._lanes = dict(lanes)

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        wants, policy = self._lanes[lane]
        return policy.next(lane, _of(ready, wants), now_s, due_s)

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        for wants, policy in self._lanes.values():
            if batch.requests[-1].want in wants:
                policy.ran(batch, took_s)

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        return min(policy.wake_s(_of(ready, wants), now_s) for wants, policy in self._lanes.values())


def in_lanes(word: str, frames_and_actions: Policy, with_text: Policy) -> Policy:
    """The policy of these lanes. frames_and_actions: chooses among both, or one of them alone; with_text: the
    same, and text in the slack of either."""
    lanes = LANES[word]
    if word == ONE:
        return with_text
    chosen: dict[str, tuple[tuple[str, ...], Policy]] = {}
    for lane, wants in lanes.items():
        mixed = with_text if ASK in wants else frames_and_actions
        chosen[lane] = wants, TextAlone() if wants[0] == ASK else mixed
    return InLanes(chosen)


def _of(ready: Sequence[Request], wants: tuple[str, ...]) -> list[Request]:
    return [request for request in ready if request.want in wants]
