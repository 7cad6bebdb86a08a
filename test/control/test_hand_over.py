"""What a joint_trajectory_controller executes of trajectories that are sent later than they were decided.

A process that is held up between a decision and its message: time is given, and as much of it passes there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from motion import JOINTS, LIMITS, S, make_chunk, make_ramp
from rosless import HOMING, Parameters, Robot, TrajectoryLogic

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.hand_over import HandOver
from vla_accel_ros.control.limits.joint_limits import brake, cut
from vla_accel_ros.control.moves import move
from vla_accel_ros.control.trajectory import MotionState, Trajectory
from vla_accel_ros.sim.executed import Broken, TrajectoryController, judge_path

MS = 1_000_000
LEAD_S = 0.03
LEAD = round(LEAD_S * S)
START = np.zeros(3)


class Arm:
    """One controller, and what it is sent. Attribute `now`."""

    def __init__(self, handed_over: bool = True) -> None:
        self.now, self.hand_over, self._handed_over = S, HandOver(LIMITS), handed_over
        self.buffer = TrajectoryBuffer(JOINTS, LIMITS, lead_s=LEAD_S, max_age_s=1.0)
        self.buffer.reset(START)
        self._controller = TrajectoryController(JOINTS, START, True)
        self._controller.starts[0] = self.now
        self.send(self.buffer.go_to(START, np.full(3, 0.1), self.now), 0, 0)
        self.now += S

    def send(self, decided: Trajectory | None, held_up: int, travels: int, waits: int = 0) -> None:
        """Held up before it is asked what to send, and, where that is allowed, waits after it."""
        if decided is None:
            return
        decided_ns, self.now = self.now, self.now + held_up
        path: Trajectory | None = decided
        if self._handed_over:
            path, by_ns = self.hand_over.next(decided, decided_ns, self.now, LEAD_S)
            if path is None:
                return
            assert by_ns >= self.now
            self.now = min(self.now + waits, by_ns)
            self.hand_over.sent(path, decided, self.now)
        at_ns = self.now + travels
        here = self._controller.state(at_ns)
        assert path is not None
        assert self._controller.accept(with_hold(path), at_ns, MotionState(at_ns, here.position))
        self.now = at_ns

    def activate(self, position: np.ndarray) -> None:
        """It was off, and holds here from now on."""
        self._controller.hold(position, self.now)

    def accept(self, path: Trajectory | None) -> None:
        """Without asking: a stop after the clock was set."""
        assert path is not None
        assert self._controller.accept(with_hold(path), self.now, MotionState(self.now, self.position))

    def broken(self) -> list[Broken]:
        times, positions = self._controller.path(self.now)
        return judge_path(times, positions, LIMITS, *self._controller.exceptions)

    def state(self, t_ns: int) -> MotionState:
        return self._controller.state(t_ns)

    @property
    def position(self) -> np.ndarray:
        return self._controller.state(self.now).position


def with_hold(path: Trajectory) -> Trajectory:
    """As messages are, so that they have not ended when they come."""
    end = Trajectory(path.joints, np.array([path.end_ns + S]), path.positions[-1:], np.zeros((1, 3)))
    return path.then(end)


def play(
    arm: Arm, seed: int, held_up: float, travels: int = LEAD, then: Callable[[], None] = lambda: None
) -> None:
    """Chunks every 100 ms or later, some stops, and joins after them; a third is held up for so long [s] at
    most, and then travels for less than so many ns. then: called after each."""
    rng = np.random.default_rng(seed)

    def send(decided: Trajectory | None) -> None:
        late = rng.uniform(0.0, held_up) * (rng.random() < 1 / 3)
        travelled, waits = rng.integers((travels, LEAD)).tolist()
        arm.send(decided, round(late * S), travelled, waits)

    for k in range(60):
        speed, here = rng.uniform(-0.5, 0.5, 3), arm.buffer.reference(arm.now - 80 * MS)[0]
        chunk = make_ramp(speed, 12, 0.05, start=here, stamp_ns=arm.now - 80 * MS, request_id=k)
        send(arm.buffer.update(chunk, arm.now))
        if rng.random() < 0.15:
            send(arm.buffer.stop(arm.now))
            arm.now += S
            send(arm.buffer.go_to(arm.position, np.full(3, 0.1), arm.now))
            arm.now += S
        then()
        arm.now += 100 * MS


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held_up", [0.02, 0.1, 0.7])
def test_however_late_a_trajectory_is_sent_the_controller_keeps_the_limits(held_up, seed):
    arm = Arm()
    play(arm, seed, held_up)
    assert arm.broken() == []
    assert bool(arm.hand_over.late) == (held_up > LEAD_S)


def test_as_it_was_decided_it_would_be_joined_with_a_step():
    arm = Arm(handed_over=False)
    play(arm, 0, 0.7)
    assert {broken.what for broken in arm.broken()} >= {"acceleration", "velocity"}


def test_in_time_it_is_sent_as_it_was_decided_until_so_long_before_it_differs():
    arm = Arm()
    first, decided_ns = arm.buffer.update(make_ramp(0.2, stamp_ns=arm.now), arm.now), arm.now
    assert first is not None
    for held_up in (0, LEAD - 3 * MS):
        path, by_ns = arm.hand_over.next(first, decided_ns, decided_ns + held_up, LEAD_S)
        assert path is first
        assert by_ns + LEAD == pytest.approx(decided_ns + 2 * LEAD, abs=2 * MS)
    path, by_ns = arm.hand_over.next(first, decided_ns, decided_ns + LEAD + 5 * MS, LEAD_S)
    assert path is not first and by_ns == decided_ns + 2 * LEAD + 5 * MS


def test_a_late_stop_brakes_from_where_the_controller_is():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 200 * MS
    stop = arm.buffer.stop(arm.now)
    arm.send(stop, 300 * MS, LEAD // 2)
    arm.now += 200 * MS
    rests = arm.position
    arm.now += 2 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, rests)
    passed = (300 * MS + 3 * LEAD) * 1e-9 * 0.4
    assert (np.abs(rests - stop.positions[-1]) <= passed).all()


@pytest.mark.parametrize("held_up", [500 * MS, 5 * S])
def test_what_is_approached_is_moved_by_as_much_as_it_is_late(held_up):
    arm, there = Arm(), np.array([0.5, -0.5, 0.2])
    decided = arm.buffer.go_to(there, np.abs(there), arm.now)
    path, _ = arm.hand_over.next(decided, arm.now, arm.now + held_up, LEAD_S)
    assert path is not None
    assert path.end_ns == decided.end_ns + held_up
    arm.send(decided, held_up, LEAD)
    arm.now += 3 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, there)


@pytest.mark.parametrize("held_up", [0, 500 * MS])
def test_a_contact_on_the_way_does_not_wait_unless_that_was_moved(held_up):
    arm, there = Arm(), np.array([0.5, -0.5, 0.2])
    arm.send(arm.buffer.go_to(there, np.abs(there), arm.now), held_up, 0)
    arm.now += 100 * MS
    retreat = Trajectory(JOINTS, arm.now + np.array([0, S]), np.array([there, there / 2]))
    path, by_ns = arm.hand_over.next(retreat, arm.now, arm.now, LEAD_S)
    assert path is (None if held_up else retreat) and (held_up or by_ns == arm.now + LEAD)
    assert arm.hand_over.late == (2 if held_up else 0)


def test_a_way_home_that_was_moved_is_broken_off_while_its_begin_is_approached():
    arm, begin = Arm(), np.array([0.1, 0.0, 0.0])
    approached_ns = 500 * MS
    home = move(JOINTS, begin, np.array([0.9, 0.0, 0.0]), LIMITS, 0.5, arm.now + approached_ns)
    arm.send(home, 400 * MS, 0)
    arm.now += 300 * MS  # to whoever decided, it is on its way; the controller approaches its begin
    assert home.start_ns < arm.now < arm.hand_over.rests_ns - home.end_ns + home.start_ns
    was_to_rest_ns = arm.hand_over.rests_ns
    kept_ns = arm.now + 2 * LEAD
    arm.send(
        home.since(arm.now).then(brake(JOINTS, MotionState(kept_ns, *home.sample(kept_ns)), LIMITS)), 0, 0
    )
    assert arm.hand_over.rests_ns < was_to_rest_ns
    arm.now += 5 * S
    assert arm.broken() == []
    np.testing.assert_array_equal(arm.position, begin)


def test_more_of_a_way_home_that_was_moved_does_not_end_it():
    arm, begin = Arm(), np.array([0.1, 0.0, 0.0])
    home = move(JOINTS, begin, np.array([0.9, 0.0, 0.0]), LIMITS, 0.5, arm.now + 500 * MS)
    until_ns = home.end_ns - 100 * MS
    arm.send(cut(home, until_ns, LIMITS), 400 * MS, 0)
    arm.now += 300 * MS
    rests_ns = arm.hand_over.rests_ns
    assert home.end_ns < rests_ns
    assert arm.hand_over.next(home.since(arm.now), arm.now, arm.now, LEAD_S)[0] is None
    assert arm.hand_over.rests_ns == rests_ns


def test_what_is_approached_from_further_away_than_was_decided_takes_as_long_as_that_needs():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 200 * MS
    stop = arm.buffer.stop(arm.now)
    arm.send(stop, 600 * MS, 0)
    join = arm.buffer.go_to(stop.positions[-1], np.full(3, 1e-3), arm.now)
    assert arm.hand_over.rests_ns > arm.now  # it still brakes, and to whoever decided it has stood for long
    arm.send(join, 0, LEAD // 2)
    assert arm.hand_over.rests_ns > join.end_ns
    arm.now = arm.hand_over.rests_ns + S
    assert arm.broken() == []
    np.testing.assert_allclose(arm.position, stop.positions[-1])


def test_whoever_decides_is_told_when_the_controller_rests_if_it_is_not_as_was_decided():
    arm = Arm()
    assert arm.hand_over.rests_ns == 0
    arm.send(arm.buffer.go_to(np.full(3, 0.2), np.full(3, 0.2), arm.now), 0, 0)
    assert arm.hand_over.rests_ns == 0
    arm.now += S
    join = arm.buffer.go_to(np.full(3, 0.1), np.full(3, 0.1), arm.now)
    arm.send(join, 300 * MS, 0)
    assert arm.hand_over.rests_ns == join.end_ns + 300 * MS


def test_after_the_clock_was_set_it_stops_on_what_it_executes_and_once():
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    was_ns = arm.now + 300 * MS
    arm.buffer.update(make_ramp(-0.4, 30, stamp_ns=was_ns), was_ns)
    arm.hand_over.dropped()
    now_ns = was_ns + 100 * S
    believed = arm.buffer.stop(now_ns, was_ns + 100 * MS)
    stop = arm.hand_over.stop(believed, was_ns + 100 * MS, now_ns, LEAD_S)
    assert stop is not None
    assert (np.abs(stop.positions - 0.4 * 0.4) < 0.05).all()
    assert (np.abs(stop.positions - believed.positions) > 0.02).any()
    assert arm.hand_over.stop(believed, was_ns, now_ns, LEAD_S) is None


def test_when_a_stop_after_the_clock_was_set_ends_is_known_also_where_it_is_not_the_one_that_was_given():
    """One that stays somewhere takes as long as it would, should what was said not be true."""
    arm = Arm()
    assert arm.hand_over.stopping is None
    arm.send(arm.buffer.update(make_ramp(0.4, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 500 * MS
    there = np.array([-0.9, -1.5, -0.45])
    arm.hand_over.told(there, arm.now)
    given = arm.buffer.stop(arm.now, arm.now)
    arm.accept(arm.hand_over.stop(given, arm.now, arm.now, LEAD_S))
    stopping = arm.hand_over.stopping
    assert stopping is not None and stopping.end_ns > given.end_ns + 500 * MS
    arm.now = given.end_ns
    assert (np.abs(arm.position - there) > 0.05).any()
    arm.now = stopping.end_ns
    np.testing.assert_array_equal(arm.position, stopping.positions[-1])
    assert arm.hand_over.stop(None, arm.now, arm.now, LEAD_S) is None  # it was told, and rests there
    arm.send(arm.buffer.go_to(START, np.abs(there), arm.now), 0, 0)
    assert arm.hand_over.stopping is None


@pytest.mark.parametrize("said", ["where it is", "too late", "10^9 rad", "nothing"])
def test_after_the_clock_was_set_a_controller_that_was_activated_anew_stays_where_it_is(said):
    arm = Arm()
    arm.send(arm.buffer.update(make_ramp(0.9, 30, stamp_ns=arm.now), arm.now), 0, 0)
    arm.now += 50 * MS
    arm.activate(START)  # it holds, and has lost what it was sent
    arm.now += 450 * MS
    told = {"10^9 rad": np.full(3, 1e9), "nothing": np.full(3, np.nan)}.get(said, START)
    arm.hand_over.told(told, arm.now - (490 if said == "too late" else 20) * MS)
    stop = arm.hand_over.stop(arm.buffer.stop(arm.now, arm.now), arm.now, arm.now, LEAD_S)
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
    arm.accept(arm.hand_over.stop(arm.buffer.stop(arm.now, arm.now), arm.now, arm.now, LEAD_S))
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
    for said, steps in (True, False), (False, True):
        arm = Arm()
        chunk = make_ramp(0.4, 30, stamp_ns=arm.now)
        arm.send(arm.buffer.update(chunk, arm.now), 0, 0)
        arm.now += 500 * MS
        arm.activate(START)
        arm.now += 20 * MS
        told_ns, arm.now = arm.now, arm.now + 5 * MS
        for number in range(1, 20):
            if said and number == 1:
                arm.hand_over.rests(START, told_ns, LEAD_S)
            here, _ = arm.buffer.reference(arm.now)
            more = make_ramp(0.1, 20, start=here, stamp_ns=arm.now, request_id=number)
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
        stop = brake(JOINTS, MotionState(now_ns + 2 * LEAD, START, np.full(3, 0.4)), LIMITS)
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


@pytest.mark.parametrize("said", ["as it was sent", "nan", "nothing"])
def test_what_a_controller_says_that_tells_nothing_new_changes_nothing(said):
    arm = Arm()
    arm.send(arm.buffer.go_to(np.full(3, 0.2), np.full(3, 0.2), arm.now), 0, 0)
    arm.now += 2 * S
    told = {"as it was sent": arm.position, "nan": np.full(3, np.nan)}.get(said)
    arm.hand_over.rests(told, arm.now, LEAD_S)
    decided = arm.buffer.update(make_ramp(0.2, 30, start=arm.position, stamp_ns=arm.now), arm.now)
    assert decided is not None
    assert arm.hand_over.next(decided, arm.now, arm.now, LEAD_S)[0] is decided


@pytest.mark.parametrize("held_up", [0.0, 0.7])
def test_where_the_controller_is_commanded_to_be_is_known_however_late_that_was_sent(held_up):
    arm, found = Arm(), []

    def compare(*_: object) -> None:
        times = range(arm.now - 500 * MS, arm.now + 1, 10 * MS)
        known = np.array([arm.hand_over.commanded(t_ns) for t_ns in times])
        decided = np.array([arm.buffer.reference(t_ns)[0] for t_ns in times])
        found.append([np.abs(arm.state(t_ns).position - k).max() for t_ns, k in zip(times, known)])
        away.append(np.abs(known[-1] - decided[-1]).max())

    away: list[float] = []
    play(arm, 0, held_up, travels=1, then=compare)
    assert np.max(found) < 1e-9
    assert (np.max(away) > 0.05) == bool(held_up)


@pytest.mark.parametrize("off_s", [None, 3.0])
@pytest.mark.parametrize("held_up_s", [0.0, 0.35])
def test_joints_are_compared_with_what_is_executed_and_not_with_what_was_decided(held_up_s, off_s):
    """Every message is held up; a drive that goes off is found all the same."""
    now, where, number, held = [S], START, 0, None
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]

    def held_up() -> None:
        now[0] += round(held_up_s * S)

    def send(path: Trajectory, on_arrival: bool) -> None:
        here = controller.state(now[0])
        assert controller.accept(with_hold(path), now[0], MotionState(now[0], here.position))

    robot = Robot("joint_trajectory", JOINTS, LIMITS, START, 0.02, chunk_age_s=1.2, joints_age_s=0.6)
    given = lambda: now[0], lambda: now[0], send
    logic = TrajectoryLogic(robot, Parameters("block"), *given, held_up=held_up)
    while now[0] < 12 * S and held is None:
        now[0] += 10 * MS
        if off_s is None or now[0] < off_s * S:
            where = controller.state(now[0]).position
        logic.joints(where, now[0])
        logic.watch()
        number += 1
        if number % 30 == 0:
            t = now[0] / S + np.arange(1, 31)[:, None] * 0.05
            logic.chunk(make_chunk(np.tile(0.4 * np.sin(2.5 * t), 3), now[0], 0.05, request_id=number))
        held = next((reason for reason in logic.holds if "does not follow" in reason), None)
    assert np.ptp(controller.path(now[0])[1], axis=0).min() > 0.5
    assert (held is None) == (off_s is None)


def test_a_way_home_of_a_controller_that_others_activated_elsewhere_gets_there():
    """What it was sent before is not where it is, until the way begins."""
    home, now = np.array([0.8, -0.5, 0.0]), [S]
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]

    def send(path: Trajectory, on_arrival: bool) -> None:
        here = controller.state(now[0])
        assert controller.accept(with_hold(path), now[0], MotionState(now[0], here.position))

    robot = Robot("joint_trajectory", JOINTS, LIMITS, home, 0.02)
    given = lambda: now[0], lambda: now[0], send
    logic = TrajectoryLogic(robot, Parameters(), *given, reference=lambda: controller.state(now[0]).position)
    for tick in range(1200):
        now[0] += 10 * MS
        if 300 < tick <= 400:
            controller.hold(np.array([-0.005, -0.01, 0.0]) * (tick - 300), now[0])
        logic.joints(controller.state(now[0]).position, now[0])
        logic.watch()
        if tick == 100:
            t = np.arange(1, 31)[:, None] * 0.05
            logic.chunk(make_chunk(np.tile(0.1 * t, 3), now[0], 0.05))
        elif tick == 300:
            logic.hold()
        elif tick == 500:
            logic.resume()
            logic.home()
    assert HOMING not in logic.holds
    assert controller.state(now[0]).position == pytest.approx(home)


def test_of_a_way_home_that_begins_later_than_it_was_decided_a_controller_has_no_more_than_the_age_either():
    """Home already, others activated it far from there: the hand-over has it approached for longer."""
    home, now, beyond, starts_s = np.array([0.8, -0.5, 0.0]), [S], list[int](), list[float]()
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]
    longest_ns = round((LIMITS.velocity / LIMITS.acceleration).max() * S)

    def send(path: Trajectory, on_arrival: bool) -> None:
        here = controller.state(now[0])
        if HOMING in logic.holds:
            most_ns = max(now[0] + logic.most_ns, path.start_ns + logic.most_ns // 2)
            beyond.append(path.end_ns - most_ns - longest_ns)
            starts_s.append((path.start_ns - now[0]) / S)
        assert controller.accept(with_hold(path), now[0], MotionState(now[0], here.position))

    robot = Robot("joint_trajectory", JOINTS, LIMITS, home, 0.02, chunk_age_s=2.0)
    given = lambda: now[0], lambda: now[0], send
    logic = TrajectoryLogic(robot, Parameters(), *given, reference=lambda: controller.state(now[0]).position)
    for tick in range(1400):
        now[0] += 10 * MS
        if 700 < tick <= 800:
            controller.hold(home + np.array([-0.01, 0.01, 0.0]) * (tick - 700), now[0])
        logic.joints(controller.state(now[0]).position, now[0])
        logic.watch()
        if tick in (250, 850):
            logic.home()
        if tick == 700:
            assert controller.state(now[0]).position == pytest.approx(home)
    assert max(starts_s) > 1.0  # as it was decided, half of that
    assert max(beyond) <= 0
    assert controller.state(now[0]).position == pytest.approx(home)


@pytest.mark.parametrize("held_up_s", [0.0, 0.35, 0.8])
def test_a_way_home_of_which_the_first_part_is_held_up_gets_there(held_up_s):
    """It is renewed by when it is executed, not by when it was to be."""
    home, now, late = np.array([0.8, -0.5, 0.0]), [S], [held_up_s]
    controller = TrajectoryController(JOINTS, START, True)
    controller.starts[0] = now[0]

    def held_up() -> None:
        if HOMING in logic.holds and late:
            now[0] += round(late.pop() * S)

    def send(path: Trajectory, on_arrival: bool) -> None:
        here = controller.state(now[0])
        assert controller.accept(with_hold(path), now[0], MotionState(now[0], here.position))

    robot = Robot("joint_trajectory", JOINTS, LIMITS, home, 0.02)
    logic = TrajectoryLogic(robot, Parameters(), lambda: now[0], lambda: now[0], send, held_up=held_up)
    asked = False
    for _ in range(1000):
        now[0] += 10 * MS
        logic.joints(controller.state(now[0]).position, now[0])
        logic.watch()
        if not asked and now[0] > 4 * S:
            asked = True
            logic.home()
    assert not late and HOMING not in logic.holds
    assert controller.state(now[0]).position == pytest.approx(home)
    assert not judge_path(*controller.path(now[0]), LIMITS, [], [])


def test_a_controller_that_says_that_it_rests_where_no_joint_can_be_is_not_led_from_there():
    arm = Arm()
    play(arm, 1, 0.0)
    before = arm.hand_over.commanded(arm.now)
    arm.hand_over.rests(np.array([1e9, 0.0, 0.0]), arm.now, LEAD_S)
    np.testing.assert_array_equal(arm.hand_over.commanded(arm.now), before)
