"""Flow chunks: whole, one after another, or staggered, several at their own noise levels in one batch.

Staggered: a chunk needs as many steps as ever, but each step advances all that have begun and finishes the
oldest, so chunks leave at the rate of steps. Whatever is ready to begin joins the next step: one of them or,
where there are more seats than steps, as many as keep the seats full. What is whole
(`Request.whole`, as the first chunk of a frame with staggering "fresh") goes before all steps.

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

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        batch = self._chosen(ready)
        if batch is not None:
            frame = batch.requests[-1].want in (OBSERVE, REWORD)
            self._after_group = frame and self._groups > 1
        return batch

    def _chosen(self, ready: Sequence[Request]) -> MicroBatch | None:
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
        return step if step and self._after_group else see(ready) or step


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
