"""Kairos' wait ratio and order, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fleet_builders import EDGE, make_policy, make_replica, make_request

from vla_accel_ros.fleet.rules.kairos import LONGEST_S, HighestWaitRatio
from vla_accel_ros.fleet.rules.rule import FleetSetup, RuleOptions

SETUP = FleetSetup({EDGE: make_replica()})


def executed(robot, *rounds):
    """A task of rounds (dispatched, answered, seconds of execution)."""
    request = make_request(robot)
    for dispatched_s, answered_s, execution_s in rounds:
        request.task.dispatched(dispatched_s)
        request.task.answered(answered_s, execution_s)
    return request


def test_the_wait_ratio_by_hand():
    """Round 1 is dominated by execution: the arm stood from 1.5 to 2.0. Round 2 is dominated by generation
    (0.5 s against 0.2 s): the queue took from 2.0 to 2.3."""
    request = executed("/a", (0.0, 0.5, 1.0), (1.5, 2.0, 0.2), (2.3, 2.8, 1.0))
    assert request.task.waited_s == pytest.approx(0.5 + 0.3)
    assert HighestWaitRatio(SETUP).ratio(request.task, 4.0) == pytest.approx(0.8 / 4.0)
    assert HighestWaitRatio(SETUP, open_wait=True).ratio(request.task, 4.0) == pytest.approx(
        (0.8 + 0.2) / 4.0
    )


def test_whether_the_first_wait_counts_is_a_choice():
    new, served = make_request("/new", began_s=1.0), make_request("/served", began_s=1.0)
    served.task.dispatched(2.0)
    served.task.answered(2.5, 1.0)
    assert (
        HighestWaitRatio(SETUP).ratio(new.task, 3.0) == HighestWaitRatio(SETUP).ratio(served.task, 3.0) == 0.0
    )
    counting = HighestWaitRatio(SETUP, first_wait=True)
    assert counting.ratio(new.task, 3.0) == 1.0 and counting.ratio(served.task, 3.0) == pytest.approx(0.5)


def test_the_higher_bucket_goes_first_then_the_longer_execution():
    a, b, c = (
        executed(f"/{name}", (0.0, 0.1, length_s)) for name, length_s in (("a", 0.5), ("b", 2.0), ("c", 1.0))
    )
    a.task.waited_s, b.task.waited_s, c.task.waited_s = 3.1, 2.1, 2.9  # of 10 s: buckets 3, 2, 2
    policy = HighestWaitRatio(FleetSetup({EDGE: make_replica(limit=3)}))
    batch = policy.next(EDGE, [c, b, a], 10.0)
    assert [request.robot for request in batch.requests] == ["/a", "/b", "/c"]


def setup_with(**options):
    return FleetSetup(SETUP.replicas, RuleOptions(**options))


def test_a_request_that_waits_is_lifted_and_its_execution_scaled():
    """One bucket for each 4 s, and (1 + seconds) times 0.5 s."""
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=4.0))
    request = executed("/a", (0.0, 0.1, 0.5))
    keys: list[float] = []
    for waited_s in (0.0, 3.0, 4.0, 7.0, 8.0, 1000.0):
        request.task.asked_s = 10.0 - waited_s
        keys += policy.keys([request], 10.0)
    found = [divmod(-key, LONGEST_S) for key in keys]
    assert [bucket for bucket, _ in found] == [0, 0, 1, 1, 2, 9]
    assert [length_s for _, length_s in found] == pytest.approx([0.5, 2.0, 2.5, 4.0, 4.5, 500.5])


def test_ageing_does_not_depend_on_how_often_the_scheduler_decides():
    """A thousand decisions while 1 s passes lift nobody; a minute, in which 15 times 4 s pass, does."""
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=4.0))
    request = executed("/a", (0.0, 0.1, 0.5))
    request.task.told(10.0, -1.0, 0.0)
    for now_s, first in (*((10.0 + decision / 1000, "/b") for decision in range(1000)), (70.0, "/a")):
        other = executed("/b", (0.0, 0.1, 9.0))
        other.task.told(now_s, -1.0, 0.0)
        other.task.last_execution_s = 9.0
        (chosen,) = policy.next(EDGE, [request, other], now_s).requests
        assert chosen.robot == first
        chosen.begun = True


def test_an_execution_of_any_length_lifts_nobody_to_the_next_bucket():
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=1e6))
    long, waited = (
        executed("/long", (0.0, 0.1, 1e9)),
        make_request("/waited", waited_s=1.1, last_execution_s=0.1),
    )
    long.task.asked_s = 10.0 - 900_000
    assert policy.next(EDGE, [long, waited], 10.0).requests[0].robot == "/waited"


def test_the_length_of_a_first_execution_is_a_choice():
    new, known = make_request("/new"), executed("/known", (0.0, 0.1, 1.5))
    for first_s, first in ((1.0, "/known"), (2.0, "/new")):
        policy = HighestWaitRatio(SETUP, first_execution_s=first_s)
        assert policy.next(EDGE, [new, known], 1.0).requests[0].robot == first


def test_numbers_that_cannot_be_are_refused():
    wrong: list[tuple[str, Any]] = [
        ("kairos_buckets", 0),
        ("kairos_ageing_s", 0.0),
        ("kairos_ageing_s", math.nan),
    ]
    for name, value in wrong:
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            RuleOptions(**{name: value})
    with pytest.raises(ValueError, match=r"first_execution_s is 0\.0"):
        HighestWaitRatio(SETUP, first_execution_s=0.0)
    assert make_policy("kairos")


def test_the_number_of_buckets_is_an_option():
    """Waits of 31 and 39 %: the same of ten buckets, where the longer execution goes first; two of twenty."""
    long, waited = executed("/long", (0.0, 0.1, 2.0)), executed("/waited", (0.0, 0.1, 0.5))
    long.task.waited_s, waited.task.waited_s = 3.1, 3.9
    for buckets, first in ((10, long), (20, waited)):
        policy = HighestWaitRatio(setup_with(kairos_buckets=buckets))
        assert policy.next(EDGE, [waited, long], 10.0).requests == (first,)
