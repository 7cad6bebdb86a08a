"""A token that was waited for too long, in groups of layers, on plain requests."""

from __future__ import annotations

import pytest
from planned import make_act, make_ask

from vla_accel_ros.engine.config import ALL_APART
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import DECODE, DENOISE, MicroBatch
from vla_accel_ros.engine.rules.chunks import StaggeredChunks, WholeChunks
from vla_accel_ros.engine.rules.rule import Plan
from vla_accel_ros.engine.rules.rules import LANES, Rules
from vla_accel_ros.engine.rules.text import (
    MARGIN_S,
    MOST_BEGUN,
    PATIENCE_S,
    SHARE,
)


def in_groups(known: Profile | None = None) -> Rules:
    return Rules(StaggeredChunks(2), Plan(known), text_groups=4)


def took(rules: Rules, batch: MicroBatch, took_s: float) -> None:
    rules.plan.profile.note(batch.kind, len(batch.requests), took_s)
    rules.ran(batch, took_s)


def test_its_groups_alternate_with_steps_until_it_is_there() -> None:
    rules = in_groups(Profile({("ask.decode", 1): 0.01}))
    step, answer = make_act(begun=True), make_ask(begun=True)
    step.fresh, answer.stage = False, DECODE
    now_s, ran = 4 * 0.01 / SHARE, list[str]()
    for group in range(4):
        answer.partial = group > 0
        batch = rules.next("main", (step, answer), now_s)
        while batch is not None and batch.requests == (step,):
            ran.append("step")
            batch = rules.next("main", (step, answer), now_s)
        ran.append("text")
        assert batch == MicroBatch(DECODE, (answer,))
        answer.partial = group < 3
        took(rules, batch, 0.01)
    assert ran == ["text", "step", "text", "step", "text", "step", "text"]
    batch = rules.next("main", (step, answer), now_s + PATIENCE_S)
    assert batch is not None and batch.requests == (step,), "of all groups together: after 0.4 s again"


def test_a_group_counts_with_the_step_that_was_chosen_while_its_token_was_awaited() -> None:
    """It is chosen behind what runs, if it is over in time then."""
    rules = in_groups()
    step, answer = make_act(begun=True), make_ask(begun=True)
    step.fresh, answer.stage, answer.begun_s = False, DECODE, 10.0
    took(rules, MicroBatch(DENOISE, (step,)), 1.0)
    ran = rules.next("main", (step,), 10.0)  # text is awaited, and not there to be chosen
    assert ran is not None and ran.requests == (step,)
    rules.plan.profile.note("ask.decode", 1, 0.4)
    for due_s, fits in ((11.4, False), (11.4 + 2 * MARGIN_S, True)):
        assert (rules.next("main", (answer,), 10.1, due_s) is not None) == fits
    assert rules.plan.free_s("main", 10.1) == pytest.approx(11.4), "the group ends then"


def test_under_overload_a_token_that_has_begun_is_not_held_back() -> None:
    rules = Rules(StaggeredChunks(2), text_groups=2)
    answer, overload = make_ask(begun=True), rules.overload
    answer.stage, overload._rung, overload._quiet_s = DECODE, 1, 1.0
    first = rules.next("main", (answer,), 1.0)
    assert first is not None
    answer.partial = True
    took(rules, first, 0.02)
    second = rules.next("main", (answer,), 1.02)
    assert second is not None
    answer.partial = False
    took(rules, second, 0.02)
    assert rules.next("main", (answer,), 1.04) is None
    assert overload.wake_s((answer,), 1.04) == pytest.approx(1.02 + 0.04 / SHARE), (
        "after its last group began"
    )


def test_in_a_lane_of_its_own_an_answer_goes_on_beside_questions_without_end() -> None:
    policy, answer = Rules(WholeChunks(), lanes=LANES[ALL_APART]), make_ask(begun=True)
    answer.stage = DECODE
    chosen = [policy.next("language", (answer, make_ask()), 0.0) for _ in range(2 * MOST_BEGUN + 2)]
    assert chosen.count(MicroBatch(DECODE, (answer,))) == 2
