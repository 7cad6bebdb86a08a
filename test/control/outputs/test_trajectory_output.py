"""What a joint_trajectory_controller is sent, by what it says of itself: a stop after ROS time was set, and
more after it was activated anew. Time is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from executed import TrajectoryController, judge_path
from world import Clock, TrajectoryLine

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.following.joint_faults import DELAY_S
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_on_arrival
from vla_accel_ros.control.orders.moves import move
from vla_accel_ros.control.outputs.delivery import Delivery
from vla_accel_ros.control.outputs.on_arrival import eased
from vla_accel_ros.control.outputs.reports import Execution, ReportedState, Reports
from vla_accel_ros.control.outputs.trajectory import TrajectoryOutput, kept
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
NAMES = ("a", "b")
MS = S // 1000
LIMITS = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, 3.0, 20.0)))
ANEW = np.array([0.1, -0.1])
"""Where the controller was activated, in the middle of a motion."""


class Arm:
    """An output, and the controller that hears it. now: ROS time; set_by: how far it was set. heard:
    messages, each with ROS time of its beginning and whether it is stamped. says: what the controller reports
    next. subscribed: whether it listens. before, after: called before and when a message leaves."""

    def __init__(self, stamped: bool = True, limits: JointLimits = LIMITS, simulated: bool = True) -> None:
        self.set_by = 0
        self.now, self.heard, self.subscribed = 1000 * S, list[tuple[Trajectory, int, bool]](), False
        self.says = list[ReportedState]()
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        line = TrajectoryLine(
            self._hear, lambda: self.before(), lambda: self.says.pop() if self.says else None
        )
        line.is_heard = lambda: self.subscribed  # type: ignore[method-assign]
        self.clock = Clock(lambda: self.now, lambda: self.now - self.set_by, simulated)
        arm = Controller("arm/joint_trajectory", NAMES)
        self.output = TrajectoryOutput(arm, limits, Delivery(0.03, 0.1), line, self.clock, stamped)

    def _hear(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self.heard.append((path, start_ns, stamped))
        self.after()

    def send(self, trajectory: Trajectory) -> None:
        self.output.send(trajectory, self.now)

    def begin(self) -> Trajectory:
        """The controller listens, and says that it executes the first trajectory."""
        self.subscribed, began_ns = True, self.now
        path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=began_ns)
        self.send(path)
        self.now += 20 * MS
        self.report(began_ns, self.now, path.sample(self.now)[0], False)
        self.look()
        return path

    def report(self, began_ns: int, stamp_ns: int, position: np.ndarray, rests: bool) -> None:
        self.says.append(ReportedState(began_ns, stamp_ns, by_name(position), rests))

    def look(self) -> None:
        """The watchdog's timer."""
        self.output.lead_s(self.now)

    @property
    def got(self) -> Trajectory:
        """The last message, if it arrives now."""
        path, start_ns, stamped = self.heard[-1]
        return path if stamped else path.later(self.now - start_ns)


def by_name(position: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, position.tolist()))


@pytest.fixture
def arm() -> Arm:
    return Arm()


@pytest.mark.parametrize(
    "said",
    [
        "that it holds",
        "that it holds, and does what it was sent",
        "that it moves",
        "that it holds, and does what it was just sent",
        "that it does what it was just sent",
        "that it held long ago",
    ],
)
def test_a_controller_that_was_activated_anew_is_led_from_where_it_says_that_it_holds(arm, said):
    path = arm.begin()
    arm.now += (20 if "just" in said else 200) * MS
    activated_ns = path.start_ns + 2 * MS if "sent" in said else arm.now - 30 * MS
    stamp_ns = arm.now - (150 if "long ago" in said else 10) * MS
    where = ANEW if "holds" in said or "just" not in said else 0.1 * ANEW
    arm.report(activated_ns, stamp_ns, where, rests="moves" not in said)
    arm.send(path.since(arm.now))
    got = arm.got
    begins, decided = got.sample(arm.now)[0], path.sample(arm.now)[0]
    holds = said.startswith("that it holds")
    assert (np.abs(begins - decided) > 0.05).any() == holds
    np.testing.assert_allclose(begins, ANEW if holds else decided)
    assert (got.positions[-1] > ANEW + 0.4).all()


