"""Whose turn it is: rounds, attempts, deadlines, stale observations, emergencies."""

from __future__ import annotations

import math

import pytest
from fleet_stand_ins import ACTIONS, Fifo, Fleet, TimedReplica, robots_of

from vla_accel_ros.fleet.protocol import EMERGENCY, Round
from vla_accel_ros.fleet.serving.settings import Settings, read_priorities
from vla_accel_ros.fleet.task import Task


def test_a_robot_is_told_that_it_is_served_and_gets_its_chunk() -> None:
    fleet = Fleet("/a")
    (admission,) = fleet.told.admissions
    assert (admission.admitted, admission.robot, admission.engine, admission.scheduler) == (
        True,
        "/a",
        "e1",
        "s",
    )
    fleet.begin("/a", 3, task=2, attempt=1, sent_s=50.0, state=(7.0,))
    fleet.serve(0.1)
    (answer,) = fleet.told.answers
    assert answer.round == Round("e1", "/a", 2, 3) and answer.attempt == 1 and answer.sent_ns == 50 * 10**9
    assert answer.chunk is not None and answer.chunk.actions.tolist() == [[7.0]] * ACTIONS
    assert (answer.queued_s, answer.served_s, answer.replica) == (0.0, pytest.approx(0.1), "r")
    assert fleet.policy.took == [0.1]


def test_who_came_first_goes_first_and_waits_while_there_is_no_room() -> None:
    fleet = Fleet("/a", "/b", "/c", settings=Settings(stale_s=9.0))
    for robot in ("/b", "/c", "/a"):
        fleet.begin(robot)
        fleet.now_s += 0.01
    for _ in range(3):
        fleet.serve(0.1)
    assert robots_of(fleet.replica.served) == robots_of(fleet.told.chunks()) == ["/b", "/c", "/a"]
    assert [answer.queued_s for answer in fleet.told.answers] == pytest.approx([0.0, 0.12, 0.21])


def test_a_replica_computes_as_many_as_it_has_room_for() -> None:
    fleet = Fleet("/a", "/b", "/c", replicas=[TimedReplica(most=2)], policy=Fifo(most=8))
    for robot in ("/a", "/b", "/c"):
        fleet.ask(robot)
    fleet.step()
    assert robots_of(fleet.replica.served) == ["/a", "/b"]


def test_a_newer_round_replaces_what_waits_and_cancels_what_is_computed() -> None:
    fleet = Fleet("/a", "/b")
    fleet.begin("/b", 0)
    fleet.ask("/a", 0)
    fleet.ask("/a", 1)
    fleet.ask("/b", 1)
    assert fleet.replica.cancelled == [Round("e1", "/b", 0, 0)]
    assert fleet.scheduler.waiting() == 2
    fleet.step()
    fleet.serve()
    fleet.serve()
    assert [(one.robot, one.number) for one in fleet.told.chunks()] == [("/a", 1), ("/b", 1)]


def test_a_newer_attempt_keeps_its_place_and_brings_its_observation() -> None:
    fleet = Fleet("/a", "/b", "/c")
    fleet.begin("/c")
    fleet.ask("/a", state=(1.0,))
    fleet.step(0.01)
    fleet.ask("/b")
    fleet.ask("/a", attempt=1, state=(2.0,))
    for _ in range(3):
        fleet.serve()
    assert robots_of(fleet.told.chunks()) == ["/c", "/a", "/b"]
    answer = fleet.told.answers[1]
    assert answer.attempt == 1 and answer.chunk is not None and answer.chunk.actions[0, 0] == 2.0


def test_an_attempt_while_the_round_is_computed_is_answered_by_that_as_what_it_is() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", state=(1.0,))
    fleet.begin("/a", attempt=1, state=(2.0,))
    assert len(fleet.replica.served) == 1
    fleet.serve()
    (answer,) = fleet.told.answers
    assert answer.attempt == 0 and answer.chunk is not None and answer.chunk.actions[0, 0] == 1.0


def test_when_an_attempt_is_of_no_use_any_longer_the_next_one_is_computed() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", state=(1.0,), within_s=0.1)
    fleet.step(0.09)
    fleet.ask("/a", attempt=1, state=(2.0,), within_s=0.1)
    fleet.step(0.02)
    assert len(fleet.replica.cancelled) == 1 and not fleet.told.answers
    fleet.serve(0.02)
    (answer,) = fleet.told.answers
    assert answer.attempt == 1 and answer.chunk is not None and answer.chunk.actions[0, 0] == 2.0
    report = fleet.report("/a")
    assert report.counts.misses == 1 and report.age_s == pytest.approx(0.01 + 0.04)


