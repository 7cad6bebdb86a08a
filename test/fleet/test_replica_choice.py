"""Near first, distant where that is sooner. Times are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fleet_stand_ins import Fleet, TimedReplica

from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.protocol import EMERGENCY
from vla_accel_ros.fleet.replicas.replica import SERVE
from vla_accel_ros.fleet.serving.dispatch import busy_s
from vla_accel_ros.fleet.serving.records import Work
from vla_accel_ros.fleet.serving.settings import Settings
from vla_accel_ros.fleet.serving.slowness import ENOUGH as FEWEST
from vla_accel_ros.fleet.serving.slowness import KEPT_S, LARGEST, Slowness

PATIENT = Settings(stale_s=99.0, gone_s=99.0, serve_s=9.0)


def make_fleet(network_s: float = 0.2, robots: int = 6, cloud_s: float = 0.1, **fields: Any) -> Fleet:
    """An edge that takes 0.1 s for one, and a cloud. Neither begins anything before that."""
    edge = TimedReplica("edge", takes_s=0.1)
    cloud = TimedReplica("cloud", takes_s=cloud_s, network_s=network_s)
    names = [f"/r{number}" for number in range(robots)]
    options = {"settings": PATIENT, "make": find(FLEET_RULES, "fifo"), **fields}
    return Fleet(*names, replicas=[edge, cloud], **options)


def begun(fleet: Fleet) -> dict[str, list[str]]:
    return {one.name: [round_.robot for round_ in one.served] for one in fleet.replicas}


def test_every_request_of_a_random_trace_goes_where_it_is_answered_soonest() -> None:
    """By the arithmetic of a near, slow replica and a distant, fast one."""
    chance, now_s, edge_s, cloud_s, network_s = np.random.default_rng(7), 0.0, 0.1, 0.04, 0.13
    fleet = make_fleet(network_s, 8, cloud_s)
    edge_free_s, ends = 0.0, dict[str, float]()
    waiting, idle = list[str](), {f"/r{number}" for number in range(8)}
    expected: dict[str, list[str]] = {"edge": [], "cloud": []}
    for number in range(120):
        asks_s = now_s + float(chance.exponential(0.045))
        while True:
            over = min(ends, key=ends.__getitem__, default="")
            over = over if over and ends[over] <= asks_s else ""
            now_s = ends.pop(over) if over else asks_s
            fleet.now_s = now_s
            if over:
                fleet.replicas[over == "cloud"].finish()
                idle.add(expected[over][-1])
            elif idle:
                waiting.append(str(chance.choice(sorted(idle))))
                idle.remove(waiting[-1])
                fleet.ask(waiting[-1], number)
            if waiting and "edge" not in ends:
                expected["edge"].append(waiting.pop(0))
                edge_free_s = ends["edge"] = now_s + edge_s
            answer_s = now_s + cloud_s + network_s
            sooner = int((answer_s - max(now_s, edge_free_s)) / edge_s)  # of them the edge answers before
            if "cloud" not in ends and len(waiting) > sooner:
                expected["cloud"].append(waiting.pop(sooner))
                ends["cloud"] = answer_s
            fleet.step()
            assert begun(fleet) == expected, now_s
            if not over:
                break
    assert min(map(len, expected.values())) > 10


def test_a_lost_edge_is_none_and_one_that_came_back_is_the_first_again() -> None:
    fleet = make_fleet(network_s=5.0)
    fleet.replica.die()
    fleet.begin("/r0")
    assert begun(fleet) == {"edge": [], "cloud": ["/r0"]}  # however far
    fleet.replica.dead = False
    fleet.replica.known = {f"/r{number}" for number in range(6)}
    fleet.begin("/r1")
    assert begun(fleet) == {"edge": ["/r1"], "cloud": ["/r0"]}


def test_an_edge_that_is_late_is_passed_by_and_an_emergency_waits_for_none() -> None:
    fleet = make_fleet(network_s=0.2)
    for number in range(2):
        fleet.ask(f"/r{number}")
    fleet.step()
    assert begun(fleet)["cloud"] == []
    fleet.step(0.19)  # late for 0.09 s, so perhaps for as long again: the next at 0.38 s, the cloud at 0.49 s
    assert begun(fleet)["cloud"] == []
    fleet.step(0.15)
    assert begun(fleet)["cloud"] == ["/r1"]
    fleet = make_fleet(network_s=5.0)
    fleet.begin("/r0")
    fleet.begin("/r1", priority=EMERGENCY)
    assert begun(fleet)["cloud"] == ["/r1"]


def test_who_was_called_for_the_edge_is_left_to_it_for_a_while() -> None:
    settings = Settings(stale_s=0.2, call_s=0.1, gone_s=99.0, serve_s=9.0)
    fleet = make_fleet(network_s=5.0, settings=settings)
    fleet.begin("/r0")
    fleet.ask("/r1", age_s=1.0)
    fleet.step(0.05)  # the edge is expected to be done within call_s
    assert [round_.robot for round_ in fleet.told.calls] == ["/r1"]
    fleet.ask("/r1", sent_s=101.0)
    fleet.step(0.01)
    assert begun(fleet) == {"edge": ["/r0"], "cloud": []}
    fleet.serve(0.01)
    assert begun(fleet) == {"edge": ["/r0", "/r1"], "cloud": []}


def test_what_is_on_its_way_back_takes_no_seat_of_a_distant_replica() -> None:
    fleet = make_fleet(network_s=0.5)
    cloud = fleet.replicas[1]
    cloud.limit, fleet.replica.dead = 2, True
    fleet.replica.die()
    cloud.profile = Profile({(SERVE, 1): 0.1})
    works: list[Work] = []
    for at_s in (0.0, 0.05):
        fleet.ask(f"/r{len(works)}")
        fleet.step(at_s)
        pending = [pending for _, pending in fleet.scheduler._queue.working.values()]
        works = [one.work for one in pending if one.work is not None]
    expected = {0.05: 0.05 + 0.1, 0.1: 0.05 + 0.05, 0.2: 0.0, 0.59: 0.0, 0.65: 0.05, 0.9: 0.2}
    for now_s, left_s in expected.items():  # the second waits for the first one's seat
        assert busy_s(cloud, works, now_s) == pytest.approx(left_s), now_s


def engines(*each_s: float, robots: int = 12) -> Fleet:
    """Replicas that compute up to 8 requests together, each of which takes longer for the others."""
    replicas = [TimedReplica(f"gpu{number}", most=8) for number in range(len(each_s))]
    for one, takes_s in zip(replicas, each_s, strict=True):
        one.profile = Profile({(SERVE, batch): takes_s * batch for batch in (1, 2, 4, 8)})
    names = [f"/r{number}" for number in range(robots)]
    return Fleet(*names, replicas=replicas, settings=PATIENT, make=find(FLEET_RULES, "fifo"))


def shares(fleet: Fleet) -> list[int]:
    return [len(one.served) for one in fleet.replicas]


def test_engines_that_compute_several_at_once_share_them() -> None:
    fleet = engines(0.01, 0.01)
    for number in range(12):
        fleet.ask(f"/r{number}")
        fleet.step(0.001)
        first, second = shares(fleet)
        assert 0 <= first - second <= 1, number
    fleet = engines(0.01, 0.0101)  # what is measured varies by some percent
    for number in range(12):
        fleet.ask(f"/r{number}")
        fleet.step(0.001)
    assert shares(fleet) == [6, 6]


def test_one_that_is_twice_as_slow_gets_half_as_many() -> None:
    fleet = engines(0.02, 0.01, robots=9)
    for number in range(9):
        fleet.ask(f"/r{number}")
        fleet.step(0.001)
    assert shares(fleet) == [3, 6]


def answered_after(fleet: Fleet, took_s: float) -> str:
    """A robot asks, and its replica answers after so long. Returns the replica's name."""
    fleet.begin("/r0", number=sum(shares(fleet)))
    (one,) = (one for one in fleet.replicas if one.jobs)
    fleet.now_s += took_s
    one.finish()
    fleet.step()
    return one.name