@pytest.mark.parametrize("told", [ANEW, np.array([1e9, 0.0]), np.array([0.1, -1.9])])
def test_who_says_that_it_holds_where_its_joints_are_not_is_not_believed(arm, told):
    path = arm.begin()
    arm.now += 200 * MS
    arm.output.measured(dict(zip(NAMES, (ANEW + 0.05).tolist())), dict.fromkeys(NAMES, arm.now), True)
    arm.report(arm.now - 30 * MS, arm.now - 10 * MS, told, True)
    arm.send(path.since(arm.now))
    got = arm.got
    begins = ANEW if told is ANEW else path.sample(arm.now)[0]
    np.testing.assert_allclose(got.sample(arm.now)[0], begins)


def test_a_message_that_is_held_up_while_its_controller_is_activated_begins_where_that_holds(arm):
    path = arm.begin()

    def stall() -> None:
        arm.now, arm.before = arm.now + 200 * MS, lambda: None
        arm.report(arm.now - 50 * MS, arm.now - 10 * MS, ANEW, True)

    arm.now, arm.before = arm.now + 100 * MS, stall
    arm.send(path.since(arm.now))
    np.testing.assert_allclose(arm.got.sample(arm.now)[0], ANEW)


def test_before_the_first_motion_it_is_waited_for_what_the_controller_says_but_not_for_long(arm):
    arm.report(arm.now - S, arm.now, ANEW, True)  # what it said to a node that was not active
    arm.output.open()
    arm.now += 20 * MS
    assert not arm.output.reference(arm.now) and arm.output.waits
    arm.report(arm.now - S, arm.now, ANEW, True)
    assert arm.output.reference(arm.now) == dict(zip(NAMES, ANEW.tolist())) and not arm.output.waits
    arm.output.open()
    arm.now += 900 * MS
    assert arm.output.waits
    arm.now += 200 * MS
    assert not arm.output.waits


def test_a_controller_that_executes_at_another_speed_is_sent_nothing_until_it_rests_at_its_own(arm):
    """By UR's slider, or a safety controller's: each trajectory would step it to where it should be."""
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    began_ns, count = arm.now, len(arm.heard)

    def says(speed: float, rests: bool = False) -> None:
        arm.now += 20 * MS
        where = dict(zip(NAMES, ANEW.tolist()))
        arm.says.append(ReportedState(began_ns, arm.now, where, rests, speed))
        arm.look()

    says(1.0)
    assert not arm.output.hindrance
    says(0.5)
    assert "arm/joint_trajectory: the controller's speed scaling" in arm.output.hindrance
    assert "set it to 100 %" in arm.output.hindrance
    for decided in (path.since(arm.now), path.since(arm.now).later(200 * MS)):
        arm.send(decided)
    assert len(arm.heard) == count
    assert arm.output.commanded(arm.now) == dict(zip(NAMES, ANEW.tolist())), "joints are compared with that"
    arm.now += 600 * MS
    assert "its state, and it has reported none since: is it active?" in arm.output.hindrance
    says(1.0)
    assert "set it to 100 %" in arm.output.hindrance and len(arm.heard) == count, (
        "it still executes what it had"
    )
    says(1.0, rests=True)
    assert not arm.output.hindrance
    arm.send(path.later(S))
    assert len(arm.heard) == count + 1


def test_while_a_trajectory_is_overdue_no_other_is_sent_and_after_one_was_lost_it_is_led_from_where_it_rests(
    arm,
):
    sentence_ = "arm/joint_trajectory: the controller does not execute what it was sent"
    arm.subscribed = True
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    began_ns = arm.now
    arm.now += 20 * MS
    arm.report(began_ns, arm.now, path.sample(arm.now)[0], False)
    arm.look()
    arm.output.send(path.since(arm.now), arm.now)  # never comes
    count = len(arm.heard)
    for _ in range(5):
        arm.now += 100 * MS
        arm.report(began_ns, arm.now, ANEW, True)
        arm.look()
    assert arm.output.hindrance.startswith(sentence_)
    arm.send(path.since(arm.now))
    assert len(arm.heard) == count
    arm.now += 2 * S
    arm.report(began_ns, arm.now, ANEW, True)
    arm.look()
    assert not arm.output.hindrance
    onward = move(NAMES, np.ones(2), np.zeros(2), LIMITS, start_ns=arm.now)
    arm.send(onward)
    got = arm.got
    np.testing.assert_allclose(got.sample(arm.now)[0], ANEW)
    # That one takes long, too: that the controller rests meanwhile does not say that it was dropped.
    arm.now += 200 * MS
    arm.report(began_ns, arm.now, ANEW, True)
    arm.send(onward.since(arm.now))
    later = arm.got
    np.testing.assert_allclose(later.sample(arm.now)[0], got.sample(arm.now)[0], atol=1e-6)


