"""The requests of a fleet, sorted by what is to be done with them, so that a step looks only at those.

Of a thousand robots a replica computes some twenty, and a few are asked to observe anew; the others wait for
their turn or execute what they have. A request is in one place: `working`, `urgent` (emergencies), `called`
(its robot was asked to observe anew) or `waiting`, which is in order of first attempts, as policies take it.
When each can be used no longer stands in a heap.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from vla_accel_ros.engine.request import Request
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot

Pair = tuple[Robot, PendingRequest]
Place = dict[Request, Pair]


class Queue:
    """See the module. Whoever changes a pending request's work, call, priority or deadline calls `place`."""

    def __init__(self) -> None:
        self.waiting: Place = {}
        self.called: Place = {}
        self.urgent: Place = {}
        self.working: Place = {}
        self._places: dict[Request, Place] = {}
        self._due: list[tuple[float, int, Pair]] = []
        self._numbers, self._entries = itertools.count(), itertools.count()

    def place(self, robot: Robot) -> None:
        """Have a robot's pending request where it belongs now."""
        pending = robot.pending
        assert pending is not None
        request = pending.request
        if pending.number < 0:
            pending.number = next(self._numbers)
        if pending.work is not None:
            place = self.working
        elif request.priority >= EMERGENCY:
            place = self.urgent
        else:
            place = self.called if pending.called_s is not None else self.waiting
        before = self._places.get(request)
        if before is not place:
            if before is not None:
                del before[request]
            self._places[request] = place
            place[request] = (robot, pending)
            if place is self.waiting:
                self._keep_order(pending)
        if pending.work is None and math.isfinite(pending.until_s):
            heapq.heappush(self._due, (pending.until_s, next(self._entries), (robot, pending)))

    def remove(self, pending: PendingRequest) -> None:
        """Nobody waits for it any more."""
        place = self._places.pop(pending.request, None)
        if place is not None:
            del place[pending.request]
        if len(self._due) > 64 + 4 * len(self._places):
            self._due = [entry for entry in self._due if self._is_due(*entry[2], entry[0])]
            heapq.heapify(self._due)

    def expired(self, now_s: float) -> Iterator[Pair]:
        """Those that are not computed, and whose chunks nobody can use any longer."""
        while self._due and self._due[0][0] <= now_s:
            until_s, _, (robot, pending) = heapq.heappop(self._due)
            if self._is_due(robot, pending, until_s):
                yield robot, pending

    def __len__(self) -> int:
        """Requests that are not computed yet."""
        return len(self._places) - len(self.working)

    def _is_due(self, robot: Robot, pending: PendingRequest, until_s: float) -> bool:
        """Whether an entry of the heap is the request's own: a newer attempt has another deadline."""
        return robot.pending is pending and pending.work is None and pending.until_s == until_s

    def _keep_order(self, newest: PendingRequest) -> None:
        """What comes back, as from a replica that was lost, waits where it waited."""
        others = reversed(self.waiting.values())
        next(others)
        last = next(others, None)
        if last is not None and last[1].number > newest.number:
            self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1][1].number))
            self._places.update(dict.fromkeys(self.waiting, self.waiting))