def test_what_comes_twice_is_no_second_request() -> None:
    fleet = Fleet("/a")
    fleet.ask("/a", 1)
    fleet.begin("/a", 1)
    fleet.serve()
    fleet.begin("/a", 1)
    assert len(fleet.told.answers) == 1 and not fleet.replica.jobs
    assert fleet.report("/a").counts.repeated == 2


def test_an_old_round_is_refused_with_the_numbers_of_the_newest_until_the_robot_describes_itself() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", 431, task=17)
    fleet.serve()
    for task, number, attempt in ((16, 500, 0), (17, 430, 7), (17, 430, 0)):
        fleet.ask("/a", number, task=task, attempt=attempt)
    assert all("task 17, round 431" in refusal for refusal in fleet.told.refusals())
    assert len(fleet.told.refusals()) == fleet.report("/a").counts.out_of_order == 3
    fleet.describe("/a")
    fleet.begin("/a", 430, task=17)
    fleet.serve()
    assert fleet.told.chunks() == [Round("e1", "/a", 17, 431), Round("e1", "/a", 17, 430)]


@pytest.mark.parametrize("far", [(1001, 0, 0), (2**64 - 1, 0, 0), (0, 1001, 0), (1, 1001, 0), (0, 0, 1001)])
def test_a_request_far_ahead_of_the_newest_is_refused_and_changes_nothing(far: tuple[int, int, int]) -> None:
    fleet = Fleet("/a")
    fleet.ask("/a", 1, task=1)
    task, number, attempt = far
    fleet.ask("/a", 1 + number, task=min(1 + task, 2**64 - 1), attempt=attempt)
    (refusal,) = fleet.told.refusals()
    assert "1000" in refusal and "task 1, round 1" in refusal
    fleet.step()
    fleet.serve()
    fleet.begin("/a", 2, task=1)
    fleet.serve()
    assert [round_.number for round_ in fleet.told.chunks()] == [1, 2]


def test_an_answer_that_was_lost_is_computed_again_for_the_next_attempt() -> None:
    fleet = Fleet("/a")
    for attempt in range(2):
        fleet.begin("/a", attempt=attempt)
        fleet.serve()
    assert [answer.attempt for answer in fleet.told.answers] == [0, 1]


def test_a_request_of_another_process_or_of_nobody_gets_no_chunk() -> None:
    fleet = Fleet("/a")
    fleet.ask("/a", engine="e0")
    fleet.begin("/b")
    assert not fleet.replica.jobs and len(fleet.told.refusals()) == 2
    assert fleet.told.answers[0].round.engine == "e0" and fleet.told.answers[1].retry_s > 0
    assert fleet.scheduler.strangers == 1


def test_a_robots_new_process_gets_nothing_of_the_old_ones() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", 7, task=3)
    fleet.describe("/a", engine="e2")
    assert fleet.replica.cancelled == [Round("e1", "/a", 3, 7)]
    fleet.begin("/a", 0, engine="e2")
    fleet.serve()
    assert fleet.told.chunks() == [Round("e2", "/a", 0, 0)]
    assert fleet.report("/a").wait_ratio == 0.0


def test_a_request_nobody_can_use_any_longer_is_dropped_and_counted() -> None:
    fleet = Fleet("/a", "/b")
    fleet.begin("/a")
    fleet.ask("/b", within_s=0.05)
    fleet.step(0.06)
    assert fleet.told.refusals() == ["the robot could no longer use the chunk"]
    assert fleet.report("/b").counts.misses == 1 and fleet.scheduler.waiting() == 0
    fleet.serve()
    assert robots_of(fleet.told.chunks()) == ["/a"]


def test_what_is_computed_too_late_goes_to_nobody() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", within_s=0.1)
    fleet.serve(0.2)
    assert not fleet.told.chunks() and fleet.report("/a").counts.misses == 1


@pytest.mark.parametrize("within_s", [0.0, math.nan, -1.0, math.inf])
def test_a_deadline_that_is_none_is_none(within_s: float) -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", within_s=within_s)
    fleet.serve(1.0)
    assert len(fleet.told.chunks()) == 1


