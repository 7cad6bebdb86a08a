"""A token that was waited for too long, in groups of layers, on plain requests."""

from __future__ import annotations

import pytest
from planned import make_act, make_ask

from vla_accel_ros.engine.policies.chunks import StaggeredChunks
from vla_accel_ros.engine.policies.overload import Degrading
from vla_accel_ros.engine.policies.text import PATIENCE_S, SHARE, TextInSlack
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.request import DECODE, MicroBatch


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
