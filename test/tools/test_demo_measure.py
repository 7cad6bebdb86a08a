"""What the demos' figures mean: commanded motion, jerk, ages, answers, which episodes are played, what a demo
of hours keeps in memory, and how fast simulated time goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo import measure
from vla_accel_ros.tools.demo.plan import CHANGE_EVERY, Plan, episodes
from vla_accel_ros.tools.demo.play import Board, Played
from vla_accel_ros.tools.fleet_demo.pace import AGE_S, LEAST, MOST, changed, first

MS = 1_000_000


def ramp(
    joints: tuple[str, ...], begin_ms: int, start: float, speed: float, length_ms: int = 2000
) -> Trajectory:
    """Every joint from `start` at a constant speed [rad/s]."""
    times = np.array([begin_ms, begin_ms + length_ms]) * MS
    path = np.array([start, start + speed * length_ms * 1e-3])
    return Trajectory(joints, times, np.tile(path[:, None], (1, len(joints))), None)


def test_each_trajectory_is_in_force_until_the_next_begins():
    group = [ramp(("a",), 0, 0.0, 1.0), ramp(("a",), 500, 5.0, 0.0)]
    times = np.array([0, 499, 500, 900]) * MS
    np.testing.assert_allclose(measure.in_force(group, times)[:, 0], [0.0, 0.499, 5.0, 5.0])


def test_traces_join_the_controllers_and_begin_where_all_are_known():
    sent = [ramp(("a", "b"), 0, 0.0, 1.0), ramp(("g",), 100, 2.0, 0.0), ramp(("a", "b"), 600, 0.6, 1.0)]
    measured = ramp(("g", "a", "b"), -50, 0.0, 1.0)
    traces = measure.traces(sent, measured, ("a", "g", "b"), 1000 * MS)
    assert traces is not None
    assert traces.times_ns[0] == 100 * MS
    assert traces.times_ns[-1] < 1000 * MS
    np.testing.assert_allclose(traces.commanded[0], [0.1, 2.0, 0.1])
    np.testing.assert_allclose(traces.measured[0], [0.15, 0.15, 0.15])
    assert traces.handovers_ns.tolist() == [0, 600 * MS]


def test_no_traces_without_a_command_for_every_joint():
    assert measure.traces([ramp(("a",), 0, 0.0, 1.0)], ramp(("a", "g"), 0, 0.0, 1.0), ("a", "g"), MS) is None
    assert measure.traces([], ramp(("a",), 0, 0.0, 1.0), ("a",), MS) is None


def test_jerk_is_the_third_difference_at_30_hz():
    times = np.arange(0, 3_000_000_000, round(1e9 / measure.TRACE_HZ), dtype=np.int64)
    t = np.arange(len(times)) / measure.TRACE_HZ
    positions = np.stack([2.0 * t**3, t**2], axis=1)  # jerk 12 and 0 rad/s^3 everywhere
    traces = measure.Traces(("a", "b"), times, positions, 0.5 * positions, times[:1])
    np.testing.assert_allclose(traces.jerk("commanded", ("a",)), 12.0, rtol=1e-6)
    np.testing.assert_allclose(traces.jerk("measured", ("b", "a")), [[0.0, 6.0]] * 88, atol=1e-6)
    jerk = measure.Squares.of(traces.jerk("commanded", ("a", "b")))
    assert measure.rms([jerk, jerk]) == pytest.approx(12.0 / np.sqrt(2))


def test_a_short_motion_has_no_jerk_and_nothing_has_no_rms():
    short = measure.Traces(("a",), np.arange(8), np.zeros((8, 1)), np.zeros((8, 1)), np.arange(1))
    assert short.jerk("commanded", ("a",)).size == 0
    assert measure.rms([measure.Squares.of(short.jerk("commanded", ("a",)))]) is None
    assert measure.rms([]) is None


def test_a_trajectory_has_the_age_of_the_newest_chunk_before_it():
    chunks = [(100, 20), (200, 120), (210, 130), (300, 220)]
    sent = [(105, 104), (212, 211), (260, 259), (305, 304)]
    scaled = [[(a * MS, b * MS) for a, b in stream] for stream in (chunks, sent)]
    # The third is a stop: no chunk came since the second.
    assert measure.ages_ms(*scaled) == pytest.approx([84.0, 81.0, 84.0])


def test_growth_is_per_hour_and_of_the_second_half():
    first = [{"at_s": 60.0 * k, "demo": 100.0 + 50.0 * k} for k in range(10)]
    second = [{"at_s": 60.0 * k, "demo": 600.0 + 0.25 * (k - 10)} for k in range(10, 20)]
    assert measure.growth_per_hour([*first, *second]) == {"demo": 15.0}
    assert measure.growth_per_hour(first[:9]) is None


def test_percentiles_of_nothing_are_none():
    assert measure.percentiles([]) == {"p50": None, "p99": None, "n": 0}
    assert measure.percentiles([1.0, 2.0, 3.0])["p50"] == 2.0


def test_an_answer_is_right_if_true_just_before_or_after_its_image():
    truths = [
        (0, "reach", "moving"),
        (100, "reach", "moving"),
        (200, "reach", "done"),
        (300, "put", "moving"),
    ]
    answers = [
        (50, "reach", "moving"),
        (150, "reach", " done "),
        (150, "reach", "moving"),
        (120, "reach", "holding"),
        (250, "reach", "done"),  # the instruction is being replaced
        (350, "put", "moving"),  # nothing is known yet of what is true
        (90, "put", "moving"),  # answers another instruction
    ]
    judged = measure.judge(answers, truths)
    assert [(answer.text, answer.right) for answer in judged] == [
        ("moving", True),
        ("done", True),
        ("moving", True),
        ("holding", False),
    ]


def test_the_families_take_turns_and_a_change_names_another_block_first():
    plans = list(islice(episodes(FAMILIES, seed=3), 12))
    assert [plan.task.family for plan in plans[:6]] == [*FAMILIES, *FAMILIES]
    assert [plan.seed for plan in plans] == list(range(3, 15))
    changed = [plan for plan in plans if plan.first is not None]
    assert [plan.index for plan in changed] == [1, 1 + CHANGE_EVERY, 1 + 2 * CHANGE_EVERY]
    for plan in changed:
        assert plan.first.family == plan.task.family
        assert plan.first.block != plan.task.block
    assert plans == list(islice(episodes(FAMILIES, seed=3), 12))


def test_one_family_alone_still_asks_for_every_block():
    assert {plan.task.block for plan in islice(episodes(("reach",), seed=0), 3)} == {"red", "green", "blue"}


@pytest.mark.parametrize(
    ("families", "seed", "sentence"),
    [
        (("reach", "dance"), 0, "tasks has 'dance': give some of reach, place, follow"),
        ((), 0, "tasks has '': give some of reach, place, follow"),
        (("reach",), -1, "seed is -1: give 0 or more"),
    ],
)
def test_a_wrong_plan_is_refused(families, seed, sentence):
    with pytest.raises(ValueError, match=sentence):
        episodes(families, seed)


TRACES = measure.Traces(("a",), np.arange(8), np.zeros((8, 1)), np.zeros((8, 1)), np.arange(1))


def played(index: int, success: bool, time_s: float = 3.0) -> Played:
    plan = Plan(index, index, tasks(FAMILIES[0])[0])
    return Played(plan, 0, 1, (), success, time_s, (), (), 0, [], [], None, {}, TRACES)


def test_board_keeps_the_traces_of_the_drawn_episode_only() -> None:
    board = Board()
    for episode in (played(0, False), played(1, True, 2.0), played(2, True, 5.0), played(3, False, 9.0)):
        board.end(episode)
    assert [episode.traces for episode in board.played] == [None] * 4
    assert board.drawn is not None and board.drawn.plan.index == 2 and board.drawn.traces is TRACES
    board.end(replace(played(4, True, 8.0), traces=None))
    assert board.drawn.plan.index == 2


@pytest.mark.parametrize("makes_hz", [0.0, 0.1, 3.0, 20.0, 1e4])
def test_it_begins_with_what_was_measured_and_never_beyond_real_time(makes_hz: float) -> None:
    assert LEAST <= first(makes_hz, 12.0) <= MOST
    assert first(makes_hz, 12.0) <= first(2 * makes_hz, 12.0)
    assert first(makes_hz, 12.0) <= max(LEAST, makes_hz / 12.0)


@pytest.mark.parametrize("takes_s", [0.05, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("begins", [LEAST, 0.3, MOST])
def test_it_comes_to_where_chunks_are_as_old_as_wanted(takes_s: float, begins: float) -> None:
    """A chunk takes takes_s of real time; simulated time has gone on by less when it comes."""
    factor = begins
    for _ in range(60):
        factor = changed(factor, [0.5 * takes_s * factor, takes_s * factor])
    assert factor == pytest.approx(min(MOST, AGE_S / takes_s))


def test_the_slowest_robot_counts_and_where_none_waits_nothing_changes() -> None:
    assert changed(0.5, []) == 0.5
    assert changed(0.5, [0.1, 2.0]) < 0.5 < changed(0.5, [0.1, 0.1])
    assert changed(0.5, [0.1, 1e9]) > 0.1  # not all at once
