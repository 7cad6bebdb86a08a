"""The interface of a fleet's scheduling rule, and what the built-in rules share.

The interface has three methods of the engine's `Rule` and one more hook. A lane is a replica, a request is an
ACT whose `task` is a fleet.task.Task, and a micro-batch of stage SERVE is one chunk for each of them. The
dispatcher calls `next` for every idle replica when something arrives or ends, `Task.dispatched` for what it
dispatches (and sets `Request.status`), `ran` when the answers arrive, and `ended` when a task is over. It may
call `next` more often than it dispatches, and dispatch one by one or in batches. So waiting counts in seconds
and not in decisions: a replica that takes requests one by one decides far more often than one that takes
batches, at the same work.

The built-in rules differ only in `keys`. Emergencies go first and share a batch with nobody else, since a
larger batch takes longer. A request that can no longer be answered in time (`Request.pace`) yields to the
others, because nobody could use its chunk. Higher priorities go before lower ones. A request that has waited
`patience` times as long as serving all waiting requests takes goes before its equals, so that nobody of the
highest priority waits forever. Equals go in order of submission.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any, Protocol

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import MicroBatch
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.task import Task, TaskRequest
from vla_accel_ros.option import check_options, option

SERVE = "serve"
"""Stage of a micro-batch, and its key in a Profile."""
PATIENCE = 32.0
UNKNOWN_S = 0.1
"""Batch duration assumed for a replica without measurements."""


@dataclass
class ReplicaProfile:
    """What a rule knows of a replica. limit: most requests in a batch. profile: seconds of (SERVE, batch).
    network_s: round trip. busy_s: time until it would start new work, if the dispatcher knows; None means as
    expected of the last batch chosen for it. beside: requests that it would compute together with new work.
    slower: by how much it computes slower now than the profile says. Raises ValueError if limit or
    network_s is out of range."""

    limit: int
    profile: Profile
    network_s: float = 0.0
    busy_s: float | None = None
    beside: int = 0
    slower: float = 1.0

    def __post_init__(self) -> None:
        if self.limit < 1 or not 0 <= self.network_s < math.inf:
            raise ValueError(
                f"a replica takes {self.limit} requests over {self.network_s} s of network; give 1 or more, "
                "and 0 s or more."
            )

    def serves_s(self, batch: int) -> float:
        """Return the expected seconds from the dispatch of `batch` requests to their answers. Beside others
        it is the time of so many together."""
        if not self.beside:
            computes_s = self.profile.latest_s(SERVE, batch, UNKNOWN_S)
        else:
            computes_s = self.together_s(self.beside + batch)
        return self.network_s + self.slower * computes_s

    def together_s(self, count: int) -> float:
        """Return the seconds that `count` requests take together by the profile, interpolated between the
        measured batches."""
        curve = sorted(
            (size, took_s) for (stage, size), took_s in self.profile.known().items() if stage == SERVE
        )
        sizes, times_s = zip(*curve, strict=True) if curve else ((1,), (UNKNOWN_S,))
        return interpolated(count, sizes, times_s)

    @property
    def requests_hz(self) -> float:
        """The most requests that it serves in a second, by its profile."""
        curve = self.profile.known().items()
        rates = [size / took_s for (stage, size), took_s in curve if stage == SERVE]
        return max(rates, default=1.0 / UNKNOWN_S) / self.slower


@dataclass(frozen=True)
class RuleOptions:
    """Options of the built-in rules. Raises ValueError if a value is out of range."""

    kairos_buckets: int = option(
        10,
        "With rule kairos: how many buckets of wait ratios there are (B of the paper).",
        minimum=1,
        in_nodes={"maximum": 1000},
    )
    kairos_ageing_s: float = option(
        60.0,
        "With rule kairos: a waiting request moves up a bucket after each such time (A of the paper) [s].",
        minimum=1e-3,
        in_nodes={"minimum": 0.1, "maximum": 1e6},
    )
    age_exponent: float = option(
        2.0,
        "With rule aged_srpt: exponent of 1 + age, which divides the remaining rounds; 0: no ageing.",
        minimum=0.0,
        maximum=1e3,
        in_nodes={"maximum": 10.0},
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class FleetSetup:
    """Inputs of a rule. replicas: by name; the owner keeps this mapping up to date."""

    replicas: Mapping[str, ReplicaProfile]
    options: RuleOptions = RuleOptions()


class FleetRule(Protocol):
    """Chooses which requests a replica serves next; see engine.rules.rule.Rule."""

    def next(
        self, lane: str, ready: Sequence[TaskRequest], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None: ...

    def ran(self, batch: MicroBatch, took_s: float) -> None: ...

    def wake_s(self, ready: Sequence[TaskRequest], now_s: float) -> float: ...

    def ended(self, task: Task, now_s: float) -> None:
        """A task is over; the rule may learn from it for others of its kind."""


def rule_factory(name: str, options: RuleOptions) -> Callable[[FleetSetup], FleetRule]:
    """Return what makes the rule of that name with these options. Raises ValueError as
    vla_accel_ros.extensions.find does."""
    make = find(FLEET_RULES, name)
    return lambda setup: make(replace(setup, options=options))


class InOrder:
    """Serves the requests with the smallest keys first. patience: see the module; inf means no bound on
    waiting."""

    def __init__(self, setup: FleetSetup, patience: float = PATIENCE) -> None:
        if not patience > 0:
            raise ValueError(f"patience is {patience}; give a number above 0.")
        self._replicas, self._patience = setup.replicas, patience
        self._running: dict[str, tuple[MicroBatch, float]] = {}  # with the expected time of its answers

    def keys(self, ready: Sequence[TaskRequest], now_s: float) -> Sequence[Any]:
        """Return a sort key for each request; the smallest goes first."""
        raise NotImplementedError

    def next(
        self, lane: str, ready: Sequence[TaskRequest], now_s: float, due_s: float = math.inf
    ) -> MicroBatch | None:
        """Return the batch that this replica serves now; None if other replicas answer all of it sooner."""
        self._running.pop(lane, None)
        if not ready:
            return None
        replica, priorities = self._replicas[lane], priorities_of(ready)
        waiting, emergency = ready, max(priorities) >= EMERGENCY
        if emergency:
            waiting = [
                request for request, priority in zip(ready, priorities, strict=True) if priority >= EMERGENCY
            ]
            priorities = [priority for priority in priorities if priority >= EMERGENCY]
        else:
            in_time = self._in_time(replica, ready, now_s)
            if 0 < len(in_time) < len(ready):
                waiting, priorities = in_time, priorities_of(in_time)
        sooner = self._served_sooner(lane, len(waiting), now_s)
        count = min(replica.limit, len(waiting) - sooner)
        if count < 1:
            return None
        keys = [0] * len(waiting) if emergency else self.keys(waiting, now_s)
        order = _first(sooner + count, waiting, priorities, keys, now_s - self._patience_s(len(waiting)))
        batch = MicroBatch(SERVE, tuple(waiting[index] for index in order[sooner:]), steps=0)
        self._running[lane] = batch, now_s + (replica.busy_s or 0.0) + replica.serves_s(count)
        return batch

    def ran(self, batch: MicroBatch, took_s: float) -> None:
        """A batch was answered took_s after its dispatch. The owner of the profiles learns from that."""
        self._running = {lane: running for lane, running in self._running.items() if running[0] is not batch}

    def wake_s(self, ready: Sequence[TaskRequest], now_s: float) -> float:
        """Return when a replica should be idle, or, if one is late, when placement should be considered
        again."""
        expected = [self._idle_s(lane, now_s) for lane in self._running if lane in self._replicas]
        return min(expected, default=math.inf)

    def ended(self, task: Task, now_s: float) -> None:
        pass

    def _patience_s(self, waiting: int) -> float:
        """Return how long a request may wait beside so many."""
        if self._patience == math.inf:
            return math.inf
        return self._patience * waiting / sum(replica.requests_hz for replica in self._replicas.values())

    def _in_time(
        self, replica: ReplicaProfile, ready: Sequence[TaskRequest], now_s: float
    ) -> Sequence[TaskRequest]:
        """Return the requests that a batch of this size would answer in time."""
        answer_s = now_s + replica.serves_s(min(replica.limit, len(ready)))
        return [request for request in ready if request.submitted_s + request.pace.most_s >= answer_s]

    def _served_sooner(self, lane: str, waiting: int, now_s: float) -> int:
        """Return how many of the first requests in line other replicas would answer sooner (Kairos, algorithm
        1, lines 15 to 19)."""
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
        """Return when a replica should be idle. A late replica is expected to be late for as long again."""
        if (busy_s := self._replicas[lane].busy_s) is not None:
            return now_s + busy_s
        if lane not in self._running:
            return now_s
        expected_s = self._running[lane][1]
        return expected_s if now_s < expected_s else now_s + max(now_s - expected_s, 1e-3)


def interpolated(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Return the value at `at`, linear between ascending places and constant outside of them."""
    right = bisect_left(places, at)
    if right == 0 or right == len(places):
        return values[min(right, len(places) - 1)]
    part = (at - places[right - 1]) / (places[right] - places[right - 1])
    return values[right - 1] + part * (values[right] - values[right - 1])


def priorities_of(requests: Sequence[TaskRequest]) -> list[int]:
    """Return each request's priority, or its task's if that is higher."""
    return [
        request.priority if request.priority > request.task.priority else request.task.priority
        for request in requests
    ]


def _first(
    count: int,
    waiting: Sequence[TaskRequest],
    priorities: Sequence[int],
    keys: Sequence[Any],
    before_s: float,
) -> list[int]:
    """Return the indices of the first `count` requests: by priority, then those of tasks that asked before
    before_s, then by key."""
    overdue = min([request.task.asked_s for request in waiting]) < before_s
    if overdue or max(priorities) > min(priorities):
        keys = [
            (-priority, 0, 0) if request.task.asked_s < before_s else (-priority, 1, key)
            for request, priority, key in zip(waiting, priorities, keys, strict=True)
        ]
    return nsmallest(count, range(len(waiting)), key=keys.__getitem__)
