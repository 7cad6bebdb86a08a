"""Flow chunks: whole, one after another, or staggered, several at their own noise levels in one batch.

Staggered: a chunk needs as many steps as ever, but each step advances all that have begun and finishes the
oldest, so chunks leave at the rate of steps. Whatever is ready to begin joins the next step: one of them or,
where there are more seats than steps, as many as keep the seats full. What is whole
(`Request.whole`, as the first chunk of a frame with staggering "fresh") goes before all steps.

Steps keep time with the joints. A step that no chunk begins in finishes none later, and costs as much as any
other; so where a stream is about to bring newer joints, the step waits for them if they are expected before
it would itself be over. Chunks then leave as evenly as joints come, and the processor is free in between.

A frame goes before steps, but where it is computed in groups of layers the two alternate: a step waits for
one group at most, and a frame for the steps between its groups. Whole chunks and groups do not alternate: a
whole chunk takes as long as several groups. What goes before a frame goes before its next group, too; the
rest waits for all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.policies.policy import Policy, Setup, by_priority, frame_first, see
from vla_accel_ros.engine.request import ACT, DENOISE, OBSERVE, REWORD, MicroBatch, Request

LATE = 0.25
"""Of the period of a stream's chunks, how long a step waits for one that is not there when it is expected."""


class WholeChunks(Policy):
    """One chunk at a time, all its steps in one micro-batch."""

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        return frame_first(ready)


class StaggeredChunks(WholeChunks):
    """Up to `seats` chunks at once. groups: in which a frame is computed. joins: chunks begun in a step."""

    def __init__(self, seats: int, groups: int = 1, joins: int = 1) -> None:
        self._seats, self._groups, self._joins, self._after_group = seats, groups, joins, False
        self._step_s = 0.0  # what the last step took
        self._over_s = self._wait_s = -math.inf  # when it is over, and until when the next one waits

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        batch = self._chosen(ready, now_s)
        if batch is not None:
            frame = batch.requests[-1].want in (OBSERVE, REWORD)
            self._after_group = frame and self._groups > 1
            if not frame:
                self._over_s = max(now_s, self._over_s) + self._step_s
        return batch

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """A step is expected to take as long as the last one."""
        if batch.requests[-1].kind == ACT:
            self._step_s = took_s

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When a step that waits is run without what it waits for."""
        waits = now_s < self._wait_s and any(request.want == ACT for request in ready)
        return self._wait_s if waits else math.inf

    def _chosen(self, ready: Sequence[Request], now_s: float) -> MicroBatch | None:
        acts = [request for request in ready if request.want == ACT]
        whole = by_priority([request for request in acts if request.whole])
        if whole:
            return MicroBatch(DENOISE, (whole[0],), steps=0)
        waiting = [request for request in acts if not request.begun]
        fresh = [request for request in waiting if request.fresh or not request.stream]
        begun = [r for r in acts if r.begun and not (fresh and _gives_way(r, fresh[0]))]
        joining = max(0, min(self._joins, self._seats - len(begun)))
        if joining and fresh:
            return MicroBatch(DENOISE, (*begun, *fresh[:joining]))
        joins = waiting[:joining]
        step = MicroBatch(DENOISE, (*begun, *joins)) if begun or joins else None
        if acts:
            paced = joining and not joins and not self._after_group
            self._wait_s = self._waits_until_s(begun, now_s) if paced else -math.inf
        if now_s < self._wait_s:
            step = None
        return step if step and self._after_group else see(ready) or step

    def _waits_until_s(self, begun: Sequence[Request], now_s: float) -> float:
        """Until when a step waits for the next chunk of a stream; -inf if none is expected soon enough."""
        newest: dict[str, Request] = {}
        for request in begun:
            if request.stream and request.sense is not None:
                newest[request.robot] = max(newest.get(request.robot, request), request, key=_begun_s)
        would_end_s = max(now_s, self._over_s) + self._step_s
        expected = [one for one in newest.values() if one.begun_s + one.period_s <= would_end_s]
        waits_s = (one.begun_s + (1.0 + LATE) * one.period_s for one in expected)
        return min((wait_s for wait_s in waits_s if wait_s > now_s), default=-math.inf)


def _begun_s(request: Request) -> float:
    return request.begun_s


def _gives_way(old: Request, new: Request) -> bool:
    """Whether nobody wants the old chunk once the new one begins: its robot has another
    instruction."""
    return old.stream and new.stream and old.robot == new.robot and old.instruction != new.instruction


def whole(setup: Setup) -> WholeChunks:
    """One chunk at a time."""
    return WholeChunks()


def staggered(setup: Setup) -> StaggeredChunks:
    """`staggered` chunks at once."""
    config = setup.config
    return StaggeredChunks(config.staggered, config.prefill_groups, joins_of(config.staggered, config.steps))


def joins_of(seats: int, steps: int) -> int:
    """Chunks that begin in each step if so many seats are to be full, of chunks of so many steps."""
    return -(-seats // steps)
