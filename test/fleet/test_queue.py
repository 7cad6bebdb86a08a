"""The queue against its plain twin, which looks at all robots each time, over random lives of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fleet_stand_ins import Fleet
from storm import Storm

from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.serving.members import Members
from vla_accel_ros.fleet.serving.queue import Pair, Place
from vla_accel_ros.fleet.serving.records import PendingRequest, Robot


class PlainQueue:
    """fleet.serving.queue.Queue as it is meant: sorted anew from all robots whenever it is read."""

    def __init__(self, members: Members) -> None:
        self._members, self._numbers = members, iter(range(10**9))
        self._since: dict[int, tuple[str, int]] = {}  # of each request: where it is, and since when

    def those(self, wanted: str) -> Place:
        found = [(r, r.pending) for r in self._members.robots.values() if r.pending is not None]
        if wanted == "waiting":
            found.sort(key=lambda pair: pair[1].number)
        else:
            found.sort(key=lambda pair: self._since.get(id(pair[1].request), ("", 0))[1])
        return {pair[1].request: pair for pair in found if place_of(pair[1]) == wanted}

    def __getattr__(self, name: str) -> Place:
        return self.those(name)

    def place(self, robot: Robot) -> None:
        assert robot.pending is not None
        if robot.pending.number < 0:
            robot.pending.number = next(self._numbers)
        where, key = place_of(robot.pending), id(robot.pending.request)
        if self._since.get(key, ("", 0))[0] != where:
            self._since[key] = where, next(self._numbers)

    def remove(self, pending: PendingRequest) -> None:
        pass

    def expired(self, now_s: float) -> Iterator[Pair]:
        found = [pair for place in ("waiting", "called", "urgent") for pair in self.those(place).values()]
        found.sort(key=lambda pair: pair[1].until_s)
        yield from [pair for pair in found if pair[1].until_s <= now_s]

    def __len__(self) -> int:
        return sum(len(self.those(place)) for place in ("waiting", "called", "urgent"))


def place_of(pending: PendingRequest) -> str:
    if pending.work is not None:
        return "working"
    if pending.request.priority >= EMERGENCY:
        return "urgent"
    return "waiting" if pending.called_s is None else "called"


class Everybody(dict[str, Robot]):
    """All robots that are served, also those that settled."""

    def __init__(self, members: Members) -> None:
        super().__init__()
        self._members = members

    def __contains__(self, name: object) -> bool:
        return name in self._members.robots

    def values(self) -> Any:
        return [robot for robot in self._members.robots.values() if robot.verdict.admitted]


def make_storm(seed: int, policy: str, plain: bool) -> Storm:
    storm = Storm(seed, find(FLEET_RULES, policy))
    scheduler = storm.fleet.scheduler
    if plain:
        queue: Any = PlainQueue(scheduler._members)
        scheduler._queue = scheduler._dispatcher._queue = queue
        scheduler._members._unsettled = Everybody(scheduler._members)
    return storm


@pytest.mark.parametrize(("seed", "policy"), [(10, "fifo"), (11, "kairos"), (12, "aged_srpt"), (13, "las")])
def test_a_scheduler_that_looks_at_what_changed_does_what_one_that_looks_at_all_does(
    seed: int, policy: str
) -> None:
    quick, plain = (make_storm(seed, policy, plain) for plain in (False, True))
    for storm in (quick, plain):
        storm.run(3000)
    assert len(quick.fleet.told.chunks()) > 100 and quick.fleet.told.calls
    assert quick.fleet.told.calls == plain.fleet.told.calls
    for robot in {admission.robot for admission in plain.fleet.told.admissions}:
        assert told(quick, robot) == told(plain, robot)  # of two at the same moment either may be told first
    assert [one.served for one in quick.replicas] == [one.served for one in plain.replicas]


def told(storm: Storm, robot: str) -> tuple[list[Any], list[Any]]:
    admissions = [each for each in storm.fleet.told.admissions if each.robot == robot]
    return admissions, [said(each) for each in storm.fleet.told.answers if each.round.robot == robot]


def said(answer: Any) -> tuple[Any, ...]:
    return answer.round, answer.attempt, answer.refusal, answer.chunk is None, answer.queued_s, answer.replica


def test_each_request_is_where_it_belongs_and_nothing_is_kept_of_others() -> None:
    storm = make_storm(3, "fifo", plain=False)
    queue, twin = storm.fleet.scheduler._queue, PlainQueue(storm.fleet.scheduler._members)
    for _ in range(300):
        storm.run(10)
        for place in ("waiting", "called", "urgent", "working"):
            found, meant = list(getattr(queue, place)), list(twin.those(place))
            assert (found if place == "waiting" else set(found)) == (
                meant if place == "waiting" else set(meant)
            ), place
        assert len(queue) == len(twin) and len(queue._due) <= 64 + 4 * 7
    storm.fleet.scheduler.close(storm.fleet.now_s)
    assert not queue._places and not len(queue)


def test_what_was_computed_by_a_replica_that_is_lost_waits_where_it_waited() -> None:
    fleet = Fleet("/a", "/b", "/c")
    for name in ("/a", "/b", "/c"):
        fleet.begin(name)
    fleet.replica.die()
    fleet.step()
    waiting = fleet.scheduler._queue.waiting.values()
    assert [robot.name for robot, _ in waiting] == ["/a", "/b", "/c"]
