"""Rounds of a robot's task, and how long it waited, worked out by hand."""

from __future__ import annotations

import math

import pytest

from vla_accel_ros.fleet.task import Task


def test_where_execution_dominates_the_wait_is_between_two_executions():
    task = Task("/a", 1, "reach", began_s=0.0)
    task.told(0.0, -1.0, 0.0)
    task.dispatched(0.0)
    task.answered(0.1, 1.0)  # executed from 0.1 to 1.1
    task.told(0.5, 0.4, 0.6)
    task.dispatched(1.2)
    task.answered(1.3, 1.0)  # executed from 1.3 to 2.3: it stood for 0.2 s
    assert task.waited_s == pytest.approx(0.2)
    assert task.wait_ratio(2.0) == pytest.approx(0.1)
    assert (task.rounds, task.generated_s) == (2, pytest.approx(0.2))


def test_where_generation_dominates_the_wait_is_between_two_generations():
    task = Task("/a", 1, "reach", began_s=0.0)
    task.dispatched(0.0)
    task.answered(1.0, 0.5)  # executed from 1.0 to 1.5
    task.told(1.0, 0.0, 0.5)
    task.dispatched(1.3)
    task.answered(2.3, 0.5)  # it stood from 1.5 to 2.3, of which only 0.3 s were in a queue
    assert task.waited_s == pytest.approx(0.3)


def test_what_the_robot_tells_replaces_what_was_expected():
    task = Task("/a", 1, "reach", began_s=0.0)
    task.dispatched(0.0)
    task.answered(0.1, 1.0)
    assert task.runs_out_s == pytest.approx(1.1) and task.slack_s(0.6) == pytest.approx(0.5)
    task.told(0.6, 0.3, 0.2, stalled_s=0.2)  # it began 0.2 s later, and executes less
    assert task.runs_out_s == pytest.approx(0.8) and task.last_execution_s == pytest.approx(0.5)
    assert task.stalled_s == 0.2 and task.slack_s(0.9) == 0.0


def test_a_chunk_that_comes_early_is_executed_after_the_one_before():
    task = Task("/a", 1, "reach", began_s=0.0)
    task.dispatched(0.0)
    task.answered(0.1, 1.0)
    task.dispatched(0.2)
    task.answered(0.3, 1.0)
    assert task.runs_out_s == pytest.approx(2.1) and task.waited_s == 0.0


def test_what_failed_is_no_round_and_before_the_first_chunk_it_stands():
    task = Task("/a", 1, "reach", began_s=5.0)
    assert task.runs_out_s == -math.inf and task.slack_s(5.0) == 0.0 and task.last_execution_s is None
    assert task.wait_ratio(5.0) == 0.0
    task.dispatched(5.0)
    task.failed()
    task.failed()
    task.dispatched(6.0)
    task.answered(6.1, 1.0)
    assert task.rounds == 1 and task.generated_s == pytest.approx(0.1)


def test_it_waits_from_its_first_request_until_that_is_answered():
    """Neither a repeated request nor a failure starts the wait anew."""
    task = Task("/a", 1, "reach", began_s=5.0)
    assert task.asked_s == math.inf
    task.told(5.0, -1.0, 0.0)
    task.dispatched(6.0)
    task.failed()
    task.told(7.0, -1.0, 0.0)
    assert task.asked_s == 5.0
    task.dispatched(8.0)
    task.answered(8.5, 1.0)
    assert task.asked_s == math.inf
    task.told(9.0, 0.5, 0.5)
    task.told(9.5, 1.0, 0.0)
    assert task.asked_s == 9.0


def test_what_it_remembers_does_not_grow():
    task = Task("/a", 1, "reach", began_s=0.0)
    for k in range(1000):
        task.dispatched(float(k))
        task.answered(k + 0.1, 0.5)
    assert task.rounds == 1000 and task.waited_s == pytest.approx(999 * 0.5)
    assert len(task._generations) <= 2 and len(task._executions) <= 2


def test_what_was_executed_long_ago_did_not_go_on_until_it_is_told():
    task = Task("/a", 1, "reach", began_s=0.0)
    task.dispatched(0.0)
    task.answered(0.1, 1.0)
    task.told(5.0, executed_s=4.9, left_s=0.0)
    task.dispatched(5.0)
    task.answered(5.1, 1.0)
    assert task.waited_s == pytest.approx(4.0)
