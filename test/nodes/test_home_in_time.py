"""What ends ~/home, at any instant: held, released, replaced, deactivated, a clock that jumps, joints that
fall silent. The robot stops within its limits and does nothing else. Time is given.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rclpy.task import Future
from std_srvs.srv import Trigger

from vla_accel_ros.control.braking import brake
from vla_accel_ros.control.buffer import TrajectoryBuffer
from vla_accel_ros.control.follower import ChunkFollower
from vla_accel_ros.control.limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.control.watchdog import Motion, Safety, Watchdog
from vla_accel_ros.engine.types import Chunk
from vla_accel_ros.nodes import convert
from vla_accel_ros.nodes.adapters.forward_command import ForwardCommandAdapter
from vla_accel_ros.nodes.adapters.joint_trajectory import JointTrajectoryAdapter
from vla_accel_ros.nodes.home import Home
from vla_accel_ros.nodes.moves import Outcome, Tolerances
from vla_accel_ros.nodes.release import Release
from vla_accel_ros.nodes.standing import HOMING, OPERATOR, RELEASED, SETTLE_S, Standing
from vla_accel_ros.sensing.contract import ChunkTiming, Contract, Controller, Joint, Stream
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.sim.controller import JointTrajectoryController

S = 1_000_000_000
TICK_NS = S // 100
NAMES = ("a", "b")
HOME = np.array([-1.0, -1.0])
SPEED, ACCELERATION = 3.0, 20.0
CONTROLLERS = {
    "joint_trajectory": Controller("arm/joint_trajectory", NAMES),
    "forward_command": Controller("arm/commands", NAMES, "forward_command", rate_hz=100.0),
}


class Node:
    """What the motion asks of its node: the time, and topics."""

    def __init__(self, hear) -> None:
        self.now, self.active, self._hear = 1000 * S, True, hear

    def now_ns(self) -> int:
        return self.now

    def output(self, kind: type, topic: str, profile: object) -> Any:
        return SimpleNamespace(publish=self._hear)


class Robot:
    """The motion of a trajectory node, two joints, and the controller that does what it is told. A tick is
    10 ms.

    silent: joint_states do not come. Attributes: `path`, where the joints were at each tick, float64 [2];
    `sent`, how many messages the controller got; `answers`, by service.
    """

    def __init__(self, kind: str) -> None:
        joints = tuple(Joint(name, -2.0, 2.0, SPEED, ACCELERATION, "absolute") for name in NAMES)
        contract = Contract(
            robot="arm",
            cameras=(),
            max_skew_s=0.1,
            joint_states=Stream("joint_states", 100.0, 0.3),
            joints=joints,
            controllers=(CONTROLLERS[kind],),
            chunk=ChunkTiming(1 / 30, 0.8),
            home=dict(zip(NAMES, HOME.tolist())),
        )
        self.node, self.limits = Node(self._hear), JointLimits.of(joints)
        self.silent, self.sent, self.position = False, 0, np.zeros(2)
        self.path: list[np.ndarray] = []
        self.answers: dict[str, Trigger.Response] = {}
        self._calls: dict[str, Coroutine] = {}
        self._controller = JointTrajectoryController(NAMES)
        self._controller.start(self.position, self.node.now)
        if kind == "joint_trajectory":
            self._adapter = JointTrajectoryAdapter(self.node, contract.controllers[0], "now")
        else:
            self._adapter = ForwardCommandAdapter(self.node, contract.controllers[0], self.limits)
        self._outputs = SimpleNamespace(begin=self._adapter.begin)
        self.standing = Standing(self.node)
        self._begin()
        self.home = Home(self.standing, contract, [self._adapter], 1.0, Tolerances())
        self.release = Release(self.standing, contract, "pause", (), "controller_manager")

    def run(self, seconds: float, goal: float | None = None) -> None:
        """Let time pass; with a goal, a chunk towards it comes every 100 ms."""
        for tick in range(round(seconds * 100)):
            self.node.now += TICK_NS
            self._feel()
            if goal is not None and tick % 10 == 0:
                self._chunk(goal)
            _, stop = self.follower.step(self.node.now)
            self._send(stop)
            self.standing.poll()
            self.home.poll()
            self._adapter.tick(self.node.now)
            self._continue()

    def call(self, name: str) -> None:
        """Begin a call of ~/home or ~/release; what it answers comes with time."""
        if name == "release":
            self.home.cancel(RELEASED)
        service = {"home": self.home.home, "home again": self.home.home, "release": self.release.release}
        self._calls[name] = service[name](Trigger.Request(), Trigger.Response())
        self._continue()

    def use_action(self) -> None:
        """Move home by an action instead of the adapter."""
        self.home._actions = {CONTROLLERS["joint_trajectory"].topic: GentleAction(self, self._controller)}

    def hold(self) -> None:
        self.standing.hold()
        self.home.cancel(OPERATOR)

    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.node.now += round(seconds * S)
        self._controller.slip(round(seconds * S))
        braking = self.follower.stop_in_new_time(self.node.now)
        self._begin()
        self._adapter.stop(braking, self.node.now)
        if braking is not None:
            self.standing.braking(braking.end_ns)
        self.home.cancel("ROS time has jumped", jumped=True)

    def deactivate(self) -> None:
        self.node.active = False
        self.home.cancel("the trajectory node was deactivated")
        self.standing.abandon()
        self._continue()

    def activate(self, later_s: float) -> None:
        """Begin anew, by a clock that was set meanwhile; the controller stands."""
        self.node.now += round(later_s * S)
        self._controller.start(self.position, self.node.now)
        self._begin()
        self._adapter.begin()
        self.node.active = True

    def moves(self) -> None:
        """Chunks move it, fast."""
        self.run(0.3)
        self.run(0.7, goal=1.8)
        assert self.follower.safety.state is Motion.RUNNING and self.speed > 1.0

    def goes_home(self) -> None:
        """Call ~/home where it stands, and wait until it is fast."""
        self.moves()
        self.run(1.5)
        assert self.follower.safety.state is Motion.HOLDING and self.speed == 0.0
        self.call("home")
        self.run(0.55)
        assert self.speed > 2.0 and not self.answers

    @property
    def speed(self) -> float:
        return float(np.abs(self.path[-1] - self.path[-2]).max() * 100)

    def assert_smooth(self) -> None:
        """No step is harder than the limits allow."""
        velocity = np.diff(self.path, axis=0) * 100
        assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= ACCELERATION * 1.05

    def _begin(self) -> None:
        safety = Safety(Watchdog({"joint_states": 0.3, "chunk": 0.8}))
        self.follower = ChunkFollower(TrajectoryBuffer(NAMES, self.limits), safety, (), 0.8)
        self._joints = JointHistory(NAMES)
        motion = SimpleNamespace(begin=lambda: None)
        self.standing.over(self.follower, self._joints, self._outputs, motion)

    def _feel(self) -> None:
        if isinstance(self._adapter, JointTrajectoryAdapter):
            self.position = self._controller.desired(self.node.now).position
        self.path.append(self.position)
        if not self.silent:
            self._joints.add(NAMES, self.position, self.node.now)
            self.follower.felt(self.position, self.node.now, self.node.now)

    def _chunk(self, goal: float) -> None:
        stamp_ns = self.node.now - 5 * TICK_NS
        start, _ = self.follower.buffer.reference(stamp_ns)
        ramp = np.linspace(start, np.full(2, goal), 33)[1:].astype(np.float32)
        chunk = Chunk(ramp, stamp_ns, 1 / 30, 1, 1, np.zeros(32, np.float32))
        self._send(self.follower.follow(chunk, self.node.now))

    def _send(self, trajectory: Trajectory | None) -> None:
        if trajectory is not None:
            self._adapter.send(trajectory, self.node.now)

    def _hear(self, message: Any) -> None:
        self.sent += 1
        if isinstance(self._adapter, JointTrajectoryAdapter):
            now = self.node.now
            self._controller.accept(convert.trajectory_from_message(message, now), now)
        else:
            self.position = np.array(message.data)

    def _continue(self) -> None:
        for name, call in list(self._calls.items()):
            try:
                call.send(None)
            except StopIteration as end:
                self.answers[name] = end.value
                del self._calls[name]


class GentleAction:
    """The action of a controller that takes a fifth of a second to brake, in its own way, when a goal is
    cancelled."""

    def __init__(self, robot: Robot, controller: JointTrajectoryController) -> None:
        self._robot, self._controller = robot, controller
        self._outcome, self._end_ns = Future(), 0

    def start(self, share: Trajectory) -> Future:
        self._controller.accept(share, self._robot.node.now)
        self._outcome, self._end_ns = Future(), share.end_ns
        return self._outcome

    def cancel(self, why: str) -> bool:
        if not self._end_ns or self._outcome.done():
            return False
        gentle = JointLimits([-2.0] * 2, [2.0] * 2, [SPEED] * 2, [SPEED / 0.2] * 2)
        state = self._controller.desired(self._robot.node.now)
        self._controller.accept(brake(NAMES, state, gentle), self._robot.node.now)
        self._outcome.set_result(Outcome(False, why))
        return True

    def poll(self) -> None:
        if self._end_ns and self._robot.node.now >= self._end_ns and not self._outcome.done():
            self._outcome.set_result(Outcome(True, "reached"))


@pytest.fixture(params=CONTROLLERS)
def robot(request) -> Robot:
    return Robot(request.param)


@pytest.fixture
def waiting(robot) -> Robot:
    """In fast motion by chunks, ~/home was just called."""
    robot.moves()
    robot.call("home")
    robot.run(0.02)
    assert robot.follower.safety.state is Motion.STOPPING
    return robot


def assert_stays(robot: Robot) -> None:
    """It has come to rest, gets nothing more, and answered that ~/home did not succeed."""
    robot.run(0.5)
    sent, position = robot.sent, robot.path[-1]
    robot.run(3.0)
    np.testing.assert_array_equal(robot.path[-1], position)
    assert robot.sent == sent and not robot.answers["home"].success
    assert np.abs(position - HOME).min() > 0.2
    robot.assert_smooth()


def assert_works(robot: Robot) -> None:
    """Chunks move it, and it goes home when it is called to."""
    assert HOMING not in robot.standing.holds
    robot.run(1.0, goal=0.5)
    assert robot.follower.safety.state is Motion.RUNNING
    robot.call("home again")
    robot.run(3.0)
    assert robot.answers["home again"].success
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)


def test_a_call_that_waits_for_the_stand_and_is_held_never_moves(waiting):
    waiting.hold()
    assert_stays(waiting)
    assert waiting.answers["home"].message == OPERATOR
    waiting.standing.resume()
    assert_works(waiting)


def test_a_call_that_waits_for_the_stand_and_is_released_never_moves(waiting):
    waiting.call("release")
    assert_stays(waiting)
    assert waiting.answers["release"].success
    assert waiting.release.reclaim(Trigger.Request(), Trigger.Response()).success
    assert_works(waiting)


@pytest.mark.parametrize("seconds", [-500.0, -0.3, 500.0])
def test_a_call_that_waits_for_the_stand_while_the_clock_jumps_never_moves(waiting, seconds):
    waiting.jump(seconds)
    assert_stays(waiting)
    assert waiting.answers["home"].message == "ROS time has jumped"
    assert_works(waiting)


def test_a_second_call_while_the_first_waits_takes_its_place(waiting):
    waiting.call("home again")
    waiting.run(4.0)
    assert waiting.answers["home"].message == "replaced by another move"
    assert waiting.answers["home again"].success and HOMING not in waiting.standing.holds
    waiting.assert_smooth()


def test_two_calls_that_wait_are_both_void_when_it_is_held(waiting):
    waiting.call("home again")
    waiting.hold()
    assert_stays(waiting)
    assert not waiting.answers["home again"].success and HOMING not in waiting.standing.holds


def test_a_call_that_waits_for_the_stand_answers_when_the_node_is_deactivated(waiting):
    waiting.deactivate()
    assert "not active" in waiting.answers["home"].message and HOMING not in waiting.standing.holds


def test_it_does_not_go_home_from_where_the_joints_were_long_ago(robot):
    robot.moves()
    robot.silent = True
    robot.run(1.5, goal=1.8)
    position = robot.path[-1]
    robot.call("home")
    answer = robot.answers["home"]
    assert not answer.success and answer.message.startswith("joint_states is ")
    assert answer.message.endswith(": look at its driver")
    robot.run(0.5)
    np.testing.assert_array_equal(robot.path[-1], position)
    assert HOMING not in robot.standing.holds


def test_joints_that_fall_silent_before_the_stand_are_late_for_home():
    robot = Robot("joint_trajectory")
    robot.moves()
    robot.silent = True
    robot.run(0.25, goal=1.8)
    robot.call("home")
    robot.run(0.5)
    assert robot.answers["home"].message.endswith(": look at its driver")
    robot.silent = False
    assert_works(robot)


def test_a_move_in_motion_is_held_within_limits(robot):
    robot.goes_home()
    robot.hold()
    assert not robot.answers
    assert_stays(robot)
    assert OPERATOR in robot.answers["home"].message
    robot.standing.resume()
    assert_works(robot)


def test_a_move_in_motion_is_released_when_it_stands(robot):
    robot.goes_home()
    robot.call("release")
    while robot.speed > ACCELERATION * 0.02:
        assert not robot.answers
        robot.run(0.01)
    assert_stays(robot)
    assert robot.answers["release"].success


@pytest.mark.parametrize("silent", [False, True])
def test_a_move_by_an_action_is_released_when_the_joints_stand_or_long_after_they_were_heard(silent):
    robot = Robot("joint_trajectory")
    robot.use_action()
    robot.goes_home()
    robot.silent = silent
    robot.call("release")
    while robot.speed > ACCELERATION * 0.01:
        robot.run(0.01)
        assert "release" not in robot.answers
    robot.run(SETTLE_S if silent else 0.4)
    assert robot.answers["release"].success
    assert_stays(robot)


def test_a_move_by_an_action_ends_at_home():
    robot = Robot("joint_trajectory")
    robot.use_action()
    robot.moves()
    assert_works(robot)


def test_a_move_that_replaces_another_begins_when_it_stands(robot):
    robot.goes_home()
    robot.call("home again")
    robot.run(0.8, goal=1.8)  # chunks come all the time
    assert list(robot.standing.holds) == [HOMING] and robot.speed > 1.0
    robot.run(4.0)
    assert "replaced by another move" in robot.answers["home"].message
    assert robot.answers["home again"].success
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)
    robot.assert_smooth()


def test_a_move_in_motion_whose_joints_fall_silent_stops_within_limits(robot):
    robot.goes_home()
    robot.silent = True
    assert_stays(robot)
    assert "stopped, because joint_states is" in robot.answers["home"].message


@pytest.mark.parametrize("seconds", [-500.0, -0.3, 500.0])
def test_a_move_in_motion_stops_within_limits_when_the_clock_jumps(robot, seconds):
    robot.goes_home()
    robot.jump(seconds)
    assert_stays(robot)
    assert_works(robot)


@pytest.mark.parametrize("name", ["home again", "release"])
def test_deactivated_while_it_brakes_all_calls_answer(robot, name):
    robot.goes_home()
    robot.call(name)
    robot.run(0.02)
    assert not robot.answers
    robot.deactivate()
    assert "not active" in robot.answers[name].message and not robot.answers["home"].success
    assert not robot.standing.holds


def test_brakes_that_a_clock_was_set_back_behind_do_not_last_for_ever(robot):
    robot.goes_home()
    robot.hold()
    robot.run(0.02)
    robot.deactivate()
    robot.activate(later_s=-500.0)
    robot.standing.resume()
    assert_works(robot)


def test_a_node_that_was_deactivated_as_it_came_to_rest_does_not_stand():
    robot = Robot("forward_command")
    robot.moves()
    call = robot.standing.stand(RELEASED)
    call.send(None)
    robot.run(0.5)
    assert robot.follower.safety.state is Motion.HOLDING
    robot.deactivate()
    with pytest.raises(StopIteration) as end:
        call.send(None)
    assert end.value.value is False and not robot.standing.holds
