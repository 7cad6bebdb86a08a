"""Kairos' wait ratio and order, worked out by hand."""

from __future__ import annotations

import pytest
from fleet_builders import EDGE, make_policy, make_replica, make_request

from vla_accel_ros.fleet.policies.kairos import LONGEST_S, HighestWaitRatio
from vla_accel_ros.fleet.policies.policy import FleetSetup

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


def test_who_is_passed_over_is_lifted_and_his_execution_scaled():
    policy = HighestWaitRatio(SETUP, ageing=4)
    request = executed("/a", (0.0, 0.1, 0.5))
    keys: list[float] = []
    for request.task.skipped in (0, 3, 4, 8, 9, 1000):
        keys += policy.keys([request], 10.0)
    found = [divmod(-key, LONGEST_S) for key in keys]
    assert [bucket for bucket, _ in found] == [0, 0, 1, 2, 3, 9]
    assert [length_s for _, length_s in found] == pytest.approx([0.5, 2.0, 2.5, 4.5, 5.0, 500.5])


def test_an_execution_of_any_length_lifts_nobody_to_the_next_bucket():
    policy = HighestWaitRatio(SETUP, ageing=1_000_000)
    long, waited = (
        executed("/long", (0.0, 0.1, 1e9)),
        make_request("/waited", waited_s=1.1, last_execution_s=0.1),
    )
    long.task.skipped = 900_000
    assert policy.next(EDGE, [long, waited], 10.0).requests[0].robot == "/waited"


def test_the_length_of_a_first_execution_is_a_choice():
    new, known = make_request("/new"), executed("/known", (0.0, 0.1, 1.5))
    for first_s, first in ((1.0, "/known"), (2.0, "/new")):
        policy = HighestWaitRatio(SETUP, first_execution_s=first_s)
        assert policy.next(EDGE, [new, known], 1.0).requests[0].robot == first


def test_numbers_that_cannot_be_are_refused():
    for wrong in ({"buckets": 0}, {"ageing": 0}, {"first_execution_s": 0.0}):
        with pytest.raises(ValueError, match="give 1 or more"):
            HighestWaitRatio(SETUP, **wrong)
    assert make_policy("kairos")
