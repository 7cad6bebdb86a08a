"""Which replica serves whom: what every rule of a fleet keeps to, over random schedules, the order that each
is named by, and first in line where the answer comes soonest."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import cast

import pytest
from fleet_builders import EDGE, make_policy, make_replica, make_request

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import Pace, Status
from vla_accel_ros.extensions import BUILT_IN, FLEET_RULES, _added, find, names
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.rules.orders import FirstInFirstOut
from vla_accel_ros.fleet.rules.rule import PATIENCE, SERVE, UNKNOWN_S, ReplicaProfile
from vla_accel_ros.fleet.task import Task, TaskRequest

NAMES = tuple(BUILT_IN[FLEET_RULES])
SCHEDULES = 10_000


def chosen(policy, ready, now_s, lane=EDGE):
    batch = policy.next(lane, ready, now_s)
    return [] if batch is None else [request.robot for request in batch.requests]


def schedule(name, chance, steps=8):
    """Requests that come by chance, and what is chosen of them: yields (ready, chosen) of each decision."""
    limit = chance.randint(1, 4)
    policy = make_policy(name, {EDGE: make_replica(limit, 0.1, 0.1)})
    tasks = [Task(f"/r{k}", 0, chance.choice("ab"), 0.0) for k in range(chance.randint(1, 8))]
    ready: list[TaskRequest] = []
    now_s = 0.0
    for _ in range(steps):
        now_s += chance.random()
        for task in tasks:
            if task.robot not in {request.robot for request in ready} and chance.random() < 0.6:
                task.told(now_s, -1.0, 0.0)
                request = make_request(task.robot)
                request.task, request.priority = task, chance.choice((0, 0, 0, 1, EMERGENCY, EMERGENCY + 1))
                ready.append(request)
        batch = policy.next(EDGE, tuple(ready), now_s)
        if batch is None:
            yield ready, None, limit
            continue
        before = list(ready)
        for request in cast("tuple[TaskRequest, ...]", batch.requests):
            ready.remove(request)
            request.status = Status.RUNNING
            request.task.dispatched(now_s)
        yield before, batch, limit
        now_s += 0.1
        policy.ran(batch, 0.1)
        for request in cast("tuple[TaskRequest, ...]", batch.requests):
            request.task.answered(now_s, chance.random())
            if chance.random() < 0.2:
                policy.ended(request.task, now_s)


@pytest.mark.parametrize("name", NAMES)
def test_random_schedules(name):
    """Nobody is served twice or unasked, nobody waits beside an idle replica, and higher priorities go
    first."""
    chance = random.Random(7)
    for _ in range(SCHEDULES // len(NAMES)):
        for ready, batch, limit in schedule(name, chance):
            assert (batch is None) == (not ready)
            if batch is None:
                continue
            requests = batch.requests
            assert (
                batch.stage == SERVE and len(set(requests)) == len(requests) and set(requests) <= set(ready)
            )
            urgent = [request for request in ready if request.priority >= EMERGENCY]
            assert len(requests) == min(limit, len(urgent or ready))
            left = [request.priority for request in ready if request not in requests]
            highest = [request.priority for request in (urgent or ready) if request not in requests]
            assert min(request.priority for request in requests) >= max(highest, default=-math.inf)
            assert not urgent or all(request.priority >= EMERGENCY for request in requests)
            assert not left or max(left) <= max(request.priority for request in requests)


@pytest.mark.parametrize("name", NAMES)
def test_equals_go_in_order_of_submission(name):
    policy = make_policy(name, {EDGE: make_replica(limit=2)})
    ready = [make_request(robot) for robot in ("/c", "/a", "/b")]
    assert chosen(policy, ready, 1.0) == ["/c", "/a"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_ever_while_others_keep_coming(name, seed):
    """Each robot that was served asks again at once, and one is the last that its policy would choose."""
    chance, robots, limit = random.Random(seed), 12, 2
    policy = make_policy(name, {EDGE: make_replica(limit)})
    policy.ended(make_request("/x", kind="short", rounds=2).task, 0.0)
    policy.ended(make_request("/x", kind="long", rounds=2000).task, 0.0)
    unlucky = make_request("/unlucky", began_s=900.0, kind="long", generated_s=1e4, moved_s=1e3, rounds=10)
    ready = [*(make_request(f"/r{k}", kind="short", rounds=1) for k in range(robots - 1)), unlucky]
    for request in ready:
        request.task.told(1000.0, -1.0, 0.0)
    served, longest_s = [], 0.0
    for step in range(2000):
        now_s = 1000.0 + step
        batch = policy.next(EDGE, tuple(ready), now_s)
        longest_s = max(longest_s, *(now_s - request.task.asked_s for request in ready))
        served += [step for request in batch.requests if request is unlucky]
        for request in cast("tuple[TaskRequest, ...]", batch.requests):
            ready.remove(request)
            request.status = Status.RUNNING
            request.task.dispatched(now_s)
            request.task.answered(now_s + 0.5, chance.uniform(0.1, 2.0))
            request.task.told(now_s + 0.5, -1.0, 0.0)
            ready.append(request)
    all_s = robots * 1.0  # a request takes 1 s, and a batch of two 2 s
    assert served and longest_s <= (PATIENCE + 1) * all_s if name != "kairos" else served


@pytest.mark.parametrize("name", NAMES)
def test_an_emergency_is_served_first_and_with_nobody_else(name):
    policy = make_policy(name, {EDGE: make_replica(limit=4)})
    ready = [make_request(f"/r{k}", began_s=float(k)) for k in range(6)]
    ready[2].task.asked_s = -10_000.0
    ready[4].priority, ready[5].task.priority = EMERGENCY, EMERGENCY + 1
    assert chosen(policy, ready, 10.0) == ["/r5", "/r4"]


def test_the_bound_on_waiting_is_within_a_priority():
    policy = make_policy("las")
    ready = [make_request("/a", generated_s=9.0, asked_s=-10_000.0), make_request("/b")]
    assert chosen(policy, ready, 1.0) == ["/a"]
    ready[1].priority = 1
    assert chosen(policy, ready, 1.0) == ["/b"]


def test_orders_of_the_baselines():
    ready = [
        make_request("/a", began_s=2.0, generated_s=1.0),
        make_request("/b", began_s=1.0, generated_s=3.0),
        make_request("/c", began_s=3.0, generated_s=0.5),
    ]
    first = {name: chosen(make_policy(name), ready, 5.0) for name in ("fifo", "las", "oldest")}
    assert first == {"fifo": ["/a"], "las": ["/c"], "oldest": ["/b"]}


@pytest.mark.parametrize("limit", [1, 2])
def test_the_bound_on_waiting_is_in_seconds_of_work(limit):
    """Two wait, and each takes 1 s: after 32 times 2 s the task with the most service goes first, at any size
    of batch and whatever was decided before."""
    for waited_s, first in ((2 * PATIENCE - 1.0, "/b"), (2 * PATIENCE + 1.0, "/a")):
        policy = make_policy("las", {EDGE: make_replica(limit)})
        ready = [
            make_request("/a", generated_s=9.0, asked_s=1000.0 - waited_s),
            make_request("/b", asked_s=999.0),
        ]
        for _ in range(1000):
            assert chosen(policy, ready, 1000.0)[0] == first


@pytest.mark.parametrize("name", NAMES)
def test_who_cannot_be_answered_in_time_is_passed_by_while_there_are_others(name):
    policy = make_policy(name, {EDGE: make_replica(1, 0.0, 1.0)})
    late, due = make_request("/late"), make_request("/due", began_s=1.0, generated_s=9.0, rounds=1)
    late.pace = due.pace = Pace(math.inf, 5.0)
    due.submitted_s = 1.0
    assert chosen(policy, [late, due], 4.5) == ["/due"]
    assert chosen(policy, [late], 4.5) == ["/late"]


def test_a_rule_of_another_package_is_found_by_the_groups_former_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = tmp_path / "other_rules-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: other-rules\nVersion: 1.0\n")
    entry = "mine = vla_accel_ros.fleet.rules.orders:FirstInFirstOut\n"
    groups = f"[vla_accel_ros.fleet_policies]\n{entry}old = a:b\n[vla_accel_ros.fleet_rules]\n{entry}"
    (description / "entry_points.txt").write_text(groups)
    monkeypatch.syspath_prepend(tmp_path)
    _added.cache_clear()
    try:
        assert {"mine", "old"} <= set(names(FLEET_RULES)) and find(FLEET_RULES, "mine") is FirstInFirstOut
    finally:
        _added.cache_clear()


def robots(batch):
    return [] if batch is None else [request.robot for request in batch.requests]


def waiting(count):
    return [make_request(f"/r{k}") for k in range(count)]


def edge_and_cloud():
    """An edge that takes 2 in 1 s, and a cloud that takes 2 in 0.2 s, 1.3 s of network away."""
    return {"edge": make_replica(2, 1.0, 1e-9), "cloud": make_replica(2, 0.2, 1e-9, 1.3)}


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


def test_replicas_that_cannot_be_are_refused():
    for limit, network_s in ((0, 0.0), (1, -1.0), (1, math.inf)):
        with pytest.raises(ValueError, match=rf" {limit} requests over {network_s} s"):
            ReplicaProfile(limit, Profile(), network_s)
