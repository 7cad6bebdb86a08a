"""Schedules flow chunks: whole, one after another, or staggered, several at their own noise levels in one
batch.

A staggered chunk needs as many steps as a whole one, but each step advances all chunks that have begun and
finishes the oldest, so chunks finish at the rate of steps. Ready chunks join the next step: one or, with more
seats than steps, as many as keep the seats full. Whole chunks (`Request.whole`, such as the first chunk of a
frame with staggering "fresh") go before all steps.

Steps keep time with the joints. A step in which no chunk begins costs as much as any other and lowers the
later rate of chunks, so a step waits for a chunk that is due before it would be over (engine.grid), and no
longer. Chunks then finish evenly, and the processor is free in between. This does not apply if the first
chunk of each frame is whole and frames are computed in the same lane, because the next frame's first chunk
drops unfinished chunks. Then chunks in progress are finished soon, and none begins that would not be finished
before the next frame at the present frame rate; steps compute fewer chunks, and text gets the rest.

A frame goes before steps, but for one step after MOST_PASSED frames. But if it is computed in groups of
layers, as many groups as fit run while a step waits. If none fits, the two alternate: a group follows a step
at once, or waits for one more step if the last one ended a while ago; the next step waits for at most one
group, and a frame for the steps between its groups. Whole chunks and groups do not alternate, because a whole
chunk takes as long as several groups. What goes before a frame also goes before its next group; everything
else waits for the whole frame.
"""

from __future__ import annotations

import math

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, STREAM
from vla_accel_ros.engine.request import (
    ACT,
    ASK,
    DENOISE,
    OBSERVE,
    WAITING,
    MicroBatch,
    Request,
    Requests,
    by_priority,
)
from vla_accel_ros.engine.rules.rule import Plan, Rule, Setup

LATE = 0.15
"""How much later than a chunk is due a step may begin because of a group of a frame, as a share of the period
of the stream's chunks."""

MOST_PASSED = 16
"""Frames in a row that go before a step: nobody acts on them."""
AT_ONCE_S = 1e-4
"""Longest gap between two micro-batches that follow each other at once."""
NO_WAIT = (-math.inf, -math.inf)
"""When a chunk is due, and until when other work may hold its step up, if a step waits for none."""


class Chunks(Rule):
    """A rule of frames and chunks, which leaves everybody a turn beside those who want something without end.

    A caller that acts on one frame again and again waits for frames that were submitted earlier, and with a
    whole chunk also for chunks. Frames that nobody acts on must not keep chunks waiting for ever, so rules
    let chunks pass after some frames in a row.
    """

    def __init__(self) -> None:
        self._acted: dict[str, int] = {}  # version of the frame that each robot's last chunk was made from
        self._passed = 0  # frames since the last micro-batch of chunks

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        if batch.requests[-1].want == ASK:
            return
        acts = [request for request in batch.requests if request.want == ACT]
        self._passed = 0 if acts else self._passed + len(batch.requests)
        for request in acts:
            if request.prefix is not None:
                self._acted[request.robot] = request.prefix.version

    def _later(self, ready: Requests) -> set[Request]:
        """The callers' chunks of frames that were acted on before which wait for what was submitted
        earlier."""
        repeated = [request for request in ready if self._acts_again(request)]
        return {request for request in repeated if any(_goes_before(other, request) for other in ready)}

    def _acts_again(self, request: Request) -> bool:
        if request.status is not WAITING or request.stream or request.want != ACT or request.prefix is None:
            return False
        return request.prefix.version <= self._acted.get(request.robot, -1)


class WholeChunks(Chunks):
    """One chunk at a time, all its steps in one micro-batch, before the next frame is encoded.

    Encoding a frame while the chunk of the one before waits would make both late. A second chunk from one
    frame, for newer joints, comes after both. If a caller outside a stream wants it, it comes after frames
    that were submitted earlier: callers that act on one frame again and again leave others their turn.
    """

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        acts = by_priority([request for request in ready if request.want == ACT])
        later = self._later(ready)
        for request in acts:
            if request.status is not WAITING or request.fresh or not (request.stream or request in later):
                return MicroBatch(request.stage, (request,), steps=0)
        return next_frame(ready) or (MicroBatch(acts[0].stage, (acts[0],), steps=0) if acts else None)


