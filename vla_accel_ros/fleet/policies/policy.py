"""The interface of a fleet's scheduling policy, and what the built-in ones share.

It is the engine's `Policy` and one hook more. A lane is a replica, a request an ACT whose `task` is a
fleet.task.Task, and a micro-batch of stage SERVE is a chunk for each of its requests. Its owner asks `next`
for every idle replica when something came or ended, calls `Task.dispatched` for what it dispatches and says
so in `Request.begun`, calls `ran` when the answers are there, and `ended` when a task is over. It may ask
more often than it dispatches: only who waited while others were dispatched counts as passed over.

All built-in policies differ in `keys` alone. Emergencies go before everything and share a batch with nobody
else, since a larger batch takes longer. Who cannot be answered in time (Request.within_s) any more is passed
by while there are others: the chunk would be computed for nobody. Higher priorities go before lower ones. Who
was passed over for `patience` times as long as a round of all that wait takes goes before its equals, so that
nobody of the highest priority waits for ever. Equals go in order of submission.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Protocol

from vla_accel_ros.engine.policies.policy import Policy
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch, Request
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.task import Task

SERVE = "serve"
"""Stage of a micro-batch, and its name in a Profile."""
PATIENCE = 32.0
UNKNOWN_S = 0.1
"""Of a batch on a replica of which nothing is known yet."""


@dataclass
class ReplicaProfile:
    """What is known of a replica. limit: most requests in a batch. profile: seconds of (SERVE, batch).
    network_s: to the replica and back. busy_s: how long until it computes what is begun now, where its owner
    knows; None: as is expected of the batch that was chosen for it last. beside: requests that it computes
    then, and goes on to compute together with what is begun. Raises ValueError for what cannot be."""

    limit: int
    profile: Profile
    network_s: float = 0.0
    busy_s: float | None = None
    beside: int = 0

    def __post_init__(self) -> None:
        if self.limit < 1 or not 0 <= self.network_s < math.inf:
            raise ValueError(
                f"a replica takes {self.limit} requests over {self.network_s} s of network; give 1 or more, "
                "and 0 s or more."
            )

    def serves_s(self, batch: int) -> float:
        """From the dispatch of so many requests to their answers. Beside others each takes as long as it
        takes so many together, between what is known of more and of fewer."""
        if not self.beside:
            return self.network_s + self.profile.expected_s(SERVE, batch, UNKNOWN_S)
        known = sorted(
            (size, took_s) for (stage, size), took_s in self.profile.known().items() if stage == SERVE
        )
        sizes, times_s = zip(*known, strict=True) if known else ((1,), (UNKNOWN_S,))
        return self.network_s + interpolated(self.beside + batch, sizes, times_s)


@dataclass(frozen=True)
class FleetSetup:
    """What a policy is made for. replicas: by name, as they are now: their owner adds those that come and
    takes away those that are gone."""

    replicas: Mapping[str, ReplicaProfile]


class FleetPolicy(Policy, Protocol):
    """Chooses who is served next."""

    def ended(self, task: Task, now_s: float) -> None:
        """A task is over: what it took tells about others of its kind."""
        ...


class InOrder:
    """Serves those with the smallest keys first. patience: see the module; inf: no bound on waiting."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        if not patience > 0:
            raise ValueError(f"patience is {patience}; give a number above 0.")
        self._replicas, self._patience = setup.replicas, patience
        self._running: dict[str, tuple[MicroBatch, float]] = {}  # and when its answers are expected
        self._chosen: dict[str, tuple[MicroBatch, float]] = {}  # the last of each replica, and when

    def keys(self, ready: Sequence[Request], now_s: float) -> Sequence[Any]:
        """Of each request; the smallest goes first."""
        raise NotImplementedError

    def next(
        self, lane: str, ready: Sequence[Request], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        """Whom this replica serves now; None where others answer all of them sooner."""
        self._running.pop(lane, None)
        if not ready:
            return None
        self._count_passed(ready)
        replica, priorities = self._replicas[lane], priorities_of(ready)
        waiting, emergency = ready, max(priorities) >= EMERGENCY
        if emergency:
            waiting = [one for one, priority in zip(ready, priorities, strict=True) if priority >= EMERGENCY]
            priorities = [priority for priority in priorities if priority >= EMERGENCY]
        else:
            in_time = self._in_time(replica, ready, now_s)
            if 0 < len(in_time) < len(ready):
                waiting, priorities = in_time, priorities_of(in_time)
        left = self._served_sooner(lane, len(waiting), now_s)
        count = min(replica.limit, len(waiting) - left)
        if count < 1:
            return None
        keys = [0] * len(waiting) if emergency else self.keys(waiting, now_s)
        most = self._patience * math.ceil(len(waiting) / replica.limit)
        order = _first(left + count, waiting, priorities, keys, most)
        batch = MicroBatch(SERVE, tuple(waiting[index] for index in order[left:]), steps=0)
        self._running[lane] = batch, now_s + (replica.busy_s or 0.0) + replica.serves_s(count)
        self._chosen[lane] = batch, now_s
        return batch

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """It was answered, took_s after its dispatch."""
        for lane, (running, _) in self._running.items():
            if running is batch and lane in self._replicas:
                replica = self._replicas[lane]
                spent_s = max(took_s - replica.network_s, 1e-6)
                replica.profile.note(SERVE, len(batch.requests), spent_s)
                del self._running[lane]
                return

    def wake_s(self, ready: Sequence[Request], now_s: float) -> float:
        """When a replica is expected to be idle, or, where it is late, to be late enough to be passed by."""
        expected = [self._idle_s(lane, now_s) for lane in self._running if lane in self._replicas]
        return min(expected, default=math.inf)

    def ended(self, task: Task, now_s: float) -> None:
        pass

    def _count_passed(self, ready: Sequence[Request]) -> None:
        """Those that waited already when others were chosen that were dispatched since."""
        for lane, (batch, chosen_s) in tuple(self._chosen.items()):
            if any(request.begun for request in batch.requests):
                del self._chosen[lane]
                for request in ready:
                    if request.submitted_s <= chosen_s:
                        request.task.skipped += 1

    def _in_time(self, replica: ReplicaProfile, ready: Sequence[Request], now_s: float) -> Sequence[Request]:
        """Those that a batch of as many answers within their time."""
        answer_s = now_s + replica.serves_s(min(replica.limit, len(ready)))
        return [request for request in ready if request.submitted_s + request.within_s >= answer_s]

    def _served_sooner(self, lane: str, waiting: int, now_s: float) -> int:
        """How many of those who are first in line other replicas answer before this one would (Kairos,
        algorithm 1, lines 15 to 19)."""
        if len(self._replicas) == 1:
            return 0
        replica = self._replicas[lane]
        size = min(replica.limit, waiting)
        answer_s = now_s + (replica.busy_s or 0.0) + replica.serves_s(size) - 1e-6
        sooner = 0
        for name, other in self._replicas.items():
            if name != lane:
                batches = self._batches_until(name, other, min(other.limit, waiting), now_s, answer_s)
                sooner += other.limit * batches
        return min(sooner, waiting)

    def _batches_until(
        self, name: str, other: ReplicaProfile, size: int, now_s: float, answer_s: float
    ) -> int:
        idle_s, each_s = self._idle_s(name, now_s), other.serves_s(size)
        return max(0, math.floor((answer_s - idle_s) / each_s))

    def _idle_s(self, lane: str, now_s: float) -> float:
        """A replica that is late is expected to be late for as long again."""
        if (busy_s := self._replicas[lane].busy_s) is not None:
            return now_s + busy_s
        if lane not in self._running:
            return now_s
        expected_s = self._running[lane][1]
        return expected_s if now_s < expected_s else now_s + max(now_s - expected_s, 1e-3)


def interpolated(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Between the two nearest of these places, which ascend; the first or last value outside of them."""
    right = bisect_left(places, at)
    if right == 0 or right == len(places):
        return values[min(right, len(places) - 1)]
    part = (at - places[right - 1]) / (places[right] - places[right - 1])
    return values[right - 1] + part * (values[right] - values[right - 1])


def priorities_of(requests: Sequence[Request]) -> list[int]:
    """Of each its own, or its task's if that is higher."""
    return [
        request.priority if request.priority > request.task.priority else request.task.priority
        for request in requests
    ]


def _first(
    count: int, waiting: Sequence[Request], priorities: Sequence[int], keys: Sequence[Any], most: float
) -> list[int]:
    """Indices of the first so many: by priority, then those skipped more often than `most`, then by key."""
    late = most < math.inf and max([request.task.skipped for request in waiting]) > most
    if late or max(priorities) > min(priorities):
        keys = [
            (-priority, 0, 0) if request.task.skipped > most else (-priority, 1, key)
            for request, priority, key in zip(waiting, priorities, keys, strict=True)
        ]
    return nsmallest(count, range(len(waiting)), key=keys.__getitem__)
