"""The requests of a fleet, sorted by state, so that a step looks only at those that need work.

Of a thousand robots, some twenty are being computed and a few are observing again; the others wait for their
turn or execute their chunk. A request is in exactly one place: `working`, `urgent` (emergencies), `called`
(its robot was asked to observe again) or `waiting`, in order of first attempts, as rules expect. A heap
holds their deadlines.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot
from vla_accel_ros.fleet.task import TaskRequest

Pair = tuple[Robot, PendingRequest]
Place = dict[TaskRequest, Pair]


class Queue:
    """See the module. Call `place` after changing a pending request's work, call, priority or deadline."""

    def __init__(self) -> None:
        self.waiting: Place = {}
        self.called: Place = {}
        self.urgent: Place = {}
        self.working: Place = {}
        self._places: dict[TaskRequest, Place] = {}
        self._due: list[tuple[float, int, Pair]] = []
        self._numbers, self._entries = itertools.count(), itertools.count()

    def place(self, robot: Robot) -> None:
        """Move a robot's pending request to the place of its present state."""
        pending = robot.pending
        assert pending is not None
        request = pending.request
        if pending.number < 0:
            pending.number = next(self._numbers)
        if pending.work is not None:
            group = self.working
        elif request.priority >= EMERGENCY:
            group = self.urgent
        else:
            group = self.called if pending.called_s is not None else self.waiting
        previous = self._places.get(request)
        if previous is not group:
            if previous is not None:
                del previous[request]
            self._places[request] = group
            group[request] = (robot, pending)
            if group is self.waiting:
                self._keep_order(pending)
        if pending.work is None and math.isfinite(pending.until_s):
            heapq.heappush(self._due, (pending.until_s, next(self._entries), (robot, pending)))

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request."""
        group = self._places.pop(pending.request, None)
        if group is not None:
            del group[pending.request]
        if len(self._due) > 64 + 4 * len(self._places):
            self._due = [entry for entry in self._due if self._is_due(*entry[2], entry[0])]
            heapq.heapify(self._due)

    def expired(self, now_s: float) -> Iterator[Pair]:
        """Yield the requests that are not being computed and whose deadline has passed."""
        while self._due and self._due[0][0] <= now_s:
            until_s, _, (robot, pending) = heapq.heappop(self._due)
            if self._is_due(robot, pending, until_s):
                yield robot, pending

    def __len__(self) -> int:
        """Number of requests that are not being computed."""
        return len(self._places) - len(self.working)

    def _is_due(self, robot: Robot, pending: PendingRequest, until_s: float) -> bool:
        """Return whether a heap entry is still valid: a newer attempt has another deadline."""
        return robot.pending is pending and pending.work is None and pending.until_s == until_s

    def _keep_order(self, newest: PendingRequest) -> None:
        """Restore the order of first attempts after a request came back, for example from a lost replica."""
        newest_first = reversed(self.waiting.values())
        next(newest_first)
        last = next(newest_first, None)
        if last is not None and last[1].number > newest.number:
            self.waiting = dict(sorted(self.waiting.items(), key=lambda item: item[1][1].number))
            self._places.update(dict.fromkeys(self.waiting, self.waiting))
