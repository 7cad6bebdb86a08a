"""Flow chunks: whole, one after another, or staggered, several at their own noise levels in one batch.

Staggered: a chunk needs as many steps as ever, but each step advances all that have begun and finishes the
oldest, so chunks leave at the rate of steps. Whatever is ready to begin joins the next step: one of them or,
where there are more seats than steps, as many as keep the seats full. What is whole
(`Request.whole`, as the first chunk of a frame with staggering "fresh") goes before all steps.

Steps keep time with the joints. A step that no chunk begins in finishes none later, and costs as much as any
other; so where a stream is about to bring newer joints, the step waits for them if they are expected before
it would itself be over. Chunks then leave as evenly as joints come, and the processor is free in between. Not
so where the first chunk of each frame is whole and frames are computed in the same lane: what is not finished
before the next frame's first chunk is dropped. So what has begun is finished soon, and none begins that would
not be finished before the next frame, if frames come as they did; steps then compute fewer chunks, and text
has what is left.

A frame goes before steps, but where it is computed in groups of layers its groups fill the time in which a
step waits, as many as fit. Where none fits, the two alternate: a group follows a step at once, or waits for
one more where that step ended a while ago; the next step waits for one group at most, and a frame for the
steps between its groups. Whole chunks and groups do not alternate: a whole chunk takes as long as several
groups. What goes before a frame goes before its next group, too; the rest waits for all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, STREAM
from vla_accel_ros.engine.policies.policy import Backlog, Policy, Setup
from vla_accel_ros.engine.request import ACT, DENOISE, OBSERVE, REWORD, MicroBatch, Request, by_priority

LATE = 0.15
"""Of the period of a stream's chunks, how long a step waits for one that is not there when it is expected,
and how much later than expected it may begin for a group of a frame, or a token."""


AT_ONCE_S = 1e-4
"""Between two micro-batches that follow each other without a wait."""


class WholeChunks(Policy):
    """One chunk at a time, all its steps in one micro-batch, before the next frame is encoded.

    To encode a frame while the one before still waits makes both late. A second chunk from one frame, for
    newer joints, comes after both.
    """

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        acts = [request for request in ready if request.want == ACT]
        for request in by_priority(acts):
            if request.begun or request.fresh or not request.stream:
                return MicroBatch(request.stage, (request,), steps=0)
        return see(ready) or (MicroBatch(acts[0].stage, (acts[0],), steps=0) if acts else None)


class StaggeredChunks(WholeChunks):
    """Up to `seats` chunks at once. groups: in which a frame is computed. joins: chunks begun in a step.
    dropped_after: how long a chunk takes, in steps, where those are dropped that a new frame finds; None:
    they are finished, and steps wait for joints."""

    def __init__(
        self, seats: int, groups: int = 1, joins: int = 1, dropped_after: float | None = None
    ) -> None:
        self._seats, self._groups, self._joins, self._steps = seats, groups, joins, dropped_after
        self._frames_s: dict[str, tuple[float, float]] = {}  # when a robot's last two began
        self._after_group = self._after_step = False  # what was chosen last
        self._backlog = Backlog()
        # When joints are expected that the next step waits for, and until when it waits.
        self._expected_s = self._wait_s = -math.inf
        self._deferred: int | None = None  # steps that a group has waited for that did not fit before them

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        batch = self._chosen(ready, now_s)
        if batch is not None:
            frame = batch.requests[-1].want in (OBSERVE, REWORD)
            self._after_group, self._after_step = frame and self._groups > 1, not frame
            if frame:
                self._deferred = None
                self._note_frames(batch, now_s)
            elif self._deferred is not None:
                self._deferred += 1
            if self._after_group or not frame:
                self._backlog.chose(batch, now_s)
        return batch

    def beside(self, until_s: float) -> None:
        """Something else was chosen for the lane, and is expected to be over then."""
        self._backlog.until(until_s)
        self._after_step = False

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """Steps and groups are expected to take as long as they did lately."""
        self._backlog.ran(batch, took_s)

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When what a step waits for is expected; after that, when it is run without."""
        until_s = self.waits_until_s(ready, now_s)
        return min(until_s, self._expected_s) if now_s < self._expected_s else until_s

    def waits_until_s(self, ready: Sequence[Request], now_s: float, patience: float = 1.0) -> float:
        """Until when a step waits for newer joints; inf: none does. patience: how much of the time counts for
        which it waits longer than they are expected."""
        if now_s >= self._wait_s or not any(request.want == ACT for request in ready):
            return math.inf
        return self._expected_s + patience * (self._wait_s - self._expected_s)

    def _chosen(self, ready: Sequence[Request], now_s: float) -> MicroBatch | None:
        whole, begun, waiting = list[Request](), list[Request](), list[Request]()
        for request in ready:
            if request.want == ACT:
                (whole if request.whole else begun if request.begun else waiting).append(request)
        if whole:
            return MicroBatch(DENOISE, (by_priority(whole)[0],), steps=0)
        acts = bool(begun or waiting)
        fresh = [request for request in waiting if request.fresh or not request.stream]
        if fresh:
            begun = [request for request in begun if not _gives_way(request, fresh[0])]
        joining = max(0, min(self._joins, self._seats - len(begun)))
        if joining and fresh:
            return MicroBatch(DENOISE, (*begun, *fresh[:joining]))
        joins = [request for request in waiting if self._in_time(request, now_s)][:joining]
        if acts:
            paced = self._steps is None and joining and not joins
            self._expected_s, self._wait_s = self._waits_s(begun, now_s) if paced else (-math.inf, -math.inf)
        group = see(ready)
        if now_s < self._wait_s:
            return group if group is not None and self._fits(group, now_s) else None
        step = MicroBatch(DENOISE, (*begun, *joins)) if begun or joins else None
        if step is None or group is None:
            return step or group
        if self._after_group:
            return step
        at_once = self._groups == 1 or not joins or self._follows_step(now_s)
        return group if at_once or self._was_deferred() else step

    def _note_frames(self, batch: MicroBatch, now_s: float) -> None:
        """Of those that begin with this micro-batch."""
        for request in batch.requests:
            if request.want == OBSERVE and not request.begun:
                self._frames_s[request.robot] = self._frames_s.get(request.robot, (0.0, -math.inf))[1], now_s

    def _in_time(self, request: Request, now_s: float) -> bool:
        """Whether a chunk that begins now is expected to be finished when its robot's next frame begins. One
        of frames that follow each other faster than a chunk is made may begin at any time."""
        if self._steps is None or not request.stream or request.fresh:
            return True
        before_s, last_s = self._frames_s.get(request.robot, (-math.inf, -math.inf))
        if not math.isfinite(before_s):
            return True
        takes_s, apart_s = self._steps * self._backlog.takes_s(ACT, DENOISE), last_s - before_s
        return takes_s > apart_s or not now_s <= last_s + apart_s < now_s + takes_s

    def _fits(self, group: MicroBatch, now_s: float) -> bool:
        """Whether a group may run while a step waits: it ends in time, or follows the step before at once and
        is the only one that does. Where nothing has run for a while it waits for one step."""
        if self._backlog.ends_s(group.requests[0].kind, group.stage, now_s) <= self._wait_s:
            return True
        if self._after_group:
            return False
        return self._groups == 1 or self._follows_step(now_s) or self._was_deferred()

    def _was_deferred(self) -> bool:
        """Whether a group has waited for a step already; if not, it waits for the next one."""
        if self._deferred is None:
            self._deferred = 0
        return self._deferred > 0

    def _follows_step(self, now_s: float) -> bool:
        """Whether what is chosen now begins as a step ends."""
        return self._after_step and self._backlog.idle_s(now_s) <= AT_ONCE_S

    def _waits_s(self, begun: Sequence[Request], now_s: float) -> tuple[float, float]:
        """When the next chunk of a stream is expected that a step waits for, and until when it does; -inf if
        none is expected soon enough."""
        newest: dict[str, Request] = {}
        for request in begun:
            if request.stream and request.sense is not None:
                known = newest.get(request.robot)
                if known is None or request.begun_s > known.begun_s:
                    newest[request.robot] = request
        would_end_s = self._backlog.ends_s(ACT, DENOISE, now_s)
        expected_s, wait_s = -math.inf, -math.inf
        for one in newest.values():
            at_s = one.begun_s + one.period_s
            until_s = at_s + LATE * one.period_s
            if at_s <= would_end_s and until_s > now_s and (until_s < wait_s or math.isinf(wait_s)):
                expected_s, wait_s = at_s, until_s
        return expected_s, wait_s


def see(ready: Sequence[Request]) -> MicroBatch | None:
    """Go on with the frame that is in progress, observe the next, or compute one again with another
    instruction."""
    frames = [request for request in ready if request.want in (OBSERVE, REWORD)]
    if not frames:
        return None
    first = max(frames, key=lambda request: (request.begun, request.priority))
    return MicroBatch(first.stage, (first,))


def in_progress(ready: Sequence[Request]) -> bool:
    """Whether a frame is, of which some groups are computed: another prefix would have the rest computed at
    once."""
    return any(request.want == OBSERVE and request.begun for request in ready)


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
    finished = config.staggering == STREAM or config.lanes in (ACTIONS_APART, ALL_APART)
    joins = joins_of(config.staggered, config.steps)
    # While it is made text has its share.
    dropped_after = None if finished else config.steps / (1.0 - config.text_share)
    return StaggeredChunks(config.staggered, config.prefill_groups, joins, dropped_after)


def joins_of(seats: int, steps: int) -> int:
    """Chunks that begin in each step if so many seats are to be full, of chunks of so many steps."""
    return -(-seats // steps)
