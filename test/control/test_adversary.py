"""Whatever goes wrong, what a controller executes keeps the limits, and what is held or released stays so.

`make fuzz` plays hundreds of times as many events. A failure names its seed, which plays the same again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from adversary import Result, play, results
from adversary_faults import FAULTS, Episode
from adversary_of_bases import EpisodeOfBases
from adversary_of_extremes import EpisodeOfExtremes
from adversary_of_hands import EpisodeOfHands
from adversary_of_led_hands import EpisodeOfLedHands
from adversary_of_many import MORE, EpisodeOfMany
from adversary_of_speeds import EpisodeOfSpeeds
from adversary_orders import ORDERS
from adversary_person import PERSON
from adversary_scene import KINDS, MODES, Case
from adversary_tasks import TASKS
from adversary_ways import WAYS
from executed import (
    PERIOD_NS,
    TrajectoryController,
    judge_path,
    judge_positions,
    judge_velocities,
)
from motion import LIMITS

from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

EVENTS, FURTHER = 48_000, 8_000
"""As many as it takes until every fault has come and every kind has moved; and where that is not asked."""
S = 1_000_000_000


@pytest.fixture(scope="module")
def played() -> list[Result]:
    return list(results(EVENTS, Case(600)))


def assert_unbroken(results: Iterable[Result]) -> None:
    broken = [str(result) for result in results if result.broken]
    assert not broken, "\n".join(broken)


def test_nothing_that_happens_breaks_a_limit(played):
    assert_unbroken(played)


def test_all_kinds_and_modes_move_for_a_good_part_of_the_time_and_all_faults_come(played):
    assert sum(result.events for result in played) >= EVENTS
    for name, values in (("kind", KINDS), ("mode", MODES)):
        for value in values:
            moved = [result.moved for result in played if getattr(result, name) == value]
            assert np.mean(moved) > 0.1, value
    came = Counter(line.split(" ", 1)[1] for result in played for line in result.log)
    assert set(came) == set(FAULTS)


@pytest.mark.parametrize(
    ("events", "case", "episode_of", "moves"),
    [
        (FURTHER, Case(1, chunk_hz=480), Episode, False),
        (FURTHER, Case(0), EpisodeOfExtremes, False),
        (EVENTS // 2, Case(200), EpisodeOfHands, True),  # their joints, their speed and their box
        (2 * FURTHER, Case(50), EpisodeOfSpeeds, True),
    ],
    ids=["hundreds of chunks a second", "the ends of what is allowed", "hands", "slow and fast tasks"],
)
def test_other_robots_and_parameters_break_no_limit_either(events, case, episode_of, moves):
    """moves: whether for a good part of the time, too."""
    played = list(results(events, case, episode_of=episode_of))
    assert_unbroken(played)
    assert not moves or np.mean([result.moved for result in played]) > 0.1


LATER = {
    "ways": {*WAYS, *ORDERS, *PERSON, *TASKS},
    "orders": {*ORDERS, *PERSON, *TASKS},
    "persons": {*PERSON, *TASKS},
    "tasks": {*TASKS},
    "lies": {*WAYS, *ORDERS, *PERSON, *TASKS, "lying controllers"},
}
"""Faults that came later than some: a seed plays what it played when it broke a limit without them."""


@pytest.mark.parametrize(
    ("seed", "before", "episode_of", "kind"),
    [
        (20021, "ways", Episode, "joint_trajectory"),  # released while a join that was held up goes on
        (20113, "ways", Episode, "joint_trajectory"),  # another join while one that was held up goes on
        (20235, "ways", Episode, "servo_twist"),  # the clock is set while a message is held up
        (50536, "ways", Episode, None),  # the same, and the message is sent all the same
        (50800, "ways", Episode, None),
        (713339, "ways", Episode, None),  # the clock is set while a path turns
        (21271, "ways", Episode, "joint_trajectory"),  # a controller that was activated while commanded
        (101318, "orders", Episode, None),  # a controller that was off from the first message on
        (4000989, "orders", Episode, None),  # a stop that is held up after the clock was set
        (4002794, "orders", Episode, None),  # a long approach by another clock, near the end of a range
        (6001610, "persons", Episode, None),  # a join while the controller brakes, and rests before it comes
        (6002591, "persons", Episode, None),  # activated at nearly the time of what it was sent while off
        (52000038, "persons", EpisodeOfMany, None),  # the same
        (7001783, "persons", EpisodeOfMany, None),  # a controller that lies while the node has old joints
        (26000861, "persons", Episode, None),  # the clock is set while a stream comes to rest
        (30000396, "persons", EpisodeOfExtremes, None),  # slow joints that a dead process still moves
        (81000622, "tasks", Episode, None),  # a controller in doubt is sent a motion that ends soon
        (93000563, "tasks", EpisodeOfExtremes, None),  # a message written twice makes a report doubtful
        (1128, "lies", EpisodeOfMany, None),  # a way back that began before its message may have come
        (1049, "lies", EpisodeOfMany, None),  # a chunk of one dimension, of a robot moved by its hand
        (8000007, "ways", EpisodeOfMany, "joint_trajectory"),  # it lies about where it holds, and who
        (9000073, "ways", EpisodeOfMany, None),  # believes it leads the joints from there, 300 times as fast
    ],
)
def test_what_broke_a_limit_once_does_so_no_more(seed, before, episode_of, kind):
    faults = FAULTS | (MORE if episode_of is EpisodeOfMany else {})
    names = tuple(name for name in faults if name not in LATER[before])
    assert play(Case(seed, names, kind), episode_of).broken == ()


def test_contacts_and_several_controllers_and_what_names_no_joint_or_step_break_no_limit_either():
    played = list(results(2 * EVENTS // 3, Case(5065), episode_of=EpisodeOfMany))
    assert_unbroken(played)
    came = {line.split(" ", 1)[1] for result in played for line in result.log}
    assert came >= set(MORE)


def test_bases_keep_their_limits_and_roll_no_longer_than_chunks_allow():
    played = [EpisodeOfBases(Case(seed)) for seed in range(40)]
    for episode in played:
        episode.run()
    broken = [f"{seed}: {b}" for seed, episode in enumerate(played) for b in episode.broken]
    assert not broken, "\n".join(broken)
    assert np.mean([episode.rolling for episode in played]) > 0.1


def test_hands_that_servo_leads_keep_their_speeds_and_their_box():
    played = [EpisodeOfLedHands(Case(seed)).run() for seed in range(25)]
    broken = [f"{seed}: {b}" for seed, episode in enumerate(played) for b in episode.broken]
    assert not broken, "\n".join(broken)
    assert np.mean([episode.moved for episode in played]) > 0.1


def test_a_seed_plays_the_same_again():
    assert play(Case(7)) == play(Case(7))


def controller(from_desired: bool = True) -> TrajectoryController:
    return TrajectoryController(("a", "b", "c"), np.zeros(3), from_desired)


def goes(to: float, start_ns: int, end_ns: int) -> Trajectory:
    positions = np.array([[0.0, 0.0, 0.0], [to, 0.0, 0.0]])
    return Trajectory(("a", "b", "c"), np.array([start_ns, end_ns]), positions, np.zeros((2, 3)))


def judged(controller: TrajectoryController) -> dict[str, float]:
    times, positions = controller.path(3 * S)
    return {b.what: b.by for b in judge_path(times, positions, LIMITS, *controller.exceptions)}


HERE = TrajectoryPoint(0, np.zeros(3))


def test_a_motion_within_limits_is_judged_so_and_a_faster_one_by_how_much():
    slow, fast = controller(), controller()
    slow.accept(goes(0.3, S, 2 * S), S, HERE)
    fast.accept(goes(0.9, S, S + 100_000_000), S, HERE)
    assert not judged(slow)
    # A cubic from rest to rest has 6 d / t^2 and 1.5 d / t at most.
    assert judged(fast) == pytest.approx({"acceleration": 540 / 20, "velocity": 13.5 / 3}, rel=0.05)


def test_a_step_at_a_hand_over_counts_as_acceleration_over_one_period():
    stepped = controller()
    stepped.accept(Trajectory(("a", "b", "c"), np.array([S]), np.array([[1e-3, 0, 0]])), S, HERE)
    assert judged(stepped) == pytest.approx({"acceleration": 1e-3 / (PERIOD_NS * 1e-9) ** 2 / 20}, rel=1e-6)


def test_a_position_outside_and_an_end_in_motion_are_found():
    outside = controller()
    outside.accept(goes(1.2, S, 3 * S), S, HERE)
    assert set(judged(outside)) == {"position"}
    moving = Trajectory(("a", "b", "c"), np.array([S, 2 * S]), np.zeros((2, 3)), np.ones((2, 3)))
    assert not outside.accept(moving, S, HERE) and outside.rejected


def test_what_is_approached_later_begins_from_the_command_or_from_the_measured_joints():
    for from_desired, begins in ((True, 0.0), (False, 0.1)):
        arm = controller(from_desired)
        arm.accept(goes(0.0, 2 * S, 3 * S), S, TrajectoryPoint(S, np.full(3, 0.1)))
        assert arm.state(S).position[0] == begins


def test_streamed_leaps_are_found():
    ticks = [(k * 10_000_000, np.zeros(3)) for k in range(9)]
    assert not judge_positions(ticks, LIMITS, 0.02)
    assert not judge_velocities(ticks, LIMITS.velocity, LIMITS.acceleration, 0.02)
    leap = [*ticks, (9 * 10_000_000, np.array([0.1, 0.0, 0.0]))]
    assert {b.what for b in judge_positions(leap, LIMITS, 0.02)} == {"velocity", "acceleration"}
    stop = [(0, np.full(3, 1.0)), (10_000_000, np.zeros(3))]
    assert {b.what for b in judge_velocities(stop, LIMITS.velocity, LIMITS.acceleration, 0.02)} == {
        "acceleration"
    }
