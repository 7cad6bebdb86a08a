"""A question of a fleet's robot is answered or refused in a sentence, by its deadline, on both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleet_stand_ins import Fleet, TimedReplica

from vla_accel_ros.fleet.protocol import Admission, EncodedObservation, TextAnswer
from vla_accel_ros.fleet.robot.questions import GRACE_S, MOST_OPEN, Questions
from vla_accel_ros.fleet.serving.questions import MOST_OF_A_ROBOT, MOST_WAITING

S = 1_000_000_000


def answering(name: str = "r", answers: int = 1) -> TimedReplica:
    replica = TimedReplica(name)
    replica.answers = answers
    return replica


def refusals(fleet: Fleet) -> list[str]:
    return [said.text for said in fleet.told.texts if said.refused]


def test_a_replica_answers_beside_the_chunks_and_takes_no_room_of_theirs() -> None:
    fleet = Fleet("/a", "/b", replicas=[answering()])
    fleet.question("/a", 7)
    fleet.begin("/b")
    assert list(fleet.replica.questions.values()) and fleet.replica.room() == 0
    fleet.replica.say("a red block")
    fleet.serve(0.1)
    (said,) = fleet.told.texts
    assert (said.round.robot, said.round.number, said.text) == ("/a", 7, "a red block")
    assert not said.refused and said.replica == "r"
    assert [chunk.robot for chunk in fleet.told.chunks()] == ["/b"]


def test_what_cannot_be_answered_is_refused_at_once() -> None:
    silent = Fleet("/a")
    silent.question("/a")
    assert "no language head" in refusals(silent)[0]
    fleet = Fleet("/a", replicas=[answering()])
    fleet.question("/b")
    fleet.question("/a", engine="another")
    fleet.describe("/c", chunks_per_s=-1.0)
    fleet.question("/c")
    assert ["does not know" in refusals(fleet)[0], "another process" in refusals(fleet)[1]] == [True, True]
    assert refusals(fleet)[2].startswith("the fleet does not serve this robot: chunks_per_s is -1")
    assert not fleet.replica.questions


def test_the_queue_is_bounded_for_all_and_for_each_robot() -> None:
    robots = [f"/r{number}" for number in range(MOST_WAITING + 2)]
    fleet = Fleet(*robots, replicas=[answering()])
    for number in range(MOST_OF_A_ROBOT + 1):
        fleet.question("/r0", number)
        fleet.step()
    assert refusals(fleet) == [f"{MOST_OF_A_ROBOT} questions of this robot are open already; ask later"]
    for robot in robots[1:]:
        fleet.question(robot)
    assert fleet.scheduler.questions() == MOST_WAITING
    assert "questions wait already at the fleet's scheduler" in refusals(fleet)[-1]


def test_a_question_that_comes_twice_is_answered_once() -> None:
    fleet = Fleet("/a", replicas=[answering(answers=2)])
    fleet.question("/a", 3)
    fleet.question("/a", 3)
    fleet.step()
    fleet.replica.say("once")
    fleet.step()
    assert [said.text for said in fleet.told.texts] == ["once"] and not fleet.replica.questions


def test_a_late_answer_is_a_refusal_and_its_replica_is_told() -> None:
    fleet = Fleet("/a", replicas=[answering()])
    fleet.question("/a", 1)
    fleet.question("/a", 2)
    fleet.step()
    fleet.step(8.9)
    assert not fleet.told.texts
    fleet.step(0.2)
    assert refusals(fleet) == ["no replica of the fleet answered within 9 s"] * 2
    assert [round_.number for round_ in fleet.replica.cancelled] == [1]
    assert not fleet.replica.questions


def test_a_lost_replica_costs_its_questions_another_and_the_last_one_a_sentence() -> None:
    replicas = [answering("a"), answering("b"), answering("c")]
    fleet = Fleet("/a", replicas=replicas)
    fleet.question("/a", 5)
    fleet.step()
    for one in replicas:
        assert [round_.number for round_ in one.questions.values()] == [5]
        one.die()
        fleet.step()
        assert fleet.told.texts == [] or one is replicas[-1]
    assert refusals(fleet) == ["c is lost"]


def test_a_refusal_of_the_model_and_a_fault_are_told() -> None:
    fleet = Fleet("/a", replicas=[answering(answers=2)])
    for number, error in enumerate((ValueError("the prompt has 200 tokens"), RuntimeError("out of memory"))):
        fleet.question("/a", number)
        fleet.step()
        fleet.replica.say(error=error)
        fleet.step()
    assert refusals(fleet) == ["the prompt has 200 tokens", "out of memory"]


@pytest.mark.parametrize("how", ["gone", "another process", "silent"])
def test_a_robot_that_goes_leaves_no_question_and_is_told_in_case_it_is_there(how: str) -> None:
    fleet = Fleet("/a", replicas=[answering()])
    fleet.question("/a", 1)
    fleet.question("/a", 2)
    fleet.step()
    if how == "gone":
        fleet.scheduler.gone("/a", fleet.now_s)
    elif how == "silent":
        fleet.now_s += 11.0
    else:
        fleet.describe("/a", engine="e2")
    fleet.step()
    assert not fleet.replica.questions and fleet.scheduler.questions() == 0
    assert refusals(fleet) == ["the fleet's scheduler has forgotten this robot; ask again"] * 2


SERVED = Admission("e", "/a", "s", True)


def asked(**fields: Any) -> Questions:
    questions = Questions("e", "/a", within_s=5.0, first=100, **fields)
    questions.asked("what do you see?", SERVED, 0)
    return questions


def seen(stamp_ns: int = S) -> EncodedObservation:
    return EncodedObservation({}, {}, np.zeros(2, np.float32), "reach", stamp_ns)


def test_a_robot_sends_a_question_once_with_its_own_words_and_takes_its_own_answer_alone() -> None:
    questions = asked()
    (request,) = questions.send(seen(), 2 * S)
    assert request.observation.instruction == "what do you see?" and request.round.number == 100
    assert request.within_s == pytest.approx(3.0) and not questions.unsent
    assert list(questions.send(seen(), 2 * S)) == []
    answer = TextAnswer(request.round, "what do you see?", S, "a block")
    for other in (
        replace(answer, round=replace(answer.round, number=99)),
        replace(answer, stamp_ns=S + 1),
        replace(answer, prompt="what?"),
    ):
        assert not questions.answered(other)
    assert questions.answered(answer) and not questions.answered(answer)
    assert len(questions) == 0


def test_numbers_of_two_processes_are_not_the_same() -> None:
    one, other = (Questions("e", "/a", 5.0) for _ in range(2))
    for questions in (one, other):
        questions.asked("what?", SERVED, 0)
    (first,), (second,) = one.send(seen(), 0), other.send(seen(), 0)
    assert first.round.number != second.round.number


def test_nothing_is_waited_for_in_silence_at_the_robot() -> None:
    questions = Questions("e", "/a", within_s=5.0)
    with pytest.raises(ValueError, match="admitted"):
        questions.asked("what?", None, 0)
    with pytest.raises(ValueError, match="full"):
        questions.asked("what?", Admission("e", "/a", "s", False, "full"), 0)
    with pytest.raises(ValueError, match="the question is empty"):
        questions.asked("  ", SERVED, 0)
    for number in range(MOST_OPEN):
        questions.asked(f"what {number}?", SERVED, 0)
    with pytest.raises(ValueError, match="wait already"):
        questions.asked("what?", SERVED, 0)
    over_ns = round((5.0 + GRACE_S) * S)
    assert questions.late(over_ns - 1, "") == []
    late = questions.late(over_ns, "camera front: nothing came")
    assert len(late) == MOST_OPEN and len(questions) == 0
    assert late[0] == ("what 0?", "there was no observation for the question: camera front: nothing came")
    sent = asked()
    list(sent.send(seen(), 0))
    assert sent.late(over_ns, "") == [
        ("what do you see?", "no answer from the fleet's scheduler within 5.5 s")
    ]
    open_ = asked()
    assert open_.close("the node ended") == [("what do you see?", "the node ended")] and not open_.unsent