def test_a_controller_with_another_clock_is_sent_nothing_for_the_present():
    arm = Arm(stamped=False)
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    first_ns = arm.got.start_ns - arm.now
    assert not arm.heard[-1][2] and first_ns >= 200 * MS
    np.testing.assert_allclose(arm.got.positions[0], path.sample(arm.now + first_ns)[0])
    assert arm.output.rests_ns() == path.end_ns + 30 * MS
    arm.output.begin()
    assert arm.output.rests_ns() == 0


class Scaled:
    """A controller whose trajectories take longer than they were sent, as Jazzy's with speed_scaling does it:
    each begins at its own time, and goes on slower."""

    def __init__(self, at: np.ndarray, now: int) -> None:
        self.speed, self._path = 1.0, Trajectory(NAMES, np.array([now]), at[None], np.zeros((1, 2)))
        self._began = self._passed = now

    def accept(self, path: Trajectory, now: int) -> None:
        self._path, self._began, self._passed = path, path.start_ns, now

    def update(self, now: int, period_ns: int) -> np.ndarray:
        self._passed += round(period_ns * self.speed)
        return self._path.sample(self._passed)[0]

    def state(self, now: int) -> Execution:
        position, velocity = self._path.sample(self._passed)
        times = now, now - self._began, self._passed - self._began
        return Execution(*times, by_name(position), bool(velocity.any()))


@pytest.mark.parametrize("speed", [0.5, 0.1, 0.0])
def test_a_robot_whose_slider_is_pushed_comes_to_rest_without_a_step_and_goes_on_at_full_speed(arm, speed):
    arm.subscribed = True
    controller, reports = Scaled(np.zeros(2), arm.now), Reports()
    buffer = TrajectoryBuffer(NAMES, LIMITS, lead_s=0.03, max_age_s=0.6)
    buffer.reset(np.zeros(2))
    path, hindered, began = list[np.ndarray](), list[bool](), arm.now
    resumed = 0
    while arm.now < began + 6 * S:
        arm.now += 2 * MS
        k = (arm.now - began) // MS
        controller.speed = speed if S <= arm.now - began < 3 * S else 1.0
        path.append(controller.update(arm.now, 2 * MS))
        if k % 20 == 0:
            arm.says.append(reports.read(controller.state(arm.now)))
            arm.look()
            hindered.append(bool(arm.output.hindrance))
        if k % 34 == 0 and not (hindered and hindered[-1]) and (k < 1500 or k > 4500):
            ramp = 0.8 * np.sin((k + 33.0 * np.arange(1, 25))[:, None] * 1e-3 * np.array([1.5, 2.0]))
            chunk = Chunk(ramp.astype(np.float32), arm.now - 30 * MS, 0.033, k, k, np.zeros(24, np.float32))
            count = len(arm.heard)
            if k > 4500 and not resumed:
                resumed = len(path)
                buffer.reset(path[-1])
            arm.send(buffer.update(chunk, arm.now))
            for message, _, _ in arm.heard[count:]:
                controller.accept(message, arm.now)
    assert any(hindered) and not hindered[-1] and not hindered[0]
    moves = np.abs(np.diff(path, axis=0)).max(axis=1)
    shown, pushed_back = 500 + 30, 1500  # 60 ms after it was pushed
    assert moves.max() <= 2.0 * 0.06 + LIMITS.velocity[0] * 2e-3, "no more than until it shows"
    for part in (path[shown : pushed_back - 2], path[pushed_back + 2 : resumed]):
        assert np.abs(np.diff(part, axis=0)).max() <= LIMITS.velocity[0] * 2e-3
        assert np.abs(np.diff(part, n=2, axis=0)).max() <= LIMITS.acceleration[0] * 4e-6 * 1.01
    assert np.abs(np.array(path[-1]) - path[shown]).max() > 0.1, "it goes on"


