"""The rules of one engine, by lane: asked in turn, the first that chooses decides.

Frames, actions and text run one after another or at once, each in its own lane. A lane's rules see only the
requests of its kinds. So an action never waits for a frame that is being encoded, and neither waits for text;
the GPU shares its resources between them (streams, priorities, partitions of multiprocessors).

While a frame or its first chunk waits or runs, lanes without frames are told that the next frame is due now:
text that uses that time (`TextInSlack`) then leaves the GPU to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakSet

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, FRESH_FIRST, ONE, TEXT_APART, EngineConfig
from vla_accel_ros.engine.request import ACT, ASK, OBSERVE, WHOLE, MicroBatch, Request, Requests
from vla_accel_ros.engine.rules.overload import Overload
from vla_accel_ros.engine.rules.partition import Partitions
from vla_accel_ros.engine.rules.rule import Plan, Rule
from vla_accel_ros.engine.rules.text import TextAlone, TextInSlack

Lanes = Mapping[str, tuple[str, ...]]
LANES: Mapping[str, Lanes] = {
    ONE: {"main": (OBSERVE, WHOLE, ACT, ASK)},
    TEXT_APART: {"main": (OBSERVE, WHOLE, ACT), "language": (ASK,)},
    ACTIONS_APART: {"action": (WHOLE, ACT), "vision": (OBSERVE, ASK)},
    ALL_APART: {"action": (WHOLE, ACT), "vision": (OBSERVE,), "language": (ASK,)},
}
"""For each value of EngineConfig.lanes: lane -> kinds that run in it, highest priority first."""

FIRST_APART: Lanes = {"first": (WHOLE,), **LANES[ALL_APART], "action": (ACT,)}
"""The same for three lanes and one more for the first chunk of a frame, beside the seats."""


def lanes_of(config: EngineConfig) -> Lanes:
    """Lane -> kinds that run in it, highest priority first."""
    has_first = config.lanes == ALL_APART and config.staggering == FRESH_FIRST
    return FIRST_APART if has_first else LANES[config.lanes]


class Rules:
    """first: the rule of frames and actions. plan: shared by all. text: whether there is text; text_groups,
    text_share: see EngineConfig. A lane of text alone beside a lane "vision" waits for nobody. partitions:
    chooses splits, None if there is no choice. Attribute `overload`: holds back what is given up."""

    def __init__(
        self,
        first: Rule,
        plan: Plan | None = None,
        lanes: Lanes = LANES[ONE],
        *,
        text: bool = True,
        text_groups: int = 1,
        text_share: float = 0.0,
        partitions: Partitions | None = None,
    ) -> None:
        self.plan, self._lanes, self._partitions = plan or Plan(), lanes, partitions
        self.overload = Overload(text_groups)
        slack = (TextInSlack(first, text_groups, text_share),) if text else ()
        placing = () if partitions is None else (partitions,)
        mixed: tuple[Rule, ...] = (*placing, self.overload, first, *slack)
        alone: tuple[Rule, ...] = (*placing, self.overload, TextAlone())
        self._of = {
            lane: alone if text and kinds == (ASK,) and "vision" in lanes else mixed
            for lane, kinds in lanes.items()
        }
        self._every = tuple(dict.fromkeys((*mixed, *alone)))
        for rule in self._every:
            rule.plan = self.plan
        self._urgent = WeakSet[Request]()  # frames and first chunks that have begun

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        """What `lane` runs now; None to leave it idle. Arguments: see Rule.next."""
        rules, kinds = self._of[lane], self._lanes[lane]
        ready = self._admitted(lane, ready, now_s)
        if OBSERVE not in kinds and (self._has_urgent() or any(map(_is_urgent, ready))):
            due_s = now_s
        ready = [request for request in ready if request.kind in kinds]
        without_text = [request for request in ready if request.want != ASK]
        for rule in rules:
            if (batch := rule.urgent(lane, ready, now_s, due_s)) is not None:
                return self._chose(lane, batch, now_s)
        for rule in rules:
            visible = ready if rule is rules[-1] else without_text
            if (batch := rule.next(lane, visible, now_s, due_s)) is not None:
                return self._chose(lane, batch, now_s)
        return None

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Report that a micro-batch took took_s; its requests have their results."""
        for rule in self._every:
            rule.ran(batch, took_s)

    def wake_s(self, lane: str, ready: Requests, now_s: float) -> float:
        """When to call `next` again if nothing changes until then."""
        admitted = self._admitted(lane, ready, now_s)
        times = [rule.wake_s(ready if rule is self.overload else admitted, now_s) for rule in self._of[lane]]
        return min(times)

    def _has_urgent(self) -> bool:
        """Whether a frame or a first chunk has begun and is not finished."""
        return any(not request.finished for request in self._urgent)

    def _admitted(self, lane: str, ready: Requests, now_s: float) -> Requests:
        for rule in self._of[lane]:
            ready = rule.admitted(lane, ready, now_s)
        return ready

    def _chose(self, lane: str, batch: MicroBatch, now_s: float) -> MicroBatch:
        for rule in self._of[lane]:
            rule.chose(lane, batch, now_s)
        self.plan.chose(lane, batch, now_s)
        self._urgent.update(request for request in batch.requests if _is_urgent(request))
        split = None if self._partitions is None else self._partitions.split
        return batch if split is None else replace(batch, split=split)


def _is_urgent(request: Request) -> bool:
    return request.want == OBSERVE or (request.want == ACT and request.fresh)
