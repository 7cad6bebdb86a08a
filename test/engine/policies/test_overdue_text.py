"""A token that was waited for too long, in groups of layers, on plain requests."""

from __future__ import annotations

import pytest
from planned import make_act, make_ask

from vla_accel_ros.engine.policies.chunks import StaggeredChunks
from vla_accel_ros.engine.policies.overload import Degrading
from vla_accel_ros.engine.policies.text import (
    MARGIN_S,
    MOST_BEGUN,
    PATIENCE_S,
    SHARE,
    TextAlone,
    TextInSlack,
)
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import DECODE, DENOISE, MicroBatch


def test_its_groups_alternate_with_steps_until_it_is_there() -> None:
    policy = TextInSlack(StaggeredChunks(2), Profile({("ask.decode", 1): 1.0}))
    step, answer = make_act(begun=True), make_ask(begun=True)
    step.fresh, answer.stage = False, DECODE
    now_s, ran = PATIENCE_S, list[str]()
    for group in range(4):
        answer.partial = group > 0
        batch = policy.next("main", (step, answer), now_s)
        while batch is not None and batch.requests == (step,):
            ran.append("step")
            batch = policy.next("main", (step, answer), now_s)
        ran.append("text")
        assert batch == MicroBatch(DECODE, (answer,))
        answer.partial = group < 3
        policy.ran(batch, 0.01)
    assert ran == ["text", "step", "text", "step", "text", "step", "text"]
    batch = policy.next("main", (step, answer), now_s + PATIENCE_S / 2)
    assert batch is not None and batch.requests == (step,)
    assert policy._patience_s == pytest.approx(max(PATIENCE_S, 0.04 / SHARE)), "of all groups together"


def test_of_groups_that_run_ahead_the_last_ends_the_token() -> None:
    """The last is launched before it is known what the one before took."""
    for policy in (TextInSlack(StaggeredChunks(2), Profile()), Degrading(StaggeredChunks(2))):
        answer = make_ask(begun=True)
        answer.stage = DECODE
        batch = MicroBatch(DECODE, (answer,))
        answer.partial = True
        policy.ran(batch, 0.01)
        answer.partial, answer.awaited = False, True
        policy.ran(batch, 0.01)
        policy.ran(batch, 0.01)
        answer.awaited = False
        policy.ran(batch, 0.01)
        took_s = policy._patience_s if isinstance(policy, TextInSlack) else policy._pause_s
        assert took_s == pytest.approx(0.04 / SHARE)


def test_a_group_counts_with_the_step_that_was_chosen_while_its_token_was_awaited() -> None:
    """It is chosen behind what runs, if it is over in time then."""
    first = StaggeredChunks(2)
    policy = TextInSlack(first, Profile({("ask.decode", 1): 0.4}))
    step, answer = make_act(begun=True), make_ask(begun=True)
    step.fresh, answer.stage, answer.begun_s = False, DECODE, 10.0
    policy.ran(MicroBatch(DENOISE, (step,)), 1.0)
    ran = policy.next("main", (step,), 10.0)  # text is awaited, and not there to be chosen
    assert ran is not None and ran.requests == (step,)
    for due_s, fits in ((11.4, False), (11.4 + 2 * MARGIN_S, True)):
        assert (policy.next("main", (answer,), 10.1, due_s) is not None) == fits
    assert first._backlog.free_s(10.1) == pytest.approx(11.0), "the step ends then; no group was measured yet"


def test_under_overload_a_token_that_has_begun_is_not_held_back() -> None:
    policy = Degrading(TextInSlack(StaggeredChunks(2), Profile()))
    answer = make_ask(begun=True)
    answer.stage, policy._rung, policy._quiet_s = DECODE, 1, 1.0
    first = policy.next("main", (answer,), 1.0)
    assert first is not None
    answer.partial = True
    policy.ran(first, 0.02)
    second = policy.next("main", (answer,), 1.02)
    assert second is not None
    answer.partial = False
    policy.ran(second, 0.02)
    assert policy.next("main", (answer,), 1.04) is None
    assert policy.wake_s((answer,), 1.04) == pytest.approx(1.02 + 0.04 / SHARE), "after its last group began"


def test_in_a_lane_of_its_own_an_answer_goes_on_beside_questions_without_end() -> None:
    policy, answer = TextAlone(), make_ask(begun=True)
    answer.stage = DECODE
    chosen = [policy.next("language", (answer, make_ask()), 0.0) for _ in range(2 * MOST_BEGUN + 2)]
    assert chosen.count(MicroBatch(DECODE, (answer,))) == 2
