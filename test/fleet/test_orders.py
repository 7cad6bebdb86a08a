"""Orders of a fleet, worked out by hand: Kairos' wait ratio, remaining work, and the tasks and rounds that
they judge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fleet_builders import EDGE, make_policy, make_replica, make_request

from vla_accel_ros.engine.request import Status
from vla_accel_ros.fleet.rules.kairos import LONGEST_S, HighestWaitRatio
from vla_accel_ros.fleet.rules.remaining import FIRST, LONGEST, Rounds, left_after
from vla_accel_ros.fleet.rules.rule import FleetSetup, RuleOptions, rule_factory
from vla_accel_ros.fleet.task import Task

SETUP = FleetSetup({EDGE: make_replica()})


def executed(robot, *rounds):
    """A task of rounds (dispatched, answered, seconds of execution)."""
    request = make_request(robot)
    for dispatched_s, answered_s, execution_s in rounds:
        request.task.dispatched(dispatched_s)
        request.task.answered(answered_s, execution_s)
    return request


def test_the_wait_ratio_by_hand():
    """Round 1 is dominated by execution: the arm stood from 1.5 to 2.0. Round 2 is dominated by generation
    (0.5 s against 0.2 s): the queue took from 2.0 to 2.3."""
    request = executed("/a", (0.0, 0.5, 1.0), (1.5, 2.0, 0.2), (2.3, 2.8, 1.0))
    assert request.task.waited_s == pytest.approx(0.5 + 0.3)
    assert request.task.wait_ratio(4.0) == pytest.approx(0.8 / 4.0)


def test_the_wait_for_the_first_chunk_does_not_count():
    """A task that was never served would have waited all its life, and go before all others."""
    served = make_request("/served", began_s=1.0)
    served.task.dispatched(2.0)
    served.task.answered(2.5, 1.0)
    assert served.task.wait_ratio(3.0) == make_request("/new", began_s=1.0).task.wait_ratio(3.0) == 0.0


def test_the_higher_bucket_goes_first_then_the_longer_execution():
    a, b, c = (
        executed(f"/{name}", (0.0, 0.1, length_s)) for name, length_s in (("a", 0.5), ("b", 2.0), ("c", 1.0))
    )
    a.task.waited_s, b.task.waited_s, c.task.waited_s = 3.1, 2.1, 2.9  # of 10 s: buckets 3, 2, 2
    policy = HighestWaitRatio(FleetSetup({EDGE: make_replica(limit=3)}))
    batch = policy.next(EDGE, [c, b, a], 10.0)
    assert [request.robot for request in batch.requests] == ["/a", "/b", "/c"]


def setup_with(**options):
    return FleetSetup(SETUP.replicas, RuleOptions(**options))


def test_a_request_that_waits_is_lifted_and_its_execution_scaled():
    """One bucket for each 4 s, and (1 + seconds) times 0.5 s."""
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=4.0))
    request = executed("/a", (0.0, 0.1, 0.5))
    keys: list[float] = []
    for waited_s in (0.0, 3.0, 4.0, 7.0, 8.0, 1000.0):
        request.task.asked_s = 10.0 - waited_s
        keys += policy.keys([request], 10.0)
    found = [divmod(-key, LONGEST_S) for key in keys]
    assert [bucket for bucket, _ in found] == [0, 0, 1, 1, 2, 9]
    assert [length_s for _, length_s in found] == pytest.approx([0.5, 2.0, 2.5, 4.0, 4.5, 500.5])


def test_ageing_does_not_depend_on_how_often_the_scheduler_decides():
    """A thousand decisions while 1 s passes lift nobody; a minute, in which 15 times 4 s pass, does."""
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=4.0))
    request = executed("/a", (0.0, 0.1, 0.5))
    request.task.told(10.0, -1.0, 0.0)
    for now_s, first in (*((10.0 + decision / 1000, "/b") for decision in range(1000)), (70.0, "/a")):
        other = executed("/b", (0.0, 0.1, 9.0))
        other.task.told(now_s, -1.0, 0.0)
        other.task.last_execution_s = 9.0
        (chosen,) = policy.next(EDGE, [request, other], now_s).requests
        assert chosen.robot == first
        chosen.status = Status.RUNNING


def test_an_execution_of_any_length_lifts_nobody_to_the_next_bucket():
    policy = HighestWaitRatio(setup_with(kairos_ageing_s=1e6))
    long, waited = (
        executed("/long", (0.0, 0.1, 1e9)),
        make_request("/waited", waited_s=1.1, last_execution_s=0.1),
    )
    long.task.asked_s = 10.0 - 900_000
    assert policy.next(EDGE, [long, waited], 10.0).requests[0].robot == "/waited"


def test_a_first_execution_counts_as_one_second():
    new = make_request("/new")
    for known_s, first in ((1.5, "/known"), (0.5, "/new")):
        ready = [new, executed("/known", (0.0, 0.1, known_s))]
        assert HighestWaitRatio(SETUP).next(EDGE, ready, 1.0).requests[0].robot == first


def test_numbers_that_cannot_be_are_refused():
    wrong: list[tuple[str, Any]] = [
        ("kairos_buckets", 0),
        ("kairos_ageing_s", 0.0),
        ("kairos_ageing_s", math.nan),
    ]
    for name, value in wrong:
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            RuleOptions(**{name: value})
    assert make_policy("kairos")


def test_the_number_of_buckets_is_an_option():
    """Waits of 31 and 39 %: the same of ten buckets, where the longer execution goes first; two of twenty."""
    long, waited = executed("/long", (0.0, 0.1, 2.0)), executed("/waited", (0.0, 0.1, 0.5))
    long.task.waited_s, waited.task.waited_s = 3.1, 3.9
    for buckets, first in ((10, long), (20, waited)):
        policy = HighestWaitRatio(setup_with(kairos_buckets=buckets))
        assert policy.next(EDGE, [waited, long], 10.0).requests == (first,)


NAMES = ("aged_remaining", "aged_srpt")


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


def test_the_mean_of_what_those_with_more_rounds_needed_further():
    assert left_after([2, 4, 4]) == pytest.approx([10 / 3, 7 / 3, 2.0, 1.0])


def test_a_kind_is_known_by_its_own_tasks_and_a_new_one_by_all():
    rounds = Rounds()
    assert [rounds.left("a", done) for done in (0, FIRST - 1, 99)] == [FIRST, 1, 1]
    rounds.learn("a", 4)
    rounds.learn("b", 10)
    assert rounds.left("a", 1) == 3 and rounds.left("b", 1) == 9
    assert rounds.left("new", 0) == pytest.approx(7.0) and rounds.left("new", 4) == pytest.approx(6.0)
    assert rounds.left("new", 10) == 1, "as many rounds as any had"


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


def test_what_rounds_remember_does_not_grow():
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
