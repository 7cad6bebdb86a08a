"""Text gets the time that actions leave over, and never more."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_accel_ros.engine.slack import Slack, fill


class Clock:
    """Time that passes only while a token is made."""

    def __init__(self, takes: list[float]) -> None:
        self.now_s, self.made = 0.0, 0
        self._takes = itertools.chain(takes, itertools.repeat(takes[-1]))

    def __call__(self) -> float:
        return self.now_s

    def advance(self) -> None:
        self.now_s += next(self._takes)
        self.made += 1


def test_as_many_as_fit_before_the_margin() -> None:
    slack = Slack(token_s=2.0, margin_s=1.0, most=5)
    assert [slack.tokens(left) for left in (-1.0, 0.0, 2.9, 3.0, 5.0, 9.5, 100.0)] == [0, 0, 0, 1, 2, 4, 5]


def test_longer_tokens_count_at_once_and_shorter_ones_slowly() -> None:
    slack = Slack(token_s=1.0)
    slack.note(3.0)
    assert slack.token_s == 3.0
    slack.note(1.0)
    assert slack.token_s == pytest.approx(2.9)


def test_a_frame_is_filled_until_the_next_is_near() -> None:
    clock, slack = Clock([2.0]), Slack(token_s=2.0, margin_s=1.0)
    assert fill(slack, clock.advance, lambda: True, due_s=10.0, clock=clock) == 4
    assert clock.now_s == 8.0


def test_no_text_no_token() -> None:
    clock = Clock([1.0])
    assert fill(Slack(1.0), clock.advance, lambda: False, due_s=9.0, clock=clock) == 0
    assert clock.made == 0


def test_texts_that_end_leave_the_rest_free() -> None:
    clock = Clock([1.0])
    assert fill(Slack(1.0), clock.advance, lambda: clock.made < 3, due_s=9.0, clock=clock) == 3


@given(
    takes=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=30),
    guess=st.floats(0.1, 5.0),
    margin=st.floats(0.0, 2.0),
    due=st.floats(0.0, 40.0),
)
def test_a_frame_waits_for_no_more_than_one_token_that_was_misjudged(
    takes: list[float], guess: float, margin: float, due: float
) -> None:
    clock, slack = Clock(takes), Slack(guess, margin)
    before = slack.token_s
    fill(slack, clock.advance, lambda: True, due, clock)
    if clock.made:
        excess = max(0.0, max(takes) - min(before, min(takes)))
        assert clock.now_s <= due - margin + excess + 1e-9
    if all(take <= before for take in takes):
        assert clock.now_s <= max(0.0, due - margin) + 1e-9


def test_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"token_s is 0\.0"):
        Slack(0.0)
    with pytest.raises(ValueError, match="margin_s -1"):
        Slack(1.0, margin_s=-1)
