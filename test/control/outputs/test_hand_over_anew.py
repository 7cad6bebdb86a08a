"""Clocks that were set, controllers that were activated anew, and ways home: what is sent is joined to what
the controller executes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from executed import TrajectoryController, judge_path
from handing_over import LEAD, LEAD_S, MS, START, Arm, play
from motion import JOINTS, LIMITS, S, make_chunk, make_ramp
from world import Clock, Parameters, Process, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.parts import ChunkTiming, Stream
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import HOMING
from vla_accel_ros.control.limits.joint_limits import brake
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint


def process(
    now: list[int],
    line: TrajectoryLine,
    home: np.ndarray = START,
    mode: str = "blend",
    ages_s: tuple[float, float] = (0.8, 0.3),
) -> Process:
    """A node of three joints. now: of all clocks. ages_s: limits of chunks' and joints' ages."""
    contract = make_contract(
        "joint_trajectory",
        make_joints(JOINTS, LIMITS),
        home=dict(zip(JOINTS, home.tolist())),
        chunk=ChunkTiming(1 / 30, ages_s[0]),
        joint_states=Stream("joint_states", 100.0, ages_s[1]),
    )
    return Process(contract, Parameters(Options(mode)), Clock(lambda: now[0]), lambda controller: line)


def reports(controller: TrajectoryController, now: list[int]) -> Callable[[], ReportedState]:
    """A controller that says where it is commanded to be, and nothing else."""

    def report() -> ReportedState:
        position = controller.state(now[0]).position
        return ReportedState(None, now[0], dict(zip(JOINTS, position.tolist())))

    return report


def test_after_the_clock_was_set_it_stops_on_what_it_executes_and_once():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    was_ns = arm.now + 300 * MS
    arm.buffer.update(make_ramp(-0.4, 30, stamp_ns=was_ns), was_ns)
    arm.hand_over.dropped()
    now_ns = was_ns + 100 * S
    believed = arm.buffer.stop(now_ns, was_ns + 100 * MS)
    stop = arm.hand_over.stop(believed, now_ns, was_ns + 100 * MS, now_ns, LEAD_S)
    assert stop is not None
    assert (np.abs(stop.positions - 0.4 * 0.4) < 0.05).all()
    assert (np.abs(stop.positions - believed.positions) > 0.02).any()
    assert arm.hand_over.stop(believed, now_ns, was_ns, now_ns, LEAD_S) is None


def test_when_a_stop_after_the_clock_was_set_ends_is_known_also_where_it_is_not_the_one_that_was_given():
    """One that stays somewhere takes as long as it would, should what was said not be true."""
    arm = Arm()
    assert arm.hand_over.stopping is None
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    goal = np.array([-0.9, -1.5, -0.45])
    arm.hand_over.told(goal, arm.now)
    given = arm.buffer.stop(arm.now, arm.now)
    arm.accept(arm.stop(given))
    stopping = arm.hand_over.stopping
    assert stopping is not None and stopping.end_ns > given.end_ns + 500 * MS
    arm.now = given.end_ns
    assert (np.abs(arm.position - goal) > 0.05).any()
    arm.now = stopping.end_ns
    np.testing.assert_array_equal(arm.position, stopping.positions[-1])
    assert arm.stop(None) is None  # it was told, and rests there
    arm.send(arm.buffer.go_to(START, np.abs(goal), arm.now), 0, 0)
    assert arm.hand_over.stopping is None


@pytest.mark.parametrize("said", ["where it is", "too late", "10^9 rad", "nothing"])
def test_after_the_clock_was_set_a_controller_that_was_activated_anew_stays_where_it_is(said):
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.9, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 50 * MS
    arm.activate(START)  # it holds, and has lost what it was sent
    arm.now += 450 * MS
    report = {"10^9 rad": np.full(3, 1e9), "nothing": np.full(3, np.nan)}.get(said, START)
    arm.hand_over.told(report, arm.now - (490 if said == "too late" else 20) * MS)
    stop = arm.stop(arm.buffer.stop(arm.now, arm.now))
    arm.accept(stop)
    arm.now += S
    if said == "where it is":
        np.testing.assert_array_equal(arm.position, START)
        assert arm.broken() == []
    else:
        assert (np.abs(arm.position) > 0.3).any()
        assert {broken.what for broken in arm.broken()} >= {"velocity"}


def test_what_a_controller_says_of_itself_is_reached_within_limits_where_it_is_not_true():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    arm.hand_over.told(np.array([-0.9, -1.5, -0.45]), arm.now)
    arm.accept(arm.stop(arm.buffer.stop(arm.now, arm.now)))
    arm.now += 3 * S
    assert arm.broken() == []


def test_of_a_controller_that_others_drove_nothing_is_believed():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, stamp_ns=arm.now), arm.now), 0, 0)
    arm.hand_over.forget()
    stop = arm.buffer.stop(arm.now + S)
    assert arm.hand_over.next(stop, arm.now + S, arm.now + 2 * S, LEAD_S)[0] is stop


def test_a_controller_that_was_activated_anew_and_says_so_goes_on_from_there():
    """It has dropped what it was sent. A step is what remains where it has said nothing yet."""
    for reported, steps in (True, False), (False, True):
        arm = Arm()
        chunk = make_ramp(0.4, 30, stamp_ns=arm.now)
        arm.send(arm.buffer.update(chunk, arm.now), 0, 0)
        arm.now += 500 * MS
        arm.activate(START)
        arm.now += 20 * MS
        told_ns, arm.now = arm.now, arm.now + 5 * MS
        for number in range(1, 20):
            if reported and number == 1:
                arm.hand_over.rests(START, told_ns, LEAD_S)
            position, _ = arm.buffer.reference(arm.now)
            more = make_ramp(0.1, 20, start=position, stamp_ns=arm.now, request_id=number)
            arm.send(arm.buffer.update(more, arm.now), 0, LEAD)
            arm.now += 70 * MS
        assert bool(arm.broken()) == steps
        assert np.abs(arm.position - arm.buffer.reference(arm.now)[0]).max() < 1e-6
        assert (arm.position > 0.2).all()


def test_a_stop_leaves_a_controller_that_was_activated_anew_where_it_is():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    arm.activate(START)
    arm.now += 50 * MS
    arm.hand_over.rests(START, arm.now - 5 * MS, LEAD_S)
    arm.send(arm.buffer.stop(arm.now), 0, LEAD)
    arm.now += 2 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, START)
    np.testing.assert_array_equal(arm.hand_over.commanded(arm.now), START)


def test_while_the_last_trajectory_may_be_on_its_way_to_a_controller_that_holds_only_a_stop_is_sent():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    sent_ns = arm.now
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now, request_id=1), arm.now), 0, 0)
    for later, said_ns in (10 * MS, sent_ns + 5 * MS), (LEAD + 2 * MS, sent_ns + LEAD - MS):
        now_ns = sent_ns + later
        stop = brake(JOINTS, TrajectoryPoint(now_ns + 2 * LEAD, START, np.full(3, 0.4)), LIMITS)
        arm.hand_over.rests(START, said_ns, LEAD_S)
        further = make_ramp(0.4, 30, stamp_ns=now_ns, request_id=2)
        decided = arm.buffer.update(further, now_ns)
        assert decided is not None and arm.hand_over.next(decided, now_ns, now_ns, LEAD_S)[0] is None
        assert arm.hand_over.next(stop, now_ns, now_ns, LEAD_S)[0] is not None
    now_ns = sent_ns + 300 * MS  # it says nothing more: then it has what it was sent, or nothing moves it
    arm.hand_over.rests(START, sent_ns + LEAD - MS, LEAD_S)
    decided = arm.buffer.update(make_ramp(0.4, 30, stamp_ns=now_ns, request_id=3), now_ns)
    assert decided is not None
    assert arm.hand_over.next(decided, now_ns, now_ns, LEAD_S)[0] is not None


@pytest.mark.parametrize("age", [20 * MS, 500 * MS])
def test_where_a_controller_says_that_it_holds_is_not_believed_by_old_joints_which_could_be_anywhere(age):
    """Until they are new only a stop is sent."""
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    decided, stop = (
        arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now, request_id=1), arm.now),
        arm.buffer.stop(arm.now),
    )
    assert decided is not None
    arm.hand_over.rests(-0.4 * LIMITS.upper, arm.now, LEAD_S, (np.full(3, 0.2), arm.now - age))
    paths = [arm.hand_over.next(path, arm.now, arm.now, LEAD_S)[0] for path in (decided, stop)]
    assert paths == ([None, stop] if age > 100 * MS else [decided, stop])


@pytest.mark.parametrize("said", ["as it was sent", "nan", "nothing"])
def test_what_a_controller_says_that_tells_nothing_new_changes_nothing(said):
    arm = Arm()
    arm.send(arm.buffer.go_to(np.full(3, 0.2), np.full(3, 0.2), arm.now), 0, 0)
    arm.now += 2 * S
    report = {"as it was sent": arm.position, "nan": np.full(3, np.nan)}.get(said)
    arm.hand_over.rests(report, arm.now, LEAD_S)
    decided = arm.buffer.update(make_ramp(0.2, 30, start=arm.position, stamp_ns=arm.now), arm.now)
    assert decided is not None
    assert arm.hand_over.next(decided, arm.now, arm.now, LEAD_S)[0] is decided


@pytest.mark.parametrize("held_up", [0.0, 0.7])
def test_where_the_controller_is_commanded_to_be_is_known_however_late_that_was_sent(held_up):
    arm, errors = Arm(), []

    def compare(*_: object) -> None:
        times = range(arm.now - 500 * MS, arm.now + 1, 10 * MS)
        known = np.array([arm.hand_over.commanded(t_ns) for t_ns in times])
        decided = np.array([arm.buffer.reference(t_ns)[0] for t_ns in times])
        errors.append([np.abs(arm.state(t_ns).position - k).max() for t_ns, k in zip(times, known)])
        distances.append(np.abs(known[-1] - decided[-1]).max())

    distances: list[float] = []
    play(arm, 0, held_up, travels=1, then=compare)
    assert np.max(errors) < 1e-9
    assert (np.max(distances) > 0.05) == bool(held_up)


@pytest.mark.parametrize("off_s", [None, 3.0])
@pytest.mark.parametrize("held_up_s", [0.0, 0.35])
def test_joints_are_compared_with_what_is_executed_and_not_with_what_was_decided(held_up_s, off_s):
    """Every message is held up, and then written anew; a drive that goes off is found all the same."""
    now, where, number, fault = [S], START, 0, None
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]
    turns = itertools.cycle((1, 0))

    def held_up() -> None:
        now[0] += round(held_up_s * S) * next(turns)

    def send(path: Trajectory, start_ns: int, stamped: bool) -> None:
        assert controller.accept(path, now[0], controller.state(now[0]))

    node = process(now, TrajectoryLine(send, held_up, heard=False), mode="block", ages_s=(1.2, 0.6))
    while now[0] < 12 * S and fault is None:
        now[0] += 10 * MS
        if off_s is None or now[0] < off_s * S:
            where = controller.state(now[0]).position
        node.joints(JOINTS, where, now[0])
        node.watch()
        number += 1
        if number % 30 == 0:
            t = now[0] / S + np.arange(1, 31)[:, None] * 0.05
            node.chunk(make_chunk(np.tile(0.4 * np.sin(2.5 * t), 3), now[0], 0.05, request_id=number))
        fault = next((reason for reason in node.holds if "does not follow" in reason), None)
    assert np.ptp(controller.path(now[0])[1], axis=0).min() > 0.5
    assert (fault is None) == (off_s is None)


def test_a_way_home_of_a_controller_that_others_activated_elsewhere_gets_there():
    """What it was sent before is not where it is, until the way begins."""
    home, now = np.array([0.8, -0.5, 0.0]), [S]
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]

    def send(path: Trajectory, start_ns: int, stamped: bool) -> None:
        assert controller.accept(path, now[0], controller.state(now[0]))

    node = process(now, TrajectoryLine(send, state=reports(controller, now)), home)
    for tick in range(1200):
        now[0] += 10 * MS
        if 300 < tick <= 400:
            controller.hold(np.array([-0.005, -0.01, 0.0]) * (tick - 300), now[0])
        node.joints(JOINTS, controller.state(now[0]).position, now[0])
        node.watch()
        if tick == 100:
            t = np.arange(1, 31)[:, None] * 0.05
            node.chunk(make_chunk(np.tile(0.1 * t, 3), now[0], 0.05))
        elif tick == 300:
            node.order("hold")
        elif tick == 500:
            node.order("resume")
            node.order("home")
    assert HOMING not in node.holds
    assert controller.state(now[0]).position == pytest.approx(home)


def test_of_a_way_home_that_begins_later_than_it_was_decided_a_controller_has_no_more_than_the_age_either():
    """Home already, others activated it far from there: the hand-over has it approached for longer."""
    home, now, beyond, starts_s = np.array([0.8, -0.5, 0.0]), [S], list[int](), list[float]()
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]
    longest_ns = round((LIMITS.velocity / LIMITS.acceleration).max() * S)

    def send(path: Trajectory, start_ns: int, stamped: bool) -> None:
        if HOMING in node.holds:
            longest_move_ns = node.motion.homing.most_ns
            most_ns = max(now[0] + longest_move_ns, path.start_ns + longest_move_ns // 2)
            moves_ns = path.times_ns[np.flatnonzero(path.speeds.any(axis=1))].max(initial=0)
            beyond.append(moves_ns - most_ns - longest_ns)
            starts_s.append((path.start_ns - now[0]) / S)
        assert controller.accept(path, now[0], controller.state(now[0]))

    node = process(now, TrajectoryLine(send, state=reports(controller, now)), home, ages_s=(2.0, 0.3))
    for tick in range(1400):
        now[0] += 10 * MS
        if 700 < tick <= 800:
            controller.hold(home + np.array([-0.01, 0.01, 0.0]) * (tick - 700), now[0])
        node.joints(JOINTS, controller.state(now[0]).position, now[0])
        node.watch()
        if tick in (250, 850):
            node.order("home")
        if tick == 700:
            assert controller.state(now[0]).position == pytest.approx(home)
    assert max(starts_s) > 1.0  # as it was decided, half of that
    assert max(beyond) <= 0
    assert controller.state(now[0]).position == pytest.approx(home)


@pytest.mark.parametrize("held_up_s", [0.0, 0.35, 0.8])
def test_a_way_home_of_which_the_first_part_is_held_up_gets_there(held_up_s):
    """It is renewed by when it is executed, not by when it was to be."""
    home, now, pending = np.array([0.8, -0.5, 0.0]), [S], [held_up_s]
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]

    def held_up() -> None:
        if HOMING in node.holds and pending:
            now[0] += round(pending.pop() * S)

    def send(path: Trajectory, start_ns: int, stamped: bool) -> None:
        assert controller.accept(path, now[0], controller.state(now[0]))

    node = process(now, TrajectoryLine(send, held_up), home)
    is_going = False
    for _ in range(1000):
        now[0] += 10 * MS
        node.joints(JOINTS, controller.state(now[0]).position, now[0])
        node.watch()
        if not is_going and now[0] > 4 * S:
            is_going = True
            node.order("home")
    assert not pending and HOMING not in node.holds
    assert controller.state(now[0]).position == pytest.approx(home)
    assert not judge_path(*controller.path(now[0]), LIMITS, [], [])


def test_a_controller_that_says_that_it_rests_where_no_joint_can_be_is_not_led_from_there():
    arm = Arm()
    play(arm, 1, 0.0)
    position = arm.hand_over.commanded(arm.now)
    arm.hand_over.rests(np.array([1e9, 0.0, 0.0]), arm.now, LEAD_S)
    np.testing.assert_array_equal(arm.hand_over.commanded(arm.now), position)
