"""A robot that is told to go home, with the motion of a real trajectory node. Time is given."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from rclpy.serialization import deserialize_message
from rclpy.task import Future
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.contract.contract import ChunkTiming, Contract, Controller, Joint, Stream
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import MotionState, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.adapters.adapter import Adapter
from vla_accel_ros.nodes.adapters.forward_command import ForwardCommandAdapter
from vla_accel_ros.nodes.adapters.joint_trajectory import JointTrajectoryAdapter, TrajectoryMessage
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.trajectory.hold import OPERATOR, RELEASED, Hold
from vla_accel_ros.nodes.trajectory.home import Home
from vla_accel_ros.nodes.trajectory.moves import Outcome, Tolerances
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode
from vla_accel_ros.nodes.trajectory.release import Release
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

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
        self.jumped_ns = 0

    def now_ns(self) -> int:
        return self.now

    def clock_was_set(self) -> bool:
        return False

    def output(self, kind: type, topic: str, profile: object) -> Any:
        return SimpleNamespace(publish=self._hear, get_subscription_count=lambda: 0)

    def get_logger(self) -> Any:
        return MagicMock()

    def get_clock(self) -> Any:
        return SimpleNamespace(ros_time_is_active=True)


class Unheard(JointTrajectoryAdapter):
    """Of a controller that says nothing of itself, as one is that has another clock; ours is its, too."""

    def __init__(self, node: Any, controller: Controller, limits: JointLimits) -> None:
        super().__init__(node, controller, "zero", Delivery(0.03, 0.1), limits)
        self._stamped, self._message = True, TrajectoryMessage(controller.joints)


class Robot:
    """The motion of a trajectory node, two joints, and the controller that does what it is told. A tick is
    10 ms.

    turns: the joints turn without end, and are measured in -pi..pi. silent: joint_states do not come. sag:
    float64 [2], of the joints as they are measured. off: they stay, whatever is commanded. Attributes:
    `path`, where the joints were at each tick, float64 [2]; `sent`, how many messages the controller got;
    `answers`, by service.
    """

    def __init__(self, kind: str, turns: bool = False) -> None:
        bound, self._turning = 20.0 if turns else 2.0, NAMES if turns else ()
        joints = tuple(
            Joint(name, -bound, bound, SPEED, ACCELERATION, "absolute", continuous=turns) for name in NAMES
        )
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
        node: Any = Node(self._hear)  # also where a ManagedNode is asked for
        self.node: Node = node
        self.limits = JointLimits.of(joints)
        self.silent, self.sent, self.position = False, 0, np.zeros(2)
        self.sag, self.off = np.zeros(2), False
        self.path: list[np.ndarray] = []
        self._where = np.zeros(2)
        self.answers: dict[str, Trigger.Response] = {}
        self._calls: dict[str, Coroutine] = {}
        self._controller = JointTrajectoryController(NAMES)
        self._controller.start(self.position, self.node.now)
        if kind == "joint_trajectory":
            self._adapter: Adapter = Unheard(node, contract.controllers[0], self.limits)
        else:
            self._adapter = ForwardCommandAdapter(node, contract.controllers[0], self.limits)
        self._outputs: Any = SimpleNamespace(
            begin=self._adapter.begin,
            rest=self._adapter.rest,
            open=lambda: None,
            rests_ns=self._adapter.rests_ns,
            at_rest=lambda: self._adapter.at_rest(node.now),
            waits=False,
        )
        self.streams = kind == "forward_command"
        self.standing = Hold(node)
        self._begin()
        self.home = Home(self.standing, contract, [self._adapter], 1.0, Tolerances())
        self.release = Release(self.standing, contract, "pause", (), "controller_manager")

    def run(self, seconds: float, goal: float | None = None) -> None:
        """Let time pass; with a goal, a chunk towards it comes every 100 ms."""
        for tick in range(round(seconds * 100)):
            self.node.now += TICK_NS
            self._measure()
            if goal is not None and tick % 10 == 0:
                self._chunk(goal)
            _, stop = self.follower.step(self.node.now)
            self._send(stop)
            self.standing.poll()
            self.home.poll()
            self._adapter.tick(self.node.now)
            self._continue()

    def stall(self, seconds: float) -> None:
        """Let time pass in which the node is not scheduled; the controller does what it was sent."""
        for _ in range(round(seconds * 100)):
            self.node.now += TICK_NS
            self._measure()

    def stands_at(self, position: float) -> None:
        """It has stood there from the beginning."""
        self.position = np.full(2, position)
        self._controller.start(self.position, self.node.now)
        self.run(0.3)

    def call(self, name: str) -> None:
        """Begin a call of ~/home, ~/release or ~/reclaim; what it answers comes with time."""
        if name == "release":
            self.home.cancel(RELEASED)
        service = {
            "home": self.home.home,
            "home again": self.home.home,
            "release": self.release.release,
            "reclaim": self.release.reclaim,
        }
        self._calls[name] = service[name](Trigger.Request(), Trigger.Response())
        self._continue()

    def use_action(self) -> None:
        """Move home by an action instead of the adapter."""
        action: Any = GentleAction(self, self._controller)
        self.home._actions = {CONTROLLERS["joint_trajectory"].topic: action}

    def another_by_action(self) -> None:
        """Another controller is on its way home by its action."""
        outcome: Future = Future()
        outcome.add_done_callback(partial(self.home._ended, "gripper/joint_trajectory"))

        def cancel(why: str) -> bool:
            unfinished = not outcome.done()
            if unfinished:
                outcome.set_result(Outcome(False, why))
            return unfinished

        action: Any = SimpleNamespace(cancel=cancel, poll=lambda: None)
        self.home._actions = {"gripper/joint_trajectory": action}

    def hold(self) -> None:
        self.standing.hold()
        self.home.cancel(OPERATOR)

    def reset(self) -> None:
        """Begin a call of ~/reset; what it answers comes with time."""
        motion, force = SimpleNamespace(begin=lambda: None), SimpleNamespace(begin=lambda follower: None)
        node: Any = SimpleNamespace(active=True, _home=self.home, _follower=self.follower)
        node._hold, node._motion, node._force = self.standing, motion, force
        self._calls["reset"] = TrajectoryNode._on_reset(node, Trigger.Request(), Trigger.Response())
        self._continue()

    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.node.jumped_ns = round(seconds * S)
        self.node.now += self.node.jumped_ns
        self._controller.slip(round(seconds * S))
        braking, setpoint = self.follower.stop_in_new_time(self.node.now), self.follower.joining.setpoint
        self._begin()
        self.follower.joining.begin_at(setpoint)
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
        for _ in range(10):
            self.run(0.1, goal=1.8)
            if self.speed > 1.5:
                break
        assert self.follower.safety.state is MotionState.RUNNING and self.speed > 1.5

    def goes_home(self) -> None:
        """Call ~/home where it stands, and wait until it is fast."""
        self.moves()
        self.run(1.5)
        assert self.follower.safety.state is MotionState.HOLDING and self.speed == 0.0
        self.call("home")
        for _ in range(30):
            self.run(0.05)
            if self.speed > 2.0:
                break
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
        self.follower = ChunkFollower(TrajectoryBuffer(NAMES, self.limits), safety, 0.8)
        self._joints = JointHistory(NAMES, continuous=self._turning)
        motion: Any = SimpleNamespace(begin=lambda: None)
        self.standing.over(self.follower, self._joints, self._outputs, motion)

    def _measure(self) -> None:
        if isinstance(self._adapter, JointTrajectoryAdapter):
            self.position = self._controller.desired(self.node.now).position
        self.path.append(self.position)
        if not self.silent:
            self._where = self._where if self.off else self.position + self.sag
            measured = np.angle(np.exp(1j * self._where)) if self._turning else self._where
            self._joints.add(NAMES, measured, self.node.now)
            measured = self._joints.newest()
            stamps = dict.fromkeys(NAMES, self.node.now)
            self._adapter.measured(dict(zip(NAMES, measured.tolist())), stamps, True)
            self.follower.measured(measured, self.node.now, self.node.now)

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
            if isinstance(message, bytes):
                message = deserialize_message(message, JointTrajectory)
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

    def start(self, share: Trajectory, now_ns: int) -> Future:
        self._controller.accept(share, self._robot.node.now)
        self._outcome, self._end_ns = Future(), share.end_ns
        return self._outcome

    def cancel(self, why: str) -> bool:
        if not self._end_ns or self._outcome.done():
            return False
        gentle = JointLimits(*np.repeat([[-2.0], [2.0], [SPEED], [SPEED / 0.2]], 2, axis=1))
        state = self._controller.desired(self._robot.node.now)
        self._controller.accept(brake(NAMES, state, gentle), self._robot.node.now)
        self._outcome.set_result(Outcome(False, why))
        return True

    def poll(self) -> None:
        if self._end_ns and self._robot.node.now >= self._end_ns and not self._outcome.done():
            self._outcome.set_result(Outcome(True, "reached"))
