"""What controllers of each kind make of the messages of a real node, whatever their robot reports of itself.

The robot does exactly as it is told: positions are those that it was sent, velocities lead on until the next,
or for as long as Servo waits for one. Where that is, and how it moves, keeps the limits though it is reported
late, not at all, or wrongly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from calling import call
from chunks import Policy
from control_msgs.msg import JointJog
from executed import (
    TOLERANCE,
    Broken,
    TrajectoryController,
    integrated,
    judge_integrated,
    judge_path,
    judge_velocities,
)
from geometry_msgs.msg import TwistStamped
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from stand_ins import ALL, ARM, ENCODER_RAD, write_contract
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import Motion
from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.control.chunking.twist import RAMP_S
from vla_accel_ros.control.command_stream import STOOD_S
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

S = 1_000_000_000
RATE_HZ, PERIOD_NS = 50.0, S // 100
LINEAR, ANGULAR = 0.5, 1.0
KINDS: dict[str, dict[str, Any]] = {
    "joint_trajectory": {"topic": "arm_controller/joint_trajectory"},
    "forward_command": {
        "topic": "arm_positions/commands",
        "kind": "forward_command",
        "rate_hz": S / PERIOD_NS,
    },
    "servo_joint": {"topic": "servo_node/delta_joint_cmds", "kind": "servo_joint", "rate_hz": RATE_HZ},
    "servo_twist": {
        "topic": "servo_node/delta_twist_cmds",
        "kind": "servo_twist",
        "rate_hz": RATE_HZ,
        "frame": "base_link",
    },
}
START = np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5])

Report = Callable[["Executed"], tuple[np.ndarray, float]]
"""Where the joints are said to be, and how old that is by its stamp [s]."""
WRONG: dict[str, Report] = {
    "stamped, 60 ms old": lambda robot: (robot.before(0.06), 0.06),
    "stamped, 200 ms old": lambda robot: (robot.before(0.2), 0.2),
    "60 ms old": lambda robot: (robot.before(0.06), 0.0),
    "off by 0.1": lambda robot: (robot.before(0.0) + 0.1 * min(robot.told_s, 1.0), 0.0),
    "off by -0.1": lambda robot: (robot.before(0.0) - 0.1 * min(robot.told_s, 1.0), 0.0),
    "frozen": lambda robot: (robot.froze, 0.0),
}


class Executed:
    """The joints of a contract and the controllers that move them. report: what is told of the joints.
    Attributes: `froze`, where they were when the report began."""

    def __init__(self, operator: Operator) -> None:
        self._operator, contract = operator, operator.contract
        self._names = list(contract.joint_names)
        self.position = dict(zip(self._names, START.tolist()))
        self.hand = np.zeros(6)
        self.froze: np.ndarray = START
        self.was: list[tuple[int, np.ndarray]] = []
        self.ticks: list[tuple[int, np.ndarray]] = []
        self.trajectories: list[tuple[Controller, TrajectoryController]] = []
        self.tell(lambda robot: (robot.before(0.0), 0.0))
        node = operator.node
        for controller in contract.controllers:
            handlers: dict[str, tuple[type, Callable[[Any, Any], None]]] = {
                "joint_trajectory": (JointTrajectory, partial(self._on_trajectory, len(self.trajectories))),
                "forward_command": (Float64MultiArray, self._on_positions),
                "servo_joint": (JointJog, self._on_jog),
                "servo_twist": (TwistStamped, self._on_twist),
            }
            kind, heard = handlers[controller.kind]
            if controller.kind == "joint_trajectory":
                begin = np.array([self.position[name] for name in controller.joints])
                own = TrajectoryController(tuple(controller.joints), begin, True)
                own.starts[0] = operator.now_ns()
                self.trajectories.append((controller, own))
            # rclpy looks at a callback's signature to see whether it wants to know when a message was sent
            node.create_subscription(kind, controller.topic, lambda m, info, heard=heard: heard(m, info), ALL)
        self._joints = node.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
        node.create_timer(0.01, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def tell(self, report: Report) -> None:
        """Report this from now on."""
        self.froze = self.was[-1][1] if self.was else START
        self._told_ns, self._report = self._operator.now_ns(), report

    @property
    def told_s(self) -> float:
        """Since when that is reported."""
        return (self._operator.now_ns() - self._told_ns) * 1e-9

    def before(self, age_s: float) -> np.ndarray:
        """Where the joints were, float64 [D]."""
        until_ns = self._operator.now_ns() - round(age_s * S)
        return next((p for t, p in reversed(self.was) if t <= until_ns), self.was[0][1])

    def _tick(self) -> None:
        now_ns = self._operator.now_ns()
        for controller, own in self.trajectories:
            self.position.update(zip(controller.joints, own.state(now_ns).position.tolist()))
        # an encoder moves no faster, though a busy machine delivers several commands at once
        told = self.was[-1][1] if self.was else START
        told = told + np.clip(np.array(list(self.position.values())) - told, -ENCODER_RAD, ENCODER_RAD)
        self.was.append((now_ns, told))
        del self.was[:-100]
        position, age_s = self._report(self)
        message = JointState(name=self._names, position=array("d", position.tobytes()))
        convert.set_stamp(message.header.stamp, now_ns - round(age_s * S))
        self._joints.publish(message)

    def _on_trajectory(self, number: int, message: JointTrajectory, info: Any) -> None:
        _, own = self.trajectories[number]
        at_ns = max(info["source_timestamp"], own.starts[-1] + 1)
        path = convert.trajectory_from_message(message, at_ns).select(own.joints)
        assert own.accept(path, at_ns, TrajectoryPoint(at_ns, own.state(at_ns).position))

    def _on_positions(self, message: Float64MultiArray, info: Any) -> None:
        self.ticks.append((info["source_timestamp"], np.array(message.data)))
        self.position.update(zip(ARM, message.data))

    def _on_jog(self, message: JointJog, info: Any) -> None:
        self.ticks.append((convert.stamp_ns(message.header.stamp), np.array(message.velocities)))
        led = integrated(self.ticks[-2:], np.array([self.position[name] for name in ARM]))
        self.position.update(zip(ARM, led[-1].tolist()))

    def _on_twist(self, message: TwistStamped, info: Any) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        numbers = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        self.ticks.append((convert.stamp_ns(message.header.stamp), numbers))
        self.hand = integrated(self.ticks[-2:], self.hand)[-1]

    def broken(self) -> list[Broken]:
        """Limits that were exceeded."""
        contract, ticks = self._operator.contract, list(self.ticks)  # another thread adds more
        joints = {joint.name: joint for joint in contract.joints}
        limits, longest_s, found = JointLimits.of(joints[name] for name in ARM), 2.0 / RATE_HZ, []
        for controller, own in self.trajectories:
            assert not own.rejected
            times, positions = own.path(self._operator.now_ns())
            these = JointLimits.of(joints[name] for name in controller.joints)
            found += judge_path(times, positions, these, *own.exceptions)
        kind = contract.controllers[0].kind
        if kind == "forward_command":
            found += judge_arrivals(ticks, limits)
        elif kind == "servo_joint":
            # a tick of the node that a busy machine makes late is late on the way out of the range, too
            late = max(judge_lateness(ticks, longest_s), 0.0)
            wide = JointLimits(limits.lower - late, limits.upper + late, limits.velocity, limits.acceleration)
            found += judge_integrated(ticks, START[:5], wide, longest_s)
        elif kind == "servo_twist":
            for half, most in ((slice(0, 3), LINEAR), (slice(3, 6), ANGULAR)):
                sizes = [(t, v[half]) for t, v in ticks]
                found += judge_velocities(sizes, np.full(3, most), np.full(3, most / RAMP_S), longest_s)
        # the node times its steps by another clock than its stamps
        return [one for one in found if one.what == "position" or one.by > 1.01]


def judge_lateness(ticks: list[tuple[int, np.ndarray]], longest_s: float) -> float:
    """How far the joints went at most while a tick was late."""
    times, speeds = np.array([t for t, _ in ticks]), np.array([v for _, v in ticks])
    late_s = np.clip(np.diff(times) * 1e-9, 0.0, STOOD_S) - longest_s
    return float((np.abs(speeds[:-1]).max(axis=1) * late_s).max())


def judge_arrivals(ticks: list[tuple[int, np.ndarray]], limits: JointLimits) -> list[Broken]:
    """Positions have no stamp, and a busy machine sends some later than they were made. So their speed is
    that of a step that took two periods, their acceleration that over a tenth of a second, and a stream falls
    silent, and begins again, only at rest."""
    times, positions = np.array([t for t, _ in ticks]), np.array([p for _, p in ticks])
    steps, window_ns = np.abs(np.diff(positions, axis=0)), S // 10
    # the setpoint goes to the next command in the period before it, and stays when there is none
    even = np.arange(times[0], times[-1] + S, PERIOD_NS)
    rows = np.searchsorted(times, even, side="right") - 1
    following = np.minimum(rows + 1, len(times) - 1)
    share = np.clip((even - times[following] + PERIOD_NS) / PERIOD_NS, 0.0, 1.0)[:, None]
    at, width = positions[rows] + share * (positions[following] - positions[rows]), window_ns // PERIOD_NS
    speeds = (at[width:] - at[:-width]) / (window_ns / S)
    changes = np.abs(speeds[width:] - speeds[:-width]) / (window_ns / S)
    silent = np.flatnonzero(np.diff(times) > 2 * window_ns)
    around = steps[np.concatenate([silent - 1, silent])]
    slow = limits.acceleration * (2.0 * PERIOD_NS / S) ** 2
    beyond = np.maximum(positions - limits.upper, limits.lower - positions).max()
    found = {
        "position": 1.0 + beyond / (limits.upper - limits.lower).min(),
        "velocity": (steps / (limits.velocity * 2.0 * PERIOD_NS / S)).max(),
        "acceleration": (changes / limits.acceleration).max() / 1.5,
        "silence in motion": (around / slow).max(initial=0.0),
    }
    return [Broken(what, 0.0, float(by)) for what, by in found.items() if by > 1.0 + TOLERANCE]


@pytest.fixture
def contract(tmp_path, request) -> Contract:
    kind = request.node.callspec.params["kind"]
    if kind != "servo_twist":
        return Contract.load(write_contract(tmp_path, KINDS[kind]))
    joints = Contract.load(write_contract(tmp_path, KINDS["servo_joint"])).joints
    keys = ("name", "lower", "upper", "velocity", "acceleration")
    absolute = [{**{key: getattr(joint, key) for key in keys}, "action": "absolute"} for joint in joints]
    twist = {"per": "second", "linear": LINEAR, "angular": ANGULAR}
    path = write_contract(tmp_path, KINDS[kind], joints=absolute, actions="twist", twist=twist)
    return Contract.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_reported_what_a_robot_executes_keeps_the_limits(
    kind, start, operator, contract, tmp_path
):
    robot, policy = Executed(operator), Policy(operator)
    start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))
    joints = {joint.name: joint for joint in contract.joints}
    names = contract.joint_names if kind != "servo_twist" else ("gripper",)
    ends = [np.array([getattr(joints[name], end) for name in names]) for end in ("lower", "upper")]
    if kind == "servo_twist":
        hand = np.array([LINEAR, 0.0, -LINEAR, 0.0, ANGULAR, 0.0]) / 1.5
        ends = [np.append(-hand, ends[0]), np.append(hand, ends[1])]
    turns, last_ns, policy.goal = 0, operator.now_ns(), ends[0]

    def sweep() -> None:
        """The goal is the other end whenever the robot is at one, or no longer on its way there."""
        nonlocal turns, last_ns
        policy.goal = ends[turns % 2]
        at = np.array([robot.position[name] for name in ARM]) if kind != "servo_twist" else robot.hand[:1]
        goal = policy.goal[:5] if kind != "servo_twist" else np.sign(policy.goal[:1]) * 0.3
        if np.abs(at - goal).max() < 0.2 and operator.now_ns() - last_ns > S // 2:
            turns, last_ns = turns + 1, operator.now_ns()

    def swept(more: int, or_held: bool = False) -> None:
        """Wait until it has gone from end to end so often; if it is held, resume, or end there."""
        until = turns + more

        def held() -> bool:
            return any("~/resume" in reason for reason in operator.motions[-1].reasons)

        def done() -> bool:
            sweep()
            return turns >= until or held()

        while turns < until:
            operator.wait(policy.drives(done), 60.0, "sweeps")
            if held():
                operator.wait(
                    policy.drives(lambda: operator.motions[-1].state == Motion.HOLDING), 60.0, "a hold"
                )
                if or_held:
                    return
                operator.resume()

    operator.wait(policy.drives(lambda: operator.motions), 60.0, "word of the node")
    swept(2)
    for name, report in WRONG.items():
        robot.tell(report)
        swept(3, or_held=True)
        robot.tell(lambda robot: (robot.before(0.0), 0.0))
        swept(1)
        assert robot.broken() == [], name
    reset = operator.node.create_client(Trigger, "trajectory/reset")
    assert reset.wait_for_service(60.0)
    beginning, answer = operator.motions[-1].beginning, reset.call_async(Trigger.Request())

    def reset_in_motion() -> bool:
        sweep()
        return answer.done() and operator.motions[-1].beginning > beginning

    operator.wait(policy.drives(reset_in_motion), 60.0, "a new beginning")
    swept(2)
    assert call(operator, Trigger, "trajectory/hold", Trigger.Request()).success
    operator.wait(policy.drives(lambda: operator.motions[-1].state == Motion.HOLDING), 60.0, "a hold")
    assert robot.broken() == []