def test_a_stale_observation_is_taken_anew_while_others_go() -> None:
    fleet = Fleet("/a", "/b", "/c", replicas=[TimedReplica(takes_s=0.5)])
    fleet.begin("/c")
    fleet.ask("/a", state=(1.0,))
    fleet.step(0.4)
    assert fleet.told.calls == [Round("e1", "/a", 0, 0)]  # its turn comes soon
    fleet.ask("/b")
    fleet.serve(0.05)
    assert robots_of(fleet.replica.served) == ["/c", "/b"]
    fleet.ask("/a", state=(2.0,), sent_s=100.4)  # the same round and attempt, observed anew
    fleet.serve(0.3)
    assert robots_of(fleet.replica.served) == ["/c", "/b", "/a"]
    fleet.serve(0.1)
    answer = fleet.told.answers[-1]
    assert answer.chunk is not None and answer.chunk.actions[0, 0] == 2.0
    assert fleet.told.calls == [Round("e1", "/a", 0, 0)]


def test_who_does_not_observe_anew_in_time_is_computed_as_it_was() -> None:
    fleet = Fleet("/a")
    fleet.begin("/a", age_s=0.5)
    fleet.step(0.09)
    assert len(fleet.told.calls) == 1 and not fleet.replica.served
    fleet.step(0.02)
    assert robots_of(fleet.replica.served) == ["/a"]


def test_no_more_are_called_than_there_is_room_for() -> None:
    fleet = Fleet("/a", "/b", "/c", replicas=[TimedReplica(takes_s=0.5)])
    for robot in ("/a", "/b", "/c"):
        fleet.ask(robot, age_s=1.0)
    fleet.step()
    assert robots_of(fleet.told.calls) == ["/a"]
    fleet.begin("/a", sent_s=101.0)
    assert robots_of(fleet.replica.served) == ["/a"] and len(fleet.told.calls) == 1
    fleet.step(0.45)
    assert robots_of(fleet.told.calls) == ["/a", "/b"]


def test_an_emergency_goes_before_all_and_waits_for_no_new_observation() -> None:
    fleet = Fleet("/a", "/b", "/c", "/d", settings=Settings(stale_s=0.2, call_s=0.05))
    fleet.begin("/d")
    for robot in ("/a", "/b"):
        fleet.ask(robot)
    fleet.ask("/c", priority=EMERGENCY, age_s=5.0)
    fleet.serve()
    assert robots_of(fleet.replica.served) == ["/d", "/c"] and not fleet.told.calls


def test_a_policy_is_told_what_ran_once_and_which_tasks_are_over() -> None:
    class Noting(Fifo):
        over: list[int] = []  # noqa: RUF012

        def ended(self, task: Task, now_s: float) -> None:
            self.over.append(task.number)

    policy = Noting(most=2)
    fleet = Fleet("/a", "/b", replicas=[TimedReplica(most=2)], policy=policy)
    for robot in ("/a", "/b"):
        fleet.ask(robot)
    fleet.step()
    fleet.serve(0.1)
    assert policy.took == []
    fleet.serve(0.05)
    assert policy.took == [pytest.approx(0.15)]
    fleet.ask("/a", task=4)
    assert policy.over == [0]
    fleet.scheduler.gone("/a", fleet.now_s)
    assert policy.over == [0, 4]


def test_no_robot_goes_before_others_unless_the_operator_granted_it() -> None:
    fleet = Fleet(priorities=read_priorities("/a:200 *:-5 /c:0"), settings=Settings(stale_s=9.0))
    fleet.describe("/first")
    fleet.begin("/first")
    priorities = {"/d": 2**31 - 1, "/c": EMERGENCY, "/b": 1, "/a": 150}
    for robot, priority in priorities.items():
        fleet.describe(robot, priority=priority)
        fleet.ask(robot, priority=priority)
    for _ in priorities:
        fleet.serve()
    assert robots_of(fleet.replica.served) == ["/first", "/a", "/d", "/c", "/b"], "the others in turn"
    told = {admission.robot: admission for admission in fleet.told.admissions}
    assert not told["/a"].reason and all(told[robot].admitted for robot in priorities)
    assert f"priority {EMERGENCY} counts as 0" in told["/c"].reason and "/c:100" in told["/c"].reason
    assert "counts as -5" in told["/d"].reason


@pytest.mark.parametrize("text", ["left:1", "/left", "/left:", "/left:high", "100", "/left:1.5"])
def test_priorities_that_are_none_are_refused_with_the_word(text: str) -> None:
    with pytest.raises(ValueError, match=f"priorities has '{text}'"):
        read_priorities(f"/ok:3 {text}")
