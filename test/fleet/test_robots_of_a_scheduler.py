"""Tasks, horizons, replicas that fail, and robots that come, do not fit, and go."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fleet_stand_ins import (
    ACTIONS,
    STEP_S,
    Fifo,
    Fleet,
    TimedReplica,
    make_description,
    make_request,
    robots_of,
)

from vla_accel_ros.extensions import FLEET_RULES, find, names
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import Round
from vla_accel_ros.fleet.replicas.replica import ReplicaLost
from vla_accel_ros.fleet.serving.records import fairness
from vla_accel_ros.fleet.serving.settings import Settings
from vla_accel_ros.types import Chunk


def test_a_new_task_begins_anew_and_an_older_one_is_for_nobody() -> None:
    fleet = Fleet("/a")
    fleet.ask("/a", 5)
    fleet.ask("/a", 0, task=1)
    fleet.begin("/a", 6)
    fleet.serve()
    assert fleet.told.chunks() == [Round("e1", "/a", 1, 0)]
    task = fleet.scheduler._members.robots["/a"].task
    assert task is not None and (task.number, task.rounds) == (1, 1)


def test_waits_are_told_from_what_the_robot_says_of_its_execution() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", 0)
    fleet.serve(0.1)
    moves_s = ACTIONS * STEP_S
    fleet.now_s += moves_s - 0.1
    fleet.ask("/a", 1, executed_s=moves_s - 0.1, remaining=2, stalled_s=0.3)
    assert fleet.report("/a").buffer_s == pytest.approx(0.1)
    fleet.step()
    fleet.serve(0.3)  # 0.2 s longer than the arm moves
    fleet.now_s += 0.1
    fleet.begin("/a", 2, executed_s=0.1, remaining=6, stalled_s=0.5)
    report = fleet.report("/a")
    assert report.stalled_s == 0.5
    assert report.wait_ratio == pytest.approx(0.2 / (fleet.now_s - 0.0))


def test_a_chunk_is_cut_by_the_robots_own_horizon() -> None:
    def horizon(description: object) -> object:
        return lambda chunk, words: replace(chunk, execution_horizon=3)

    fleet = Fleet("/a", horizon=horizon)
    fleet.begin("/a")
    fleet.serve(0.1)
    chunk = fleet.told.answers[0].chunk
    assert chunk is not None and chunk.executed == 3
    assert fleet.report("/a").buffer_s == pytest.approx(3 * STEP_S)


def test_a_horizon_that_cannot_be_read_is_a_refusal_and_one_that_fails_refuses_the_chunk() -> None:
    def horizon(description: object) -> object:
        raise ValueError("horizon is 'x'; give a number")

    fleet = Fleet("/a", horizon=horizon)
    assert not fleet.told.admissions[0].admitted and "horizon is 'x'" in fleet.told.admissions[0].reason

    def broken(chunk: Chunk, words: str) -> Chunk:
        raise ZeroDivisionError("zero")

    fleet = Fleet("/a", horizon=lambda description: broken)
    fleet.begin("/a")
    fleet.serve()
    assert fleet.told.refusals() == ["zero"]


def test_what_a_replica_cannot_compute_fails_that_request_alone() -> None:
    fleet = Fleet("/a", "/b")
    fleet.ask("/a")
    fleet.begin("/b")
    fleet.replica.finish(ValueError("the picture is damaged"))
    fleet.step()
    assert fleet.told.refusals() == ["the picture is damaged"]
    fleet.serve()
    fleet.begin("/a", 1)
    fleet.serve()
    assert robots_of(fleet.told.chunks()) == ["/b", "/a"]


def test_what_a_lost_replica_computed_is_computed_by_another() -> None:
    first, second = TimedReplica("first"), TimedReplica("second")
    fleet = Fleet("/a", replicas=[first, second])
    fleet.begin("/a")
    first.die()
    fleet.step()
    second.finish()
    fleet.step()
    (answer,) = fleet.told.answers
    assert answer.replica == "second" and answer.chunk is not None


def test_a_replica_that_came_back_is_told_its_robots_again() -> None:
    fleet = Fleet("/a")
    fleet.replica.die()
    fleet.begin("/a")
    fleet.scheduler._members.lost(fleet.replica, fleet.now_s)
    fleet.replica.dead = False
    fleet.step(0.1)
    assert not fleet.replica.known
    fleet.step(0.6)
    assert fleet.replica.known == {"/a"}
    fleet.begin("/a", 1)
    fleet.serve()
    assert len(fleet.told.chunks()) == 1


def test_a_replica_that_says_nothing_is_not_waited_for() -> None:
    fleet = Fleet("/a", settings=Settings(serve_s=1.0, lost=1, stale_s=99.0))
    fleet.begin("/a")
    fleet.step(1.1)
    assert len(fleet.replica.cancelled) == 1 and len(fleet.replica.served) == 2
    fleet.step(1.1)
    assert fleet.told.refusals() == ["replica r took too long"]


def test_a_replica_that_answers_for_another_request_answers_nobody() -> None:
    fleet = Fleet("/a", "/b")
    fleet.begin("/a")
    (future,) = fleet.replica.jobs
    round_, seen = fleet.replica.jobs[future]
    fleet.replica.jobs[future] = replace(round_, robot="/b"), seen
    fleet.serve()
    assert not fleet.told.chunks() and "another request" in fleet.told.refusals()[0]


def test_a_robot_that_is_gone_leaves_nothing() -> None:
    fleet = Fleet("/a", "/b", replicas=[TimedReplica(most=2)])
    for robot in ("/a", "/b"):
        fleet.ask(robot)
    fleet.step()
    fleet.scheduler.gone("/a", fleet.now_s)
    fleet.scheduler.gone("/a", fleet.now_s)
    assert fleet.replica.cancelled == [Round("e1", "/a", 0, 0)] and fleet.replica.known == {"/b"}
    fleet.step(9.9)
    assert fleet.scheduler.robots() == ("/b",)
    fleet.step(0.2)
    assert fleet.scheduler.robots() == () and not fleet.replica.known and not fleet.replica.jobs


def test_who_waited_long_for_its_chunk_has_not_gone() -> None:
    fleet = Fleet("/a", settings=Settings(gone_s=5.0, serve_s=4.0))
    fleet.begin("/a")
    fleet.serve(3.9)
    fleet.step(3.9)
    assert fleet.scheduler.robots() == ("/a",)
    fleet.step(1.2)
    assert fleet.scheduler.robots() == ()
    with pytest.raises(ValueError, match="give more for gone_s"):
        Settings(gone_s=5.0, serve_s=5.0)


def test_a_sign_of_life_keeps_a_robot() -> None:
    fleet = Fleet("/a", "/b", "/c")
    fleet.now_s = 8.0
    fleet.describe("/a")
    fleet.ask("/b")
    fleet.step(3.0)
    assert fleet.scheduler.robots() == ("/a", "/b")
    fleet.scheduler.close(fleet.now_s)
    assert fleet.scheduler.robots() == () and not fleet.replica.jobs


def test_a_robot_that_does_not_fit_is_refused_until_another_has_gone() -> None:
    fleet = Fleet(replicas=[TimedReplica(takes_s=0.1)])  # 10 a second, 9 are given away
    fleet.describe("/a", chunks_per_s=5.0)
    fleet.describe("/b", chunks_per_s=5.0)
    fleet.describe("/c", chunks_per_s=3.0)
    told = {one.robot: one for one in fleet.told.admissions}
    assert (told["/a"].chunks_per_s, told["/a"].reason) == (5.0, "")
    assert told["/b"].admitted and told["/b"].chunks_per_s == pytest.approx(4.0) and told["/b"].reason
    assert not told["/c"].admitted and "add a replica" in told["/c"].reason
    fleet.ask("/c")
    assert fleet.told.refusals() == [told["/c"].reason]
    fleet.scheduler.gone("/a", fleet.now_s)
    fleet.step()
    told = {one.robot: one for one in fleet.told.admissions}
    assert (told["/b"].chunks_per_s, told["/b"].reason) == (5.0, "")
    assert told["/c"].admitted and told["/c"].chunks_per_s == 3.0
    assert fleet.replica.known == {"/b", "/c"}


def test_a_robot_that_was_refused_because_the_replica_was_measured_slow_is_served_when_it_is_not() -> None:
    replica = TimedReplica(takes_s=1.0)  # as at the start of a busy machine
    fleet = Fleet(replicas=[replica])
    fleet.describe("/a", chunks_per_s=0.8)
    fleet.describe("/b", chunks_per_s=0.8)
    assert [one.admitted for one in fleet.told.admissions] == [True, False]
    for number in range(60):
        fleet.ask("/a", number)
        fleet.describe("/b", chunks_per_s=0.8)  # as it does every second
        fleet.step()
        fleet.serve(0.1)
        fleet.step(0.9)
    last = fleet.told.admissions[-1]
    assert (last.robot, last.admitted, last.chunks_per_s, last.reason) == ("/b", True, 0.8, "")


def test_one_slow_chunk_refuses_nobody() -> None:
    fleet = Fleet("/a")
    before_hz = fleet.scheduler.capacity_hz
    fleet.begin("/a")
    fleet.serve(3.0)
    assert fleet.scheduler.capacity_hz == before_hz


@pytest.mark.parametrize("policy", names(FLEET_RULES))
def test_a_robot_that_asks_without_end_gets_the_rate_it_was_admitted_with_and_the_other_its_own(
    policy: str,
) -> None:
    replica, seconds, rates = TimedReplica(takes_s=0.1), 20.0, {"/greedy": 4.0, "/b": 5.0}  # of 10 a second
    settings = Settings(stale_s=99.0)
    fleet = Fleet(replicas=[replica], settings=settings, make=find(FLEET_RULES, policy), burst=2)
    for robot, rate_hz in rates.items():
        fleet.describe(robot, chunks_per_s=rate_hz)
        assert fleet.told.admissions[-1].chunks_per_s == rate_hz
    numbers, due_s = dict.fromkeys(rates, 0), 0.0
    for tick in range(round(seconds / 0.1)):
        got = Counter(robots_of(fleet.told.chunks()))
        fleet.ask("/greedy", got["/greedy"], task=tick // 3)  # each instruction is asked for at once
        if fleet.now_s >= due_s:
            fleet.ask("/b", numbers["/b"])
            numbers["/b"], due_s = numbers["/b"] + 1, due_s + 1.0 / rates["/b"]
        fleet.step(0.05)
        if replica.jobs:
            fleet.serve()
        fleet.step(0.05)
    got = Counter(robots_of(fleet.told.chunks()))
    assert got["/greedy"] <= rates["/greedy"] * seconds + 2
    assert got["/b"] >= rates["/b"] * seconds - 3


def test_who_asks_more_often_than_it_was_admitted_for_is_told_so() -> None:
    fleet = Fleet(burst=2)
    fleet.describe("/a", chunks_per_s=0.5)
    for number in range(3):
        fleet.begin("/a", number, within_s=0.5)
        if fleet.replica.jobs:
            fleet.serve(0.1)
    fleet.step(0.6)
    assert len(fleet.told.chunks()) == 2 and "0.5 times a second" in fleet.told.refusals()[0]


def test_no_more_robots_are_kept_than_are_allowed() -> None:
    fleet = Fleet(settings=Settings(limits=Limits(most_robots=2)))
    for number in range(100):
        fleet.describe(f"/r{number}")
    assert len(fleet.replica.known) == 2 and len(fleet.scheduler.robots()) <= 4
    assert sum(one.admitted for one in fleet.told.admissions) == 2
    assert len(fleet.told.admissions) == 100


def test_what_a_replica_cannot_serve_is_refused_with_its_reason() -> None:
    replica = TimedReplica()
    replica.refuses = "the model has 6 joints, the contract 7"
    fleet = Fleet("/a", replicas=[replica])
    assert [one.reason for one in fleet.told.admissions] == [replica.refuses]
    fleet.ask("/a")
    assert fleet.told.refusals() == [replica.refuses]


def test_the_same_description_again_changes_nothing_another_one_begins_anew() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a")
    fleet.describe("/a")
    assert fleet.replica.jobs
    first, again = fleet.told.admissions  # it had not heard, or heard another scheduler since
    assert first == again
    fleet.describe("/a", statistics="other")
    assert not fleet.replica.jobs and len(fleet.told.admissions) == 3


def test_a_lost_replica_is_not_a_refusal() -> None:
    fleet = Fleet(replicas=[TimedReplica()])
    fleet.replica.dead = True
    fleet.describe("/a")
    fleet.step()
    assert not fleet.told.admissions and fleet.report("/a").state == "preparing"
    fleet.replica.dead = False
    fleet.step(1.0)
    assert [one.admitted for one in fleet.told.admissions] == [True]


def test_jains_index_is_one_for_equals_and_small_for_who_has_all() -> None:
    assert fairness([]) == fairness([1.0, 1.0]) == 1.0
    assert fairness([0.3, 0.3, 0.3]) == pytest.approx(1.0)
    assert fairness([0.0, 1.0, 1.0, 1.0]) == pytest.approx(0.25)


def test_a_report_says_how_a_robot_does() -> None:
    fleet = Fleet("/a", "/b")
    fleet.begin("/a")
    fleet.ask("/b", age_s=0.02)
    assert (fleet.report("/a").state, fleet.report("/b").state) == ("computed", "waiting")
    fleet.serve(0.1)
    fleet.serve(0.05)
    report = fleet.report("/b")
    assert (report.state, report.counts.answered) == ("idle", 1)
    assert report.queued_s == pytest.approx(0.1) and report.age_s == pytest.approx(0.17)


def test_numbers_that_are_none_do_no_harm() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", executed_s=math.nan, stalled_s=math.inf)
    fleet.serve()
    report = fleet.report("/a")
    assert np.isfinite([report.stalled_s, report.wait_ratio, report.buffer_s]).all()
    assert make_request().round.robot == make_description().robot


def test_a_replica_lost_while_it_describes_is_tried_again() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a")
    fleet.replica.finish(ReplicaLost("away"))
    fleet.step()
    assert not fleet.replica.jobs
    fleet.step(0.6)  # it is told of the robot again
    fleet.step(0.2)
    assert len(fleet.replica.served) == 2


def test_a_newer_attempt_has_its_own_deadline_before_the_policy():
    class Looking(Fifo):
        def next(self, lane, ready, now_s, due_s=math.inf):
            self.seen = [(request.submitted_s, request.pace.most_s) for request in ready]

    fleet = Fleet("/a", policy=Looking())
    fleet.ask("/a", within_s=1.0)
    fleet.step(0.5)
    assert fleet.policy.seen == [(0.0, 1.0)]
    fleet.begin("/a", attempt=1, sent_s=100.5, within_s=2.0)
    assert fleet.policy.seen == [(0.5, 2.0)]
