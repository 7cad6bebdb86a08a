"""A robot of two joints whose motion is moved by hand, in simulated time: chunks, orders, clocks, actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from world import Clock, Graph, Parameters, Process, StreamLine, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import HOMING, MotionState
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.orders.homing import AT_HOME, Outcome
from vla_accel_ros.control.robot import Robot as Moved
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.sim.controller import JointTrajectoryController
from vla_accel_ros.types import Chunk

S = 1_000_000_000
TICK_NS = S // 100
NAMES = ("a", "b")
HOME = np.array([-1.0, -1.0])
SPEED, ACCELERATION = 3.0, 20.0
KINDS = ("joint_trajectory", "forward_command")
ARM = "c0/joint_trajectory"


class Robot:
    """Two joints, and the controller that does what it is told. A tick is 10 ms. ROS time is simulated.

    turns: the joints turn without end, and are measured in -pi..pi. silent: joint_states do not come. sag:
    float64 [2], of the joints as they are measured. off: they stay, whatever is commanded. by_action: the
    controller goes home by its action; another: so does the controller of a gripper. tasks: how fast chunks
    are played. Attributes: `path`, where the joints were at each tick, float64 [2]; `sent`, how many messages
    the controller got; `answers`, by service.
    """

    def __init__(
        self,
        kind: str,
        turns: bool = False,
        by_action: bool = False,
        speed: float = 1.0,
        another: bool = False,
        tasks: str = "1",
    ) -> None:
        bound, self._turning, self.now = 20.0 if turns else 2.0, turns, 1000 * S
        shape = np.full(2, bound)
        self.limits = JointLimits(
            -shape, shape, np.full(2, SPEED), np.full(2, ACCELERATION), np.full(2, turns)
        )
        self.streams = kind == "forward_command"
        self.silent, self.sent, self.position = False, 0, np.zeros(2)
        self.sag, self.off = np.zeros(2), False
        self.path: list[np.ndarray] = []
        self._measured = np.zeros(2)
        self._controller = JointTrajectoryController(NAMES)
        self._controller.start(self.position, self.now)
        home = dict(zip(NAMES, HOME.tolist()))
        joints = make_joints(NAMES, self.limits)
        actions: dict[str, Any] = {ARM: GentleAction(self, self._controller)} if by_action else {}
        if another:
            actions["gripper/joint_trajectory"] = EndlessAction()
        contract = make_contract(kind, joints, home=home)
        parameters = Parameters(Options(move_speed=speed, speed=tasks))
        self.clock, self.graph = Clock(lambda: self.now, simulated=True), Graph()
        self.node = Process(contract, parameters, self.clock, self._line, None, False, actions, self.graph)

    def _line(self, controller: Controller) -> Any:
        return StreamLine(self._command) if controller.rate_hz else TrajectoryLine(self._hear, heard=False)

    def run(self, seconds: float, goal: float | None = None) -> None:
        """Let time pass; with a goal, a chunk towards it comes every 100 ms."""
        for tick in range(round(seconds * 100)):
            self.now += TICK_NS
            self._measure()
            if goal is not None and tick % 10 == 0:
                self._chunk(goal)
            if self.robot.active:
                self.node.watch()
                self.node.tick()

    def stall(self, seconds: float) -> None:
        """Let time pass in which the node is not scheduled; the controller does what it was sent."""
        for _ in range(round(seconds * 100)):
            self.now += TICK_NS
            self._measure()

    def stands_at(self, position: float) -> None:
        """It has stood there from the beginning."""
        self.position = np.full(2, position)
        self._controller.start(self.position, self.now)
        self.run(0.3)

    def call(self, name: str) -> None:
        """Begin a call of a service; its answer comes with time."""
        self.node.order(name.split()[0], name)

    def hold(self) -> None:
        self.node.order("hold")

    def reset(self) -> None:
        self.node.order("reset")

    def resume(self) -> None:
        self.node.order("resume")

    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.clock.jumped_ns = round(seconds * S)
        self.now += self.clock.jumped_ns
        self._controller.slip(self.clock.jumped_ns)
        self.node.motion.jump()

    def deactivate(self) -> None:
        for _ in self.node.motion.deactivate():
            self.now += TICK_NS
            self._measure()
        self.node.collect()

    def activate(self, later_s: float) -> None:
        """Begin anew, by a clock that was set meanwhile; the controller stands."""
        self.now += round(later_s * S)
        self._controller.start(self.position, self.now)
        self.node.motion.activate()

    def moves(self) -> None:
        """Chunks move it, fast."""
        self.run(0.3)
        for _ in range(10):
            self.run(0.1, goal=1.8)
            if self.speed > 1.5:
                break
        assert self.state is MotionState.RUNNING and self.speed > 1.5

    def goes_home(self) -> None:
        """Call ~/home where it stands, and wait until it is fast."""
        self.moves()
        self.run(1.5)
        assert self.state is MotionState.HOLDING and self.speed == 0.0
        self.call("home")
        for _ in range(30):
            self.run(0.05)
            if self.speed > 2.0:
                break
        assert self.speed > 2.0 and not self.answers

    @property
    def answers(self) -> dict[str, tuple[bool, str]]:
        return self.node.answers

    @property
    def robot(self) -> Moved:
        return self.node.robot

    @property
    def state(self) -> MotionState:
        return self.robot.follower.safety.state

    @property
    def holds(self) -> Holds:
        return self.robot.holds

    @property
    def speed(self) -> float:
        return float(np.abs(self.path[-1] - self.path[-2]).max() * 100)

    def assert_smooth(self) -> None:
        """No step is harder than the limits allow."""
        velocity = np.diff(self.path, axis=0) * 100
        assert np.abs(np.diff(velocity, axis=0)).max() * 100 <= ACCELERATION * 1.05

    def _measure(self) -> None:
        if not self.streams:
            self.position = self._controller.desired(self.now).position
        self.path.append(self.position)
        if not self.silent:
            self._measured = self._measured if self.off else self.position + self.sag
            measured = np.angle(np.exp(1j * self._measured)) if self._turning else self._measured
            self.node.joints(NAMES, measured, self.now)

    def _chunk(self, goal: float) -> None:
        stamp_ns = self.now - 5 * TICK_NS
        start, _ = self.robot.follower.buffer.reference(stamp_ns)
        ramp = np.linspace(start, np.full(2, goal), 33)[1:].astype(np.float32)
        self.node.chunk(Chunk(ramp, stamp_ns, 1 / 30, 1, 1, np.zeros(32, np.float32)))

    def _hear(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self.sent += 1
        self._controller.accept(path, self.now)

    def _command(self, position: np.ndarray) -> None:
        self.sent += 1
        self.position = position.copy()


class GentleAction:
    """The action of a controller that takes a fifth of a second to brake, in its own way, when a goal is
    cancelled."""

    def __init__(self, robot: Robot, controller: JointTrajectoryController) -> None:
        self._robot, self._controller = robot, controller
        self.outcome: Outcome | None = None
        self._end_ns = 0

    def start(self, trajectory: Trajectory, now_ns: int) -> None:
        self._controller.accept(trajectory, self._robot.now)
        self.outcome, self._end_ns = None, trajectory.end_ns

    def cancel(self, why: str) -> bool:
        if not self._end_ns or self.outcome is not None:
            return False
        gentle = JointLimits(*np.repeat([[-2.0], [2.0], [SPEED], [SPEED / 0.2]], 2, axis=1))
        state = self._controller.desired(self._robot.now)
        self._controller.accept(brake(NAMES, state, gentle), self._robot.now)
        self.outcome = Outcome(False, why)
        return True

    def poll(self) -> None:
        if self._end_ns and self._robot.now >= self._end_ns and self.outcome is None:
            self.outcome = Outcome(True, "reached")


class EndlessAction:
    """The action of another controller, which is always on its way."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None

    def start(self, trajectory: Trajectory, now_ns: int) -> None:
        self.outcome = None

    def cancel(self, why: str) -> bool:
        self.outcome, unfinished = self.outcome or Outcome(False, why), self.outcome is None
        return unfinished

    def poll(self) -> None:
        pass


def assert_stays(robot: Robot) -> None:
    """It has come to rest, gets nothing new, and answered that ~/home did not succeed."""
    robot.run(0.7)
    sent, position = robot.sent, robot.path[-1]
    robot.run(3.0)
    np.testing.assert_array_equal(robot.path[-1], position)
    assert robot.streams or robot.sent == sent  # a stream says the same all the time
    assert not robot.answers["home"][0]
    assert np.abs(position - HOME).min() > 0.1
    robot.assert_smooth()


def assert_works(robot: Robot) -> None:
    """It stays until it is resumed; then chunks move it, and it goes home when it is called to, and stays."""
    assert HOMING not in robot.holds.holds
    if robot.holds.holds:
        robot.run(0.02)
        stood = robot.path[-1]
        robot.run(1.0, goal=0.5)
        np.testing.assert_array_equal(robot.path[-1], stood)
        robot.resume()
    robot.run(1.0, goal=0.5)
    assert robot.state is MotionState.RUNNING
    robot.call("home again")
    robot.run(3.0, goal=0.5)
    assert robot.answers["home again"][0]
    assert list(robot.holds.holds) == [AT_HOME]
    np.testing.assert_allclose(robot.path[-1], HOME, atol=1e-6)