class StaggeredChunks(Chunks):
    """Up to `seats` chunks at once. groups: number of groups of a frame. joins: chunks that begin in a step.
    dropped_after: duration of a chunk in steps, if a new frame drops unfinished chunks; None: they are
    finished, and steps wait for chunks that are due."""

    def __init__(
        self,
        seats: int,
        groups: int = 1,
        joins: int = 1,
        dropped_after: float | None = None,
    ) -> None:
        super().__init__()
        self.plan = Plan()
        self._seats, self._groups, self._joins, self._steps = seats, groups, joins, dropped_after
        self._frames_s: dict[str, tuple[float, float]] = {}  # when a robot's last two began
        self._after_group: dict[str, bool] = {}  # whether a lane's last work but text was one
        self._after_step: dict[str, bool] = {}  # whether a lane's last work was one
        # When a chunk is due that the next step waits for, and until when other work may hold it up.
        self._due_s, self._late_s = NO_WAIT
        self._deferred: int | None = None  # steps that a group has waited for that did not fit before them

    def chose(self, lane: str, batch: MicroBatch, now_s: float) -> None:
        super().chose(lane, batch, now_s)
        want = batch.requests[-1].want
        self._after_step[lane] = want == ACT
        if want == ASK:
            return
        self._after_group[lane] = want != ACT and self._groups > 1
        if want != ACT:
            self._deferred = None
            self._note_frames(batch, now_s)
        elif self._deferred is not None:
            self._deferred += 1

    def wake_s(self, ready: Requests, now_s: float) -> float:
        """When the chunk is due for which a step waits."""
        return self.busy_until_s(ready, now_s, 0.0)

    def busy_until_s(self, ready: Requests, now_s: float, part: float) -> float:
        """Until when other work may run while a step waits for a chunk; inf if none does."""
        if now_s >= self._due_s or not any(request.want == ACT for request in ready):
            return math.inf
        return self._due_s + part * (self._late_s - self._due_s)

    def next(self, lane: str, ready: Requests, now_s: float, due_s: float = math.inf) -> MicroBatch | None:
        acts = [request for request in ready if request.want == ACT]
        if later := self._later(ready):
            acts = [request for request in acts if request not in later]
        if whole := by_priority([request for request in acts if request.whole]):
            return MicroBatch(DENOISE, (whole[0],), steps=0)
        waiting = by_priority([request for request in acts if request.status is WAITING])
        fresh = [request for request in waiting if request.fresh or not request.stream]
        begun = [r for r in acts if r.status is not WAITING and not (fresh and _gives_way(r, fresh[0]))]
        waiting = [request for request in waiting if self._in_time(request, now_s)]
        joining = max(0, min(self._joins, self._seats - len(begun)))
        if joining and fresh:
            return MicroBatch(DENOISE, (*begun, *fresh[:joining]))
        joins = waiting[:joining]
        step = MicroBatch(DENOISE, (*begun, *joins)) if begun or joins else None
        if acts:
            paced = step if self._steps is None and joining and not joins else None
            self._due_s, self._late_s = NO_WAIT if paced is None else self._wait_s(lane, paced, now_s)
        group = next_frame(ready)
        if group is not None and now_s < self._due_s:
            in_time = self.plan.ends_s(lane, group, now_s) <= self._late_s
            return group if in_time or self._is_turn_of_group(lane, now_s) else None
        if now_s < self._due_s:
            return None
        if step is None or group is None:
            return step or group
        if self._after_group.get(lane) or self._passed >= MOST_PASSED:
            return step
        return group if not joins or self._is_turn_of_group(lane, now_s) else step

    def _note_frames(self, batch: MicroBatch, now_s: float) -> None:
        """Note the frames that begin with this micro-batch."""
        for request in batch.requests:
            if request.want == OBSERVE and request.status is WAITING:
                self._frames_s[request.robot] = self._frames_s.get(request.robot, (0.0, -math.inf))[1], now_s

    def _in_time(self, request: Request, now_s: float) -> bool:
        """Whether a chunk that begins now is expected to be finished when its robot's next frame begins.
        Always true if frames follow each other faster than a chunk is made."""
        before_s, last_s = self._frames_s.get(request.robot, (-math.inf, -math.inf))
        if self._steps is None or not request.stream or request.fresh or not math.isfinite(before_s):
            return True
        step_s, apart_s = self.plan.takes_s(MicroBatch(DENOISE, (request,))), last_s - before_s
        takes_s = self._steps * step_s
        return takes_s > apart_s or not now_s <= last_s + apart_s < now_s + takes_s

    def _is_turn_of_group(self, lane: str, now_s: float) -> bool:
        """Whether a group goes before the next step: none went since the last step, and it follows that at
        once. If nothing has run for a while it first waits for one step."""
        if self._after_group.get(lane):
            return False
        return self._groups == 1 or self._follows_step(lane, now_s) or self._was_deferred()

    def _was_deferred(self) -> bool:
        """Whether a group has already waited for a step; if not, it waits for the next one."""
        if self._deferred is None:
            self._deferred = 0
        return self._deferred > 0

    def _follows_step(self, lane: str, now_s: float) -> bool:
        """Whether what is chosen now begins as a step ends."""
        return self._after_step.get(lane, False) and self.plan.idle_s(lane, now_s) <= AT_ONCE_S

    def _wait_s(self, lane: str, step: MicroBatch, now_s: float) -> tuple[float, float]:
        """When the next chunk is due for which a step waits, and until when other work may hold the step up;
        -inf if none is due soon enough."""
        would_end_s = self.plan.ends_s(lane, step, now_s)
        waits_s = [
            (grid.due_s, grid.due_s + LATE * request.pace.period_s)
            for request in step.requests
            if request.act.sense is not None
            and (grid := request.act.grid) is not None
            and now_s < grid.due_s <= would_end_s
        ]
        return min(waits_s, default=NO_WAIT)


