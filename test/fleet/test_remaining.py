"""Orders by remaining work: the shorter first, unless the longer is much older."""

from __future__ import annotations

import math

import pytest
from fleet_builders import EDGE, make_policy, make_replica, make_request

from vla_accel_ros.fleet.rules.rule import FleetSetup, RuleOptions, rule_factory

NAMES = ("gfair", "aged_remaining", "aged_srpt")


def make_taught(name, limit=1):
    """Tasks of kind "short" need 5 rounds, of kind "long" 40."""
    policy = make_policy(name, {EDGE: make_replica(limit)})
    for kind, rounds in (("short", 5), ("long", 40)):
        policy.ended(make_request("/over", kind=kind, rounds=rounds).task, 0.0)
    return policy


def begun(robot, kind, rounds, began_s):
    """A task that moved 1 s in each round, and stands."""
    return make_request(robot, began_s=began_s, kind=kind, rounds=rounds, moved_s=float(rounds))


def first(policy, *ready, now_s=100.0):
    return policy.next(EDGE, ready, now_s).requests[0].robot


@pytest.mark.parametrize("name", NAMES)
def test_of_tasks_of_an_age_the_one_with_less_work_left_goes_first(name):
    ready = begun("/long", "long", 2, 99.0), begun("/short", "short", 2, 99.0)
    assert first(make_taught(name), *ready) == "/short"
    ready = begun("/short", "short", 1, 99.0), begun("/nearly done", "long", 39, 99.0)
    assert first(make_taught(name), *ready) == "/nearly done"


@pytest.mark.parametrize("name", NAMES)
def test_a_task_that_is_much_older_goes_first_all_the_same(name):
    ready = begun("/short", "short", 1, 99.9), begun("/long", "long", 20, -900.0)
    assert first(make_taught(name), *ready) == "/long"


@pytest.mark.parametrize("name", NAMES)
def test_without_history_the_order_is_that_of_progress(name):
    ready = [begun(f"/{rounds}", "new", rounds, 90.0) for rounds in (3, 8, 5)]
    assert first(make_policy(name), *ready) == "/8"


@pytest.mark.parametrize("name", NAMES)
def test_an_arm_that_moves_on_for_longer_than_a_batch_can_wait(name):
    moving, stands = begun("/moving", "short", 4, 90.0), begun("/stands", "long", 1, 90.0)
    moving.task.runs_out_s = 101.5  # a batch takes 1 s
    assert first(make_taught(name), moving, stands) == "/stands"
    moving.task.runs_out_s = 100.5
    assert first(make_taught(name), moving, stands) == "/moving"


def test_the_age_counts_by_its_root():
    """Four times as old, nearly twice the rounds."""
    for left, expected in ((9, "/old"), (11, "/young")):
        policy = make_policy("aged_remaining")
        policy.ended(make_request("/over", kind="a", rounds=2 + left).task, 0.0)
        policy.ended(make_request("/over", kind="b", rounds=2 + 5).task, 0.0)
        ready = begun("/young", "b", 2, 100.0 - 99.0), begun("/old", "a", 2, 100.0 - 399.0)
        assert first(policy, *ready) == expected


def test_an_arm_that_moves_is_kept_moving_rather_than_another_begun():
    policy = make_taught("aged_remaining")
    policy.ended(make_request("/over", kind="a", rounds=10).task, 0.0)
    assert first(policy, make_request("/new", 90.0, "short"), begun("/begun", "a", 1, 90.0)) == "/begun"
    assert first(policy, make_request("/new", 90.0, "short"), begun("/begun", "long", 1, 90.0)) == "/new"


def test_the_slowdown_counts_by_its_square():
    """Alone both take 10 s; 8 rounds are left of one and 5 of the other: 5 / 3^2 > 8 / 4^2 > 5 / 3.8^2."""
    policy = make_policy("gfair")
    policy.ended(make_request("/over", kind="a", rounds=10).task, 0.0)
    old = begun("/old", "a", 2, 100.0 - 30.0)
    assert first(policy, begun("/young", "a", 5, 100.0 - 20.0), old) == "/old"
    assert first(policy, begun("/young", "a", 5, 100.0 - 28.0), old) == "/young"


@pytest.mark.parametrize(("exponent", "most"), [(2.0, 20), (1.0, 10), (0.5, 7), (0.0, 5)])
def test_the_age_counts_by_the_power_that_is_given(exponent, most):
    """Twice as old (1 + age of 200 and 100), a task goes first with up to 2^exponent times the 5 rounds."""
    for left, expected in ((most - 0.5, "/old"), (most + 0.5, "/young")):
        policy = rule_factory("aged_srpt", RuleOptions(age_exponent=exponent))(
            FleetSetup({EDGE: make_replica()})
        )
        for rounds in (2 + math.floor(left), 2 + math.ceil(left)):
            policy.ended(make_request("/over", kind="a", rounds=rounds).task, 0.0)
        policy.ended(make_request("/over", kind="b", rounds=2 + 5).task, 0.0)
        ready = begun("/young", "b", 2, 100.0 - 99.0), begun("/old", "a", 2, 100.0 - 199.0)
        assert first(policy, *ready) == expected


def test_an_exponent_that_cannot_be_is_refused():
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"age_exponent is {wrong}"):
            RuleOptions(age_exponent=wrong)
