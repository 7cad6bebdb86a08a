"""Subtasks: when they are asked for, what the policy is told, and what it is told when they do not come."""

from __future__ import annotations

import pytest

from vla_accel_ros.sensing.subtasks import MODEL, TOPIC, Subtasks


def given(source: str = MODEL) -> Subtasks:
    subtasks = Subtasks(source, 2.0, "Task: {task}. Next:")
    subtasks.instruct("clear the table", 100.0)
    return subtasks


def test_model_is_asked_every_period_and_not_again_before_it_answers():
    subtasks = given()
    assert subtasks.question == "Task: clear the table. Next:"
    assert subtasks.due(100.0) and not subtasks.due(101.9) and not subtasks.due(102.5)
    subtasks.answer("pick up the cup", 103.0)
    assert subtasks.due(103.1) and not subtasks.due(103.2)
    assert not subtasks.due(108.9) and subtasks.due(109.2)  # that answer will not come any more


def test_policy_is_told_the_task_before_the_first_subtask_and_then_the_newest():
    subtasks = given()
    assert subtasks.words(100.5).text == "clear the table"
    assert subtasks.answer(" pick up\nthe cup ", 101.0) and subtasks.words(101.0).text == "pick up the cup"
    assert not subtasks.answer("pick up the cup", 102.0)  # the same again
    assert not subtasks.answer("  ", 103.0) and subtasks.words(103.0).text == "pick up the cup"
    assert subtasks.answer("put it away", 104.0)
    subtasks.instruct("wipe the table", 105.0)
    assert subtasks.words(105.0).text == "wipe the table"


@pytest.mark.parametrize("source", [MODEL, TOPIC])
def test_silence_of_the_source_leaves_the_policy_without_words_until_the_next_subtask(source):
    subtasks = given(source)
    assert subtasks.words(106.0).text
    for now_s in (106.1, 200.0):
        words = subtasks.words(now_s)
        assert not words.text and "6 s" in words.missing and "autosteer" in words.missing
    assert subtasks.answer("pick up the cup", 201.0) and subtasks.words(202.0).text == "pick up the cup"
    assert not subtasks.words(207.1).text


def test_autosteer_that_is_off_is_the_task_alone_and_on_begins_anew():
    subtasks = given()
    subtasks.answer("pick up the cup", 101.0)
    subtasks.steer(False, 102.0)
    assert not subtasks.due(110.0) and not subtasks.answer("late", 110.0)
    assert subtasks.words(500.0).text == "clear the table"
    subtasks.steer(True, 500.0)
    assert subtasks.words(500.0).text == "clear the table" and subtasks.due(500.0)


def test_nothing_is_asked_without_a_task_or_a_model_as_the_source():
    assert not Subtasks(MODEL, 2.0).due(1000.0)
    assert not given(TOPIC).due(1000.0)
    off = Subtasks("none", 2.0)
    off.instruct("clear the table", 0.0)
    assert not off.autosteer and off.words(1e6).text == "clear the table"