def next_frame(ready: Requests) -> MicroBatch | None:
    """Continue the frame in progress, else observe the next frame."""
    frames = [request for request in ready if request.want == OBSERVE]
    if not frames:
        return None
    frame = min(frames, key=lambda request: (request.status is WAITING, -request.priority))
    return MicroBatch(frame.stage, (frame,))


def in_progress(ready: Requests) -> bool:
    """Whether some groups of a frame are computed. Another prefix would force the rest of them at once."""
    return any(request.want == OBSERVE and request.status is not WAITING for request in ready)


def _goes_before(other: Request, again: Request) -> bool:
    """Whether a caller's further chunk waits for this request: a frame that was submitted earlier or, before
    a whole chunk, a chunk that is no further one of a stream."""
    if other.priority < again.priority or other.submitted_s >= again.submitted_s:
        return False
    if other.want == ACT:
        return again.whole and (other.begun or other.fresh or not other.stream)
    return other.want == OBSERVE


def _gives_way(old: Request, new: Request) -> bool:
    """Whether nobody wants the old chunk once the new one begins, because its robot has another
    instruction."""
    return old.stream and new.stream and old.robot == new.robot and old.instruction != new.instruction


def whole(setup: Setup) -> Rule:
    """The rule for one chunk at a time."""
    return WholeChunks()


def staggered(setup: Setup) -> Rule:
    """The rule for `staggered` chunks at once; whole chunks if that is 0."""
    config = setup.config
    if not config.staggered:
        return WholeChunks()
    finished = config.staggering == STREAM or config.lanes in (ACTIONS_APART, ALL_APART)
    joins = joins_of(config.staggered, config.steps)
    # While it is made text has its share.
    dropped_after = None if finished else config.steps / (1.0 - config.text_share)
    return StaggeredChunks(config.staggered, config.prefill_groups, joins, dropped_after)


def joins_of(seats: int, steps: int) -> int:
    """Number of chunks that must begin in each step to keep the seats full."""
    return -(-seats // steps)
