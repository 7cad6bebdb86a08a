"""On which replica: first in line where the answer comes soonest."""

from __future__ import annotations

import math

import pytest
from fleet_builders import make_policy, make_replica, make_request

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.rules.rule import SERVE, UNKNOWN_S, ReplicaProfile


def robots(batch):
    return [] if batch is None else [request.robot for request in batch.requests]


def waiting(count):
    return [make_request(f"/r{k}") for k in range(count)]


def edge_and_cloud():
    """An edge that takes 2 in 1 s, and a cloud that takes 2 in 0.2 s, 1.3 s of network away."""
    return {"edge": make_replica(2, 1.0, 1e-9), "cloud": make_replica(2, 0.2, 1e-9, 1.3)}


def test_the_cloud_takes_those_whom_the_edge_would_answer_later():
    policy, ready = make_policy("fifo", edge_and_cloud()), waiting(4)
    assert robots(policy.next("edge", ready, 0.0)) == ["/r0", "/r1"]  # till 1.0, the next till 2.0
    assert robots(policy.next("cloud", ready[2:], 0.0)) == ["/r2", "/r3"]  # till 1.5


def test_the_cloud_leaves_those_whom_the_edge_answers_sooner():
    policy, ready = make_policy("fifo", edge_and_cloud()), waiting(4)
    policy.next("edge", ready[:2], 0.0)
    assert policy.next("cloud", ready[2:], 0.6) is None  # it would answer at 2.1, the edge at 2.0
    assert policy.wake_s(ready[2:], 0.6) == pytest.approx(1.0)
    assert robots(policy.next("edge", ready[2:], 1.0)) == ["/r2", "/r3"]


def test_whom_the_cloud_takes_are_next_in_line_after_those():
    policy, ready = make_policy("fifo", edge_and_cloud()), waiting(5)
    assert robots(policy.next("cloud", ready, 0.0)) == ["/r2", "/r3"]  # the edge is idle and will take two
    policy = make_policy("fifo", edge_and_cloud())
    assert policy.next("cloud", waiting(2), 0.0) is None


def test_two_alike_do_not_wait_for_each_other():
    policy, ready = make_policy("fifo", {"a": make_replica(), "b": make_replica()}), waiting(1)
    assert robots(policy.next("a", ready, 0.0)) == ["/r0"]


def test_a_replica_that_does_not_answer_is_passed_by():
    """The longer it is late, the later it is expected."""
    policy, ready = make_policy("fifo", edge_and_cloud()), waiting(2)
    policy.next("edge", waiting(2), 0.0)
    now_s, asked = 0.6, []
    while not robots(policy.next("cloud", ready, now_s)):
        asked.append(now_s)
        now_s = policy.wake_s(ready, now_s)
        assert len(asked) < 50
    assert 1.0 < now_s < 3.0


def test_a_replica_that_is_gone_takes_nobody():
    replicas = edge_and_cloud()
    policy = make_policy("fifo", replicas)
    policy.next("edge", waiting(2), 0.0)
    del replicas["edge"]
    assert robots(policy.next("cloud", waiting(2), 0.6)) == ["/r0", "/r1"]
    assert policy.wake_s(waiting(1), 0.7) > 0.7


def test_one_that_is_slower_now_takes_so_much_longer_but_for_the_network():
    replica = ReplicaProfile(8, Profile({(SERVE, 1): 0.1, (SERVE, 4): 0.4}), 1.0, slower=3.0)
    assert replica.serves_s(1) == pytest.approx(1.3)
    replica.beside = 3
    assert replica.serves_s(1) == pytest.approx(2.2)


def test_beside_others_a_request_takes_as_long_as_so_many_together():
    replica = ReplicaProfile(8, Profile({(SERVE, 1): 0.1, (SERVE, 4): 0.4, (SERVE, 8): 0.6}), 1.0)
    expected = {0: 1.1, 1: 1.2, 2: 1.3, 3: 1.4, 5: 1.5, 7: 1.6, 20: 1.6}
    for beside, answer_s in expected.items():
        replica.beside = beside
        assert replica.serves_s(1) == pytest.approx(answer_s), beside
    assert ReplicaProfile(1, Profile(), beside=3).serves_s(1) == UNKNOWN_S


def test_of_two_alike_the_one_that_computes_less_goes_first():
    a, b = make_replica(8, 0.0, 0.1), make_replica(8, 0.0, 0.1)
    policy, ready = make_policy("fifo", {"a": a, "b": b}), waiting(1)
    a.busy_s, b.busy_s, a.beside, b.beside = 0.0, 0.0, 3, 2
    assert policy.next("a", ready, 0.0) is None
    assert robots(policy.next("b", ready, 0.0)) == ["/r0"]


def test_replicas_that_cannot_be_are_refused():
    for limit, network_s in ((0, 0.0), (1, -1.0), (1, math.inf)):
        with pytest.raises(ValueError, match="a replica takes"):
            ReplicaProfile(limit, Profile(), network_s)
