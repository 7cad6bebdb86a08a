"""A person marks episodes: what fits now, and what becomes of them."""

from __future__ import annotations

import pytest

from vla_accel_ros.recording.marks import OPEN_NS, MarkedEpisode, Marks, text_of

S = 1_000_000_000


def test_marks_begin_end_and_judge_episodes():
    marks = Marks()
    marks.mark("start", 1 * S, "fold")
    assert "success" in marks.mark("success", 3 * S) and not marks.open
    marks.mark("start", 4 * S)
    marks.mark("stop", 6 * S)
    marks.mark("failure", 9 * S)  # judged after it was stopped: it ends where it was
    marks.mark("start", 10 * S)
    assert marks.episodes == [
        MarkedEpisode(1 * S, 3 * S, "success", "fold"),
        MarkedEpisode(4 * S, 6 * S, "failure"),
        MarkedEpisode(10 * S, OPEN_NS, "unlabeled"),
    ]
    assert marks.open


@pytest.mark.parametrize(
    "events, refused",
    [
        ((), "success"),
        ((), "stop"),
        (("start",), "start"),
        (("start", "stop"), "stop"),
        (("start", "success", "start", "discard"), "failure"),  # it would judge the one before
        (("start",), "begin"),
    ],
)
def test_marks_that_do_not_fit_are_refused_by_name_and_change_nothing(events, refused):
    marks = Marks()
    for time_s, event in enumerate(events):
        marks.mark(event, time_s * S)
    before = list(marks.episodes)
    with pytest.raises(ValueError, match="start"):
        marks.mark(refused, 9 * S)
    assert marks.episodes == before


def test_marks_of_a_bag_are_read_as_they_were_made_and_what_is_none_is_ignored():
    made, read = Marks(), Marks()
    lines = [("start", "fold"), ("stop", ""), ("success", ""), ("start", ""), ("discard", "")]
    for time_s, (event, task) in enumerate(lines):
        made.mark(event, time_s * S, task)
        read.read(text_of(event, task), time_s * S)
        for nonsense in ("", "{", "[]", '{"event": 3}', '{"event": "stop"}' if not made.open else "null"):
            read.read(nonsense, time_s * S)
    assert read.episodes == made.episodes == [MarkedEpisode(0, 1 * S, "success", "fold")]
