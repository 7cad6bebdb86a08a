"""What a joint_trajectory_controller is sent, by what it says of itself: a stop after ROS time was set, and
more after it was activated anew. Time is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from control_msgs.msg import JointTrajectoryControllerState
from homing import CONTROLLERS, NAMES, Node, S
from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.control.following.joint_faults import DELAY_S
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake_on_arrival
from vla_accel_ros.control.moves import move
from vla_accel_ros.control.on_arrival import eased
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.nodes.adapters import joint_trajectory
from vla_accel_ros.nodes.controllers.state import ReportedState, Reports
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sim.executed import TrajectoryController
from vla_accel_ros.types import Chunk

MS = S // 1000
LIMITS = JointLimits(*(np.full(2, value) for value in (-2.0, 2.0, 3.0, 20.0)))
ANEW = np.array([0.1, -0.1])
"""Where the controller was activated, in the middle of a motion."""


class Said:
    """The newest state, once."""

    def __init__(self, *_: object) -> None:
        self.next: list[ReportedState] = []

    listens = True

    def newest(self) -> ReportedState | None:
        return self.next.pop() if self.next else None


@pytest.fixture
def heard() -> list:
    return []


@pytest.fixture
def adapter(monkeypatch, heard) -> joint_trajectory.JointTrajectoryAdapter:
    monkeypatch.setattr(joint_trajectory, "ControllerState", Said)
    node: Any = Node(heard.append)
    return joint_trajectory.JointTrajectoryAdapter(
        node, CONTROLLERS["joint_trajectory"], "now", Delivery(0.03, 0.1), LIMITS, lambda: node.now * 1e-9
    )


def say(adapter, began_ns: int, stamp_ns: int, where: np.ndarray, rests: bool) -> None:
    adapter._state.next.append(ReportedState(began_ns, stamp_ns, dict(zip(NAMES, where.tolist())), rests))


@pytest.mark.parametrize(
    "said", ["that it holds", "that it moves", "that it does what it was sent", "that it held long ago"]
)
def test_a_controller_that_was_activated_anew_is_led_from_where_it_says_that_it_holds(adapter, heard, said):
    node = adapter._node
    adapter._publisher.get_subscription_count = lambda: 1
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    began_ns = node.now
    adapter.send(path, node.now)
    node.now += 20 * MS
    say(adapter, began_ns, node.now, path.sample(node.now)[0], False)
    adapter.lead_s(node.now)
    node.now += 200 * MS
    activated_ns = began_ns if "was sent" in said else node.now - 30 * MS
    stamp_ns = node.now - (150 if "long ago" in said else 10) * MS
    say(adapter, activated_ns, stamp_ns, ANEW, rests="moves" not in said)
    adapter.send(path.since(node.now), node.now)
    sent = deserialize_message(heard[-1], JointTrajectory)
    got = convert.trajectory_from_message(sent, node.now)
    begins, decided = got.sample(node.now)[0], path.sample(node.now)[0]
    assert (np.abs(begins - decided) > 0.2).any() == (said == "that it holds")
    np.testing.assert_allclose(begins, ANEW if said == "that it holds" else decided)
    assert (got.positions[-1] > ANEW + 0.4).all()


@pytest.mark.parametrize("told", [ANEW, np.array([1e9, 0.0]), np.array([0.1, -1.9])])
def test_who_says_that_it_holds_where_its_joints_are_not_is_not_believed(adapter, heard, told):
    node = adapter._node
    adapter._publisher.get_subscription_count = lambda: 1
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    began_ns = node.now
    adapter.send(path, node.now)
    node.now += 20 * MS
    say(adapter, began_ns, node.now, path.sample(node.now)[0], False)
    adapter.lead_s(node.now)
    node.now += 200 * MS
    adapter.measured(dict(zip(NAMES, (ANEW + 0.05).tolist())), dict.fromkeys(NAMES, node.now), True)
    say(adapter, node.now - 30 * MS, node.now - 10 * MS, told, True)
    adapter.send(path.since(node.now), node.now)
    got = convert.trajectory_from_message(deserialize_message(heard[-1], JointTrajectory), node.now)
    begins = ANEW if told is ANEW else path.sample(node.now)[0]
    np.testing.assert_allclose(got.sample(node.now)[0], begins)


def test_before_the_first_motion_it_is_waited_for_what_the_controller_says_but_not_for_long(adapter):
    node = adapter._node
    say(adapter, node.now - S, node.now, ANEW, True)  # what it said to a node that was not active
    adapter.open()
    node.now += 20 * MS
    assert not adapter.reference(node.now) and adapter.waits
    say(adapter, node.now - S, node.now, ANEW, True)
    assert adapter.reference(node.now) == dict(zip(NAMES, ANEW.tolist())) and not adapter.waits
    adapter.open()
    node.now += 900 * MS
    assert adapter.waits
    node.now += 200 * MS
    assert not adapter.waits


def test_a_controller_that_executes_at_another_speed_is_sent_nothing_until_it_rests_at_its_own(
    adapter, heard
):
    """By UR's slider, or a safety controller's: each trajectory would step it to where it should be."""
    node = adapter._node
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    began_ns, count = node.now, len(heard)

    def says(speed: float, rests: bool = False) -> None:
        node.now += 20 * MS
        where = dict(zip(NAMES, ANEW.tolist()))
        adapter._state.next.append(ReportedState(began_ns, node.now, where, rests, speed))
        adapter.lead_s(node.now)

    says(1.0)
    assert not adapter.hindrance
    says(0.5)
    assert "arm/joint_trajectory: the controller's speed scaling" in adapter.hindrance
    assert "set it to 100 %" in adapter.hindrance
    for decided in (path.since(node.now), path.since(node.now).later(200 * MS)):
        adapter.send(decided, node.now)
    assert len(heard) == count
    assert adapter.commanded(node.now) == dict(zip(NAMES, ANEW.tolist())), "joints are compared with that"
    node.now += 600 * MS
    assert "its state, and it has reported none since: is it active?" in adapter.hindrance
    says(1.0)
    assert "set it to 100 %" in adapter.hindrance and len(heard) == count, "it still executes what it had"
    says(1.0, rests=True)
    assert not adapter.hindrance
    adapter.send(path.later(S), node.now)
    assert len(heard) == count + 1


def test_while_a_trajectory_is_overdue_no_other_is_sent_and_after_one_was_lost_it_is_led_from_where_it_rests(
    adapter, heard
):
    node, late = adapter._node, "arm/joint_trajectory: the controller does not execute what it was sent"
    adapter._publisher.get_subscription_count = lambda: 1
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    began_ns = node.now
    node.now += 20 * MS
    say(adapter, began_ns, node.now, path.sample(node.now)[0], False)
    adapter.lead_s(node.now)
    adapter.send(path.since(node.now), node.now)  # never comes
    count = len(heard)
    for _ in range(5):
        node.now += 100 * MS
        say(adapter, began_ns, node.now, ANEW, True)
        adapter.lead_s(node.now)
    assert adapter.hindrance.startswith(late)
    adapter.send(path.since(node.now), node.now)
    assert len(heard) == count
    node.now += 2 * S
    say(adapter, began_ns, node.now, ANEW, True)
    adapter.lead_s(node.now)
    assert not adapter.hindrance
    onward = move(NAMES, np.ones(2), np.zeros(2), LIMITS, start_ns=node.now)
    adapter.send(onward, node.now)
    got = convert.trajectory_from_message(deserialize_message(heard[-1], JointTrajectory), node.now)
    np.testing.assert_allclose(got.sample(node.now)[0], ANEW)
    # That one takes long, too: that the controller rests meanwhile does not say that it was dropped.
    node.now += 200 * MS
    say(adapter, began_ns, node.now, ANEW, True)
    adapter.send(onward.since(node.now), node.now)
    later = convert.trajectory_from_message(deserialize_message(heard[-1], JointTrajectory), node.now)
    np.testing.assert_allclose(later.sample(node.now)[0], got.sample(node.now)[0], atol=1e-6)


def test_a_controller_with_another_clock_is_sent_nothing_for_the_present(heard):
    node: Any = Node(heard.append)
    adapter = joint_trajectory.JointTrajectoryAdapter(
        node, CONTROLLERS["joint_trajectory"], "zero", Delivery(0.03, 0.1), LIMITS
    )
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    message = deserialize_message(heard[-1], JointTrajectory)
    first_ns = convert.stamp_ns(message.points[0].time_from_start)
    assert convert.stamp_ns(message.header.stamp) == 0 and first_ns >= 200 * MS
    np.testing.assert_allclose(message.points[0].positions, path.sample(node.now + first_ns)[0])
    assert adapter.rests_ns() == path.end_ns + 30 * MS
    adapter.begin()
    assert adapter.rests_ns() == 0


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

    def state(self, now: int) -> JointTrajectoryControllerState:
        message = JointTrajectoryControllerState(joint_names=list(NAMES))
        position, velocity = self._path.sample(self._passed)
        message.reference.positions, message.reference.velocities = position.tolist(), velocity.tolist()
        convert.set_stamp(message.header.stamp, now)
        convert.set_stamp(message.feedback.time_from_start, now - self._began)
        convert.set_stamp(message.reference.time_from_start, self._passed - self._began)
        return message


@pytest.mark.parametrize("speed", [0.5, 0.1, 0.0])
def test_a_robot_whose_slider_is_pushed_comes_to_rest_without_a_step_and_goes_on_at_full_speed(
    adapter, heard, speed
):
    node = adapter._node
    adapter._publisher.get_subscription_count = lambda: 1
    controller, reports = Scaled(np.zeros(2), node.now), Reports()
    buffer = TrajectoryBuffer(NAMES, LIMITS, lead_s=0.03, max_age_s=0.6)
    buffer.reset(np.zeros(2))
    path, held, began = list[np.ndarray](), list[bool](), node.now
    again = 0
    while node.now < began + 6 * S:
        node.now += 2 * MS
        k = (node.now - began) // MS
        controller.speed = speed if S <= node.now - began < 3 * S else 1.0
        path.append(controller.update(node.now, 2 * MS))
        if k % 20 == 0:
            adapter._state.next.append(reports.read(controller.state(node.now)))
            adapter.lead_s(node.now)
            held.append(bool(adapter.hindrance))
        if k % 34 == 0 and not (held and held[-1]) and (k < 1500 or k > 4500):
            ramp = 0.8 * np.sin((k + 33.0 * np.arange(1, 25))[:, None] * 1e-3 * np.array([1.5, 2.0]))
            chunk = Chunk(ramp.astype(np.float32), node.now - 30 * MS, 0.033, k, k, np.zeros(24, np.float32))
            count = len(heard)
            if k > 4500 and not again:
                again = len(path)
                buffer.reset(path[-1])
            adapter.send(buffer.update(chunk, node.now), node.now)
            for message in heard[count:]:
                got = deserialize_message(message, JointTrajectory)
                controller.accept(convert.trajectory_from_message(got, node.now), node.now)
    assert any(held) and not held[-1] and not held[0]
    moves = np.abs(np.diff(path, axis=0)).max(axis=1)
    shown, pushed_back = 500 + 30, 1500  # 60 ms after it was pushed
    assert moves.max() <= 2.0 * 0.06 + LIMITS.velocity[0] * 2e-3, "no more than until it shows"
    for part in (path[shown : pushed_back - 2], path[pushed_back + 2 : again]):
        assert np.abs(np.diff(part, axis=0)).max() <= LIMITS.velocity[0] * 2e-3
        assert np.abs(np.diff(part, n=2, axis=0)).max() <= LIMITS.acceleration[0] * 4e-6 * 1.01
    assert np.abs(np.array(path[-1]) - path[shown]).max() > 0.1, "it goes on"


def test_when_it_stands_after_the_clock_was_set_is_told_as_it_was_sent(adapter, heard):
    """A stop in place takes longer than the one that was given."""
    node = adapter._node
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    was_ns = node.now = path.start_ns + (path.end_ns - path.start_ns) // 2
    node.jumped_ns = 50 * S
    node.now += node.jumped_ns
    say(adapter, was_ns - 30 * MS, was_ns - 5 * MS, np.full(2, -1.9), True)
    braking = brake_on_arrival(NAMES, path.sample, was_ns, node.now, 0.06, LIMITS)
    executed = adapter.stop(braking, node.now)
    assert isinstance(executed, Trajectory) and executed.end_ns > braking.end_ns + 300 * MS
    took_ns = convert.stamp_ns(heard[-1].points[0].time_from_start)
    assert executed.end_ns == node.now + took_ns + 60 * MS  # it may arrive so late
    np.testing.assert_allclose(executed.positions[-1], np.full(2, -1.9))


@pytest.mark.parametrize("set_by_s", [-0.3, 50.0])
@pytest.mark.parametrize("said", ["before the clock was set", "in the new time", "long ago", "nothing"])
def test_a_controller_that_says_that_it_is_elsewhere_is_not_led_away_by_a_stop(
    adapter, heard, set_by_s, said
):
    node = adapter._node
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    was_ns = node.now = path.start_ns + (path.end_ns - path.start_ns) // 2
    node.jumped_ns = round(set_by_s * S)
    node.now += node.jumped_ns
    stamps = {"before the clock was set": was_ns - 5 * MS, "in the new time": node.now - 5 * MS}
    if said != "nothing":
        stamp_ns = stamps.get(said, was_ns - 20 * S)
        adapter._state.next.append(ReportedState(0, stamp_ns, dict(zip(NAMES, ANEW.tolist()))))
    braking = brake_on_arrival(NAMES, path.sample, was_ns, node.now, 0.06, LIMITS)
    adapter.stop(braking, node.now)
    goal = np.array(heard[-1].points[-1].positions)
    np.testing.assert_allclose(goal, ANEW if said in stamps else braking.positions[-1])
    assert (np.abs(goal - ANEW) > 0.4).any() == (said not in stamps)


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
@pytest.mark.parametrize("moves", [True, False])
def test_a_controller_with_another_clock_stands_in_the_new_time_when_its_stop_ends(heard, set_by_s, moves):
    node: Any = Node(heard.append)
    adapter = joint_trajectory.JointTrajectoryAdapter(
        node, CONTROLLERS["joint_trajectory"], "zero", Delivery(0.03, 0.1), LIMITS
    )
    begin_ns = node.now
    path = move(NAMES, np.zeros(2), np.array([1.0, -1.0]), LIMITS, 1.0, begin_ns)
    adapter.send(path, begin_ns)
    node.now = begin_ns + S // 4
    node.jumped_ns = round(set_by_s * S)
    was_ns, node.now = node.now, node.now + node.jumped_ns
    stop = brake_on_arrival(NAMES, path.sample, was_ns, node.now, 0.06, LIMITS) if moves else None
    adapter.stop(stop, node.now)
    rests_ns = adapter.rests_ns()
    assert rests_ns == (0 if stop is None else stop.end_ns + 60 * MS)


SPEED = 2.0


def test_what_a_controller_with_another_clock_executes_is_not_what_was_decided(heard):
    """It approaches a point far ahead, since one joint brakes slowly: the other one, which follows it,
    is far from what was decided."""
    node: Any = Node(heard.append)
    wide, speed = np.full(2, 2.0), np.full(2, SPEED)
    limits = eased(JointLimits(-wide, wide, speed, np.array([40.0, 0.8])))
    adapter = joint_trajectory.JointTrajectoryAdapter(
        node, CONTROLLERS["joint_trajectory"], "zero", Delivery(0.03, 0.1), limits
    )
    buffer = TrajectoryBuffer(NAMES, limits, max_age_s=0.8)
    buffer.reset(np.zeros(2))
    controller = TrajectoryController(NAMES, np.zeros(2), True)
    away, error = 0.0, 0.0
    rest = np.zeros((1, 2))
    adapter.send(Trajectory(NAMES, np.array([node.now + S // 2]), rest, rest), node.now)  # a join
    node.now += S
    for tick in range(800):
        node.now += 10 * MS
        if tick % 5 == 0:
            actions = np.full((32, 2), 1.0 if tick // 100 % 2 else -1.0, np.float32)
            zeros = np.zeros(32, np.float32)
            path = buffer.update(Chunk(actions, node.now, 0.05, tick + 1, tick + 1, zeros), node.now)
            assert path is not None
            adapter.send(path, node.now)
            message = deserialize_message(heard[-1], JointTrajectory)
            sent = convert.trajectory_from_message(message, node.now)
            state = TrajectoryPoint(node.now, np.zeros(2))
            assert controller.accept(sent.select(NAMES), node.now, state)
        executed = controller.state(node.now).position
        commanded = [adapter.commanded(node.now)[name] for name in NAMES]
        error = max(error, np.abs(commanded - executed).max())
        away = max(away, np.abs(buffer.reference(node.now)[0] - executed).max())
    assert away > DELAY_S * SPEED, "a following error"
    assert error < 1e-6


def test_a_trajectory_that_leaves_late_is_told(adapter, heard):
    """The process is stopped after its last look at the clock."""
    node = adapter._node
    path = move(NAMES, np.zeros(2), np.ones(2), LIMITS, start_ns=node.now)
    adapter.send(path, node.now)
    node.now += 100 * MS
    adapter.send(path.since(node.now), node.now)
    assert adapter.values()["left late"] == 0 and not adapter.trouble

    def stopped(message: bytes, for_ms: int) -> None:
        node.now += for_ms * MS
        heard.append(message)

    adapter._publisher.publish = lambda message: stopped(message, 15)
    adapter.send(path.since(node.now), node.now)
    assert adapter.values()["left late"] == 0, "it arrives in time"
    adapter._publisher.publish = lambda message: stopped(message, 2000)
    adapter.send(path.since(node.now), node.now)
    assert adapter.values()["left late"] == 1
    assert "1.9" in adapter.trouble and "late" in adapter.trouble
    node.now += 11 * S
    assert not adapter.trouble
