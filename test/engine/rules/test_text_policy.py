"""When a token of text may run: the policy by itself, on a time that the test moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduled import asked

from vla_accel_ros.engine.profile import FORGET, Profile
from vla_accel_ros.engine.request import (
    ASK,
    DECODE,
    PREFILL,
    Act,
    MicroBatch,
    Observe,
    Request,
    Status,
    Waits,
)
from vla_accel_ros.engine.rules.chunks import WholeChunks
from vla_accel_ros.engine.rules.rule import Plan
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.rules.text import AGAIN_S, MARGIN_S, PATIENCE_S, SHARE, TOKEN_S, TextInSlack


def acting() -> Request:
    request = Request(Act(), waits=Waits.NEWS)
    request.fresh = True
    return request


class Lane:
    """What a scheduler does with the policy, in time that only micro-batches take."""

    def __init__(self, takes: Callable[[MicroBatch], float], expected_s: float | None = None) -> None:
        known = {} if expected_s is None else {("ask.decode", 1): expected_s}
        self.profile = Profile(known)
        self.rules, self.takes, self.now_s = Rules(WholeChunks(), Plan(self.profile)), takes, 0.0

    def step(self, ready: Sequence[Request], due_s: float = math.inf) -> MicroBatch | None:
        batch = self.rules.next("main", ready, self.now_s, due_s)
        if batch is not None:
            took_s = self.takes(batch)
            self.now_s += took_s
            self.profile.note(batch.kind, len(batch.requests), took_s)
            self.rules.ran(batch, took_s)
        return batch

    def fill(self, ready: Callable[[], Sequence[Request]], due_s: float) -> int:
        """Tokens until there is nothing more to do before due_s."""
        made = 0
        while (batch := self.step(ready(), due_s)) is not None:
            made += batch.kind == "ask.decode"
        return made


def patient(lane: Lane) -> Lane:
    """No token is overdue: only slack counts."""
    slack: Any = lane.rules._of["main"][-1]
    slack._overdue_s = lambda asks: math.inf
    return lane


def test_a_token_fits_that_ends_with_the_margin_before_the_next_frame() -> None:
    answer = asked(begun=True)
    for left_s, fits in ((-1.0, 0), (0.0, 0), (2.0, 0), (2.0 + MARGIN_S, 1), (5.0, 2), (9.5, 4), (99.0, 49)):
        lane = patient(Lane(lambda batch: 2.0, expected_s=2.0))
        assert lane.fill(lambda: [answer], left_s) == fits, left_s


def test_longer_tokens_count_at_once_and_shorter_ones_slowly() -> None:
    profile = Profile({("ask.decode", 1): 1.0})
    profile.note("ask.decode", 1, 3.0)
    assert profile.latest_s("ask.decode", 1, TOKEN_S) == 3.0
    profile.note("ask.decode", 1, 1.0)
    assert profile.latest_s("ask.decode", 1, TOKEN_S) == pytest.approx(3.0 - 2.0 * FORGET)


def test_a_number_of_answers_that_was_never_measured_is_expected_to_take_what_more_of_them_took() -> None:
    profile = Profile({("ask.decode", 1): 1.0, ("ask.decode", 4): 3.0})
    expected = [profile.latest_s("ask.decode", batch, TOKEN_S) for batch in (1, 2, 4, 8)]
    assert expected == [1.0, 3.0, 3.0, 3.0]
    assert Profile().latest_s("ask.decode", 1, TOKEN_S) == TOKEN_S


def test_durations_that_cannot_be_are_refused() -> None:
    for seconds in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"ask.decode of 2 takes {seconds} s; give a positive number"):
            Profile({("ask.decode", 2): seconds})


def test_no_text_no_token() -> None:
    lane = Lane(lambda batch: 1.0)
    assert lane.fill(list, 9.0) == 0 and lane.now_s == 0.0


def test_texts_that_end_leave_the_rest_free() -> None:
    lane, answer, left = Lane(lambda batch: 1.0), asked(begun=True), iter(range(3))
    assert lane.fill(lambda: [answer] if next(left, None) is not None else [], 9.0) == 3
    assert lane.now_s == 3.0


@given(
    takes=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=30),
    guess=st.floats(0.1, 5.0),
    due_s=st.floats(0.0, 40.0),
)
def test_a_frame_waits_for_no_more_than_one_token_that_was_misjudged(
    takes: list[float], guess: float, due_s: float
) -> None:
    times = itertools.chain(takes, itertools.repeat(takes[-1]))
    lane, answer = patient(Lane(lambda batch: next(times), guess)), asked(begun=True)
    made = lane.fill(lambda: [answer], due_s)
    if made:
        excess = max(0.0, max(takes) - min(guess, min(takes)))
        assert lane.now_s <= due_s - MARGIN_S + excess + 1e-9
    if all(take <= guess for take in takes):
        assert lane.now_s <= max(0.0, due_s - MARGIN_S) + 1e-9


def test_frames_and_actions_go_first_and_questions_before_tokens() -> None:
    lane = Lane(lambda batch: 0.001)
    act, frame, answer = acting(), Request(Observe()), asked(begun=True)
    low, high = asked(), asked(priority=1)
    order = []
    ready = [answer, low, high, frame, act]
    while ready and (batch := lane.step(ready)) is not None:
        order.append((batch.stage, batch.requests))
        if batch.requests == (answer, low, high):
            break
        for request in batch.requests:
            request.status = Status.RUNNING
            if request.want == ASK:
                request.stage = DECODE
            else:
                ready.remove(request)
    assert order[0][1] == (act,) and order[1][1] == (frame,)
    assert order[2:4] == [(PREFILL, (high,)), (PREFILL, (low,))]
    assert order[4] == (DECODE, (answer, low, high))  # one forward for all of them


def test_where_actions_leave_no_time_text_has_a_token_now_and_then_and_its_share_at_most() -> None:
    """There is always something urgent; a token takes longer than a frame."""
    answer, texts, late = asked(begun=True), [], []
    lane = Lane(lambda batch: 0.04 if batch.requests[0].want == ASK else 0.02)
    while lane.now_s < 60.0:
        before_s = lane.now_s
        batch = lane.step([acting(), answer], lane.now_s)
        assert batch is not None
        if batch.requests[0] is answer:
            texts.append(before_s)
            late.append(before_s - (texts[-2] if len(texts) > 1 else 0.0))
    assert 0.8 * SHARE <= len(texts) * 0.04 / 60.0 <= SHARE
    assert max(late) <= max(PATIENCE_S, 0.04 / SHARE) + 0.06


def test_a_question_that_waits_long_is_begun_whatever_is_urgent() -> None:
    lane, question = Lane(lambda batch: 0.01), asked(submitted_s=0.0)
    while (batch := lane.step([acting(), question])) is not None and batch.requests[0] is not question:
        pass
    assert PATIENCE_S <= lane.now_s - 0.01 < PATIENCE_S + 0.02


def test_the_lane_is_told_when_to_ask_again() -> None:
    """A frame that is late may not come at all: who has text does not wait for it."""
    text = TextInSlack(WholeChunks())
    assert text.wake_s([], 1.0) == math.inf == text.wake_s([acting()], 1.0)
    assert text.wake_s([asked(begun=True)], 0.0) == AGAIN_S
    assert text.wake_s([asked(submitted_s=1.0)], 1.0 + PATIENCE_S) == pytest.approx(1.0 + PATIENCE_S)


def test_after_a_token_slower_than_a_frame_there_are_as_many_again() -> None:
    slow: list[float] = []
    lane, answer = Lane(lambda batch: slow.pop() if slow else 0.002), asked(begun=True)

    def second() -> int:
        """Tokens in thirty frames, in which there is always an open answer."""
        made = 0
        for _ in range(30):
            due_s = lane.now_s + 1 / 30
            made += lane.fill(lambda: [answer], due_s)
            lane.now_s = max(lane.now_s, due_s)
        return made

    second()
    usual = second()
    slow.append(0.04)
    assert second() < usual
    second()
    assert second() == pytest.approx(usual, rel=0.5) and usual > 30