def test_when_it_stands_after_the_clock_was_set_is_told_as_it_was_sent(arm):
    """A stop in place takes longer than the one that was given."""
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    was_ns = arm.now = path.start_ns + (path.end_ns - path.start_ns) // 2
    arm.clock.jumped_ns = 50 * S
    arm.now += arm.clock.jumped_ns
    arm.report(was_ns - 30 * MS, was_ns - 5 * MS, np.full(2, -1.9), True)
    braking = brake_on_arrival(NAMES, path.sample, was_ns, arm.now, 0.06, LIMITS)
    executed = arm.output.stop(braking, arm.now)
    assert isinstance(executed, Trajectory) and executed.end_ns > braking.end_ns + 300 * MS
    took_ns = arm.got.start_ns - arm.now
    assert executed.end_ns == arm.now + took_ns + 60 * MS  # it may arrive so late
    np.testing.assert_allclose(executed.positions[-1], np.full(2, -1.9))


@pytest.mark.parametrize("set_by_s", [-0.3, 50.0])
@pytest.mark.parametrize("said", ["before the clock was set", "in the new time", "long ago", "nothing"])
def test_a_controller_that_says_that_it_is_elsewhere_is_not_led_away_by_a_stop(arm, set_by_s, said):
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    was_ns = arm.now = path.start_ns + (path.end_ns - path.start_ns) // 2
    arm.clock.jumped_ns = round(set_by_s * S)
    arm.now += arm.clock.jumped_ns
    stamps = {"before the clock was set": was_ns - 5 * MS, "in the new time": arm.now - 5 * MS}
    if said != "nothing":
        stamp_ns = stamps.get(said, was_ns - 20 * S)
        arm.says.append(ReportedState(0, stamp_ns, dict(zip(NAMES, ANEW.tolist()))))
    braking = brake_on_arrival(NAMES, path.sample, was_ns, arm.now, 0.06, LIMITS)
    arm.output.stop(braking, arm.now)
    goal = arm.got.positions[-1]
    np.testing.assert_allclose(goal, ANEW if said in stamps else braking.positions[-1])
    assert (np.abs(goal - ANEW) > 0.4).any() == (said not in stamps)


@pytest.mark.parametrize("set_by_s", [-3600.0, -0.1, 0.5, 3600.0])
@pytest.mark.parametrize("stops", [True, False])
def test_a_controller_with_another_clock_goes_on_when_ours_is_set_and_comes_to_rest_within_limits(
    set_by_s, stops
):
    arm, limits = Arm(False, eased(LIMITS), simulated=False), eased(LIMITS)
    controller = TrajectoryController(NAMES, np.zeros(2), True)
    path = move(NAMES, np.zeros(2), np.array([1.0, -1.0]), limits, 1.0, arm.now)
    arm.send(path)
    controller.accept(arm.got, arm.now, TrajectoryPoint(0, np.zeros(2)))
    arm.now += S // 3
    was_ns, arm.set_by = arm.now, round(set_by_s * S)
    arm.now += arm.set_by
    if arm.clock.jumps():
        stop = brake_on_arrival(NAMES, path.sample, was_ns, arm.now, 0.06, limits) if stops else None
        arm.output.stop(stop, arm.now)
    else:  # it was set by so little that nobody knows
        arm.send(path.since(arm.now) if stops else path)
    if len(arm.heard) > 1:
        controller.accept(arm.got.later(-arm.set_by), was_ns, TrajectoryPoint(0, np.zeros(2)))
    rests_ns = arm.output.rests_ns() - arm.set_by
    times, positions = controller.path(rests_ns + S)
    times, positions = times[times >= 999 * S], positions[times >= 999 * S]
    assert not judge_path(times, positions, LIMITS, [], [])
    moving_ns = times[np.flatnonzero(np.abs(np.diff(positions, axis=0)).max(axis=1) > 1e-9)[-1]]
    assert rests_ns - 200 * MS < moving_ns <= rests_ns


