"""What is learnt of the rounds that tasks need."""

from __future__ import annotations

import pytest

from vla_accel_ros.fleet.rules.work import FIRST, LONGEST, Rounds, left_after


def test_the_mean_of_what_those_with_more_rounds_needed_further():
    assert left_after([2, 4, 4]) == pytest.approx([10 / 3, 7 / 3, 2.0, 1.0])


def test_a_kind_is_known_by_its_own_tasks_and_a_new_one_by_all():
    rounds = Rounds()
    assert [rounds.left("a", done) for done in (0, FIRST - 1, 99)] == [FIRST, 1, 1]
    rounds.learn("a", 4)
    rounds.learn("b", 10)
    assert rounds.left("a", 1) == 3 and rounds.left("b", 1) == 9
    assert rounds.left("new", 0) == pytest.approx(7.0) and rounds.left("new", 4) == pytest.approx(6.0)


def test_one_that_is_longer_than_any_is_expected_to_go_on():
    rounds = Rounds()
    rounds.learn("a", 4)
    assert [rounds.left("a", done) for done in (3, 4, 5, 14)] == [1, 1, 2, 11]


def test_of_a_kind_of_which_none_is_over_those_that_go_on_tell():
    rounds = Rounds()
    rounds.learn("short", 4)
    assert rounds.left("long", 50) == 47  # as many again as it had more
    assert rounds.left("long", 10) == 40 and rounds.left("long", 0) == 50
    rounds.learn("long", 60)
    assert rounds.left("long", 10) == 50


def test_what_it_remembers_does_not_grow():
    rounds = Rounds(tasks=4, kinds=3)
    for k in range(1000):
        rounds.learn(f"kind {k % 10}", 10**9 if k == 0 else k % 7 + 1)
    assert len(rounds._needed) == len(rounds._left) == 3 and max(map(len, rounds._needed.values())) <= 4
    assert len(rounds._left_of_all) <= 7
    rounds.learn("long", 10**9)
    assert len(rounds._left["long"]) == LONGEST
    for k in range(1000):
        rounds.left(f"new {k}", 5)
    assert len(rounds._going_on) == 3
    rounds.learn("none", 0)
    assert "none" not in rounds._needed