def test_an_engine_that_became_slower_is_left_alone_and_tried_again_after_a_while() -> None:
    fleet = engines(0.01, 0.01)
    assert [answered_after(fleet, 0.03) for _ in range(FEWEST)] == ["gpu0"] * FEWEST  # 0.01 were measured
    assert [answered_after(fleet, 0.01) for _ in range(8)] == ["gpu1"] * 8
    fleet.step(KEPT_S)
    assert answered_after(fleet, 0.01) == "gpu0"


def test_what_a_request_took_beside_others_is_no_sign_of_a_slow_engine() -> None:
    fleet = engines(0.01, 5.0)
    for turn in range(8):
        for number in range(8):
            fleet.ask(f"/r{number}", turn)
        fleet.step()
        for number in range(8):
            fleet.serve(0.08 if not number else 0.0)
    assert fleet.scheduler._dispatcher._slowness.factor("gpu0", fleet.now_s) == 1.0


def test_a_stall_among_many_answers_changes_little() -> None:
    slowness = Slowness()
    for number in range(100):
        slowness.took("gpu0", 1.0 if number == 50 else 0.05, 0.05, 0.02 * number)
    assert slowness.factor("gpu0", 2.0) == 1.0
    for _ in range(4):
        slowness.took("gpu0", 1.0, 0.05, 2.0)
    assert 1.25 < slowness.factor("gpu0", 2.0) < 2.0
    for _ in range(400):
        slowness.took("gpu0", 1.0, 0.05, 2.0)
    assert slowness.factor("gpu0", 2.0) == LARGEST and slowness.factor("gpu1", 2.0) == 1.0
    assert slowness.factor("gpu0", 12.1) == 1.0
