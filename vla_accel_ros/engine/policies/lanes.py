"""Runs frames, actions and text at once, each in its own lane.

A lane's policy sees only the requests of its kinds. So an action never waits for a frame that is being
encoded, and neither waits for text; the GPU shares its resources between them (streams, priorities,
partitions of multiprocessors).

While a frame or its first chunk waits or runs, lanes without frames are told that the next frame is due now:
text that uses that time (`TextInSlack`) then leaves the GPU to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, FRESH_FIRST, ONE, TEXT_APART, EngineConfig
from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.policies.text import TextAlone
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, MicroBatch, Request

LANES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    ONE: {"main": (OBSERVE, WHOLE, ACT, ASK)},
    TEXT_APART: {"main": (OBSERVE, WHOLE, ACT), "language": (ASK,)},
    ACTIONS_APART: {"action": (WHOLE, ACT), "vision": (OBSERVE, ASK)},
    ALL_APART: {"action": (WHOLE, ACT), "vision": (OBSERVE,), "language": (ASK,)},
}
"""For each value of EngineConfig.lanes: lane -> kinds that run in it, highest priority first."""

FIRST_APART: Mapping[str, tuple[str, ...]] = {"first": (WHOLE,), **LANES[ALL_APART], "action": (ACT,)}
"""The same for three lanes and one more for the first chunk of a frame, beside the seats."""


def lanes_of(config: EngineConfig) -> Mapping[str, tuple[str, ...]]:
    """Lane -> kinds that run in it, highest priority first."""
    apart = config.lanes == ALL_APART and config.staggering == FRESH_FIRST
    return FIRST_APART if apart else LANES[config.lanes]


class InLanes(Policy):
    """A policy for each lane, and the kinds that it runs."""

    def __init__(self, lanes: Mapping[str, tuple[tuple[str, ...], Policy]]) -> None:
        self._lanes = dict(lanes)
        self._urgent: list[Request] = []  # frames and first chunks that have begun

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        kinds, policy = self._lanes[lane]
        self._urgent = [request for request in self._urgent if not (request.finished or request.released)]
        if OBSERVE not in kinds and (self._urgent or any(map(_is_urgent, ready))):
            due_s = now_s
        batch = policy.next(lane, _of(ready, kinds), now_s, due_s)
        if batch is not None:
            self._urgent += [r for r in batch.requests if _is_urgent(r) and r not in self._urgent]
        return batch

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        for kinds, policy in self._lanes.values():
            if batch.requests[-1].kind in kinds:
                policy.ran(batch, took_s)

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        return min(policy.wake_s(_of(ready, kinds), now_s) for kinds, policy in self._lanes.values())


def in_lanes(lanes: Mapping[str, tuple[str, ...]], frames_and_actions: Policy, with_text: Policy) -> Policy:
    """The policy of these lanes. frames_and_actions: chooses among both, or one of them; with_text: the same,
    with text in the slack of either. A lane of text alone beside a lane "vision" waits for nobody."""
    if len(lanes) == 1:
        return with_text
    chosen: dict[str, tuple[tuple[str, ...], Policy]] = {}
    for lane, kinds in lanes.items():
        mixed = with_text if ASK in kinds else frames_and_actions
        alone = kinds == (ASK,) and "vision" in lanes
        chosen[lane] = kinds, TextAlone() if alone else mixed
    return InLanes(chosen)


def _of(ready: Sequence[Request], kinds: tuple[str, ...]) -> list[Request]:
    return [request for request in ready if request.kind in kinds]


def _is_urgent(request: Request) -> bool:
    return request.want == OBSERVE or (request.want == ACT and request.fresh)