@pytest.mark.parametrize("set_again_s", [0.0, 50.0])
@pytest.mark.parametrize("held_up_ms", [0, 50, 150, 400])
def test_a_stop_after_the_clock_was_set_begins_where_the_controller_is_when_it_leaves(
    held_up_ms, set_again_s
):
    """Also if the clock is set again while the stop is held up."""
    arm, controller = Arm(simulated=False), TrajectoryController(NAMES, np.zeros(2), True)
    path = move(NAMES, np.zeros(2), np.array([1.0, -1.0]), LIMITS, 1.0, arm.now)
    arm.send(path)
    controller.accept(arm.got, arm.now, TrajectoryPoint(0, np.zeros(2)))

    def hold_up() -> None:
        arm.now, arm.before = arm.now + held_up_ms * MS, lambda: None
        arm.set_by, arm.now = arm.set_by + round(set_again_s * S), arm.now + round(set_again_s * S)

    arm.now += S // 5
    was_ns, arm.set_by, arm.now, arm.before = arm.now, -3600 * S, arm.now - 3600 * S, hold_up
    assert arm.clock.jumps()
    arm.output.stop(brake_on_arrival(NAMES, path.sample, was_ns, arm.now, 0.06, LIMITS), arm.now)
    controller.accept(arm.got.later(-arm.set_by), arm.now - arm.set_by, TrajectoryPoint(0, np.zeros(2)))
    times, positions = controller.path(path.end_ns + 2 * S)
    assert not judge_path(times, positions, LIMITS, [(0, 999 * S)], [])
    assert not np.diff(positions[times > path.end_ns + S], axis=0).any()


SPEED = 2.0


def test_what_a_controller_with_another_clock_executes_is_not_what_was_decided():
    """It approaches a point far ahead, since one joint brakes slowly: the other one, which follows it,
    is far from what was decided."""
    wide, speed = np.full(2, 2.0), np.full(2, SPEED)
    limits = eased(JointLimits(-wide, wide, speed, np.array([40.0, 0.8])))
    arm = Arm(False, limits)
    buffer = TrajectoryBuffer(NAMES, limits, max_age_s=0.8)
    buffer.reset(np.zeros(2))
    controller = TrajectoryController(NAMES, np.zeros(2), True)
    distance, error = 0.0, 0.0
    standstill = np.zeros((1, 2))
    arm.output.send(
        Trajectory(NAMES, np.array([arm.now + S // 2]), standstill, standstill), arm.now
    )  # a join
    arm.now += S
    for tick in range(800):
        arm.now += 10 * MS
        if tick % 5 == 0:
            actions = np.full((32, 2), 1.0 if tick // 100 % 2 else -1.0, np.float32)
            zeros = np.zeros(32, np.float32)
            path = buffer.update(Chunk(actions, arm.now, 0.05, tick + 1, tick + 1, zeros), arm.now)
            assert path is not None
            arm.send(path)
            sent = arm.got
            state = TrajectoryPoint(arm.now, np.zeros(2))
            assert controller.accept(sent.select(NAMES), arm.now, state)
        executed = controller.state(arm.now).position
        commanded = [arm.output.commanded(arm.now)[name] for name in NAMES]
        error = max(error, np.abs(commanded - executed).max())
        distance = max(distance, np.abs(buffer.reference(arm.now)[0] - executed).max())
    assert distance > DELAY_S * SPEED, "a following error"
    assert error < 1e-6


def test_a_trajectory_that_leaves_late_is_told(arm):
    """The process is stopped after its last look at the clock."""
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=arm.now)
    arm.send(path)
    arm.now += 100 * MS
    arm.send(path.since(arm.now))
    assert arm.output.values()["left late"] == 0 and not arm.output.trouble

    def stop(for_ms: int) -> None:
        arm.now += for_ms * MS

    arm.after = partial(stop, 15)
    arm.send(path.since(arm.now))
    assert arm.output.values()["left late"] == 0, "it arrives in time"
    arm.after = partial(stop, 2000)
    arm.send(path.since(arm.now))
    assert arm.output.values()["left late"] == 1
    assert "1.9" in arm.output.trouble and "late" in arm.output.trouble
    arm.now += 11 * S
    assert not arm.output.trouble


def slide(end_speed: float) -> Trajectory:
    times = np.array([S, S + 40 * MS])
    return Trajectory(("a",), times, np.array([[0.0], [0.1]]), np.array([[1.0], [end_speed]]))


def test_a_motion_that_is_soon_over_holds_its_end_so_that_it_is_still_taken_late():
    stop = slide(end_speed=0.0)
    path = kept(stop)
    assert path.end_ns == 2 * S
    times = np.array([20, 40, 700]) * MS + S
    np.testing.assert_allclose(path.sample(times)[0], stop.sample(times)[0], atol=1e-12)


def test_an_end_in_motion_is_not_prolonged():
    assert len(kept(slide(end_speed=1.0))) == 2
