"""MoveIt Servo, by joints and by twists: told its type, paused while we hold, commands stamped with the
present.
"""

from __future__ import annotations

import os
import re
import time

import numpy as np
import pytest
from calling import call, change, settled
from chunks import Policy
from control_msgs.msg import JointJog
from geometry_msgs.msg import PoseStamped, TwistStamped
from hand_arms import load, text, ur5e, ur5e_urdf
from lifecycle_msgs.msg import Transition
from moveit_msgs.srv import ServoCommandType
from stand_ins import ALL, ARM, Arm, Parameters, write_contract
from std_srvs.srv import SetBool, Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert

RATE_HZ = 50.0
JOG = {"topic": "servo_node/delta_joint_cmds", "kind": "servo_joint", "rate_hz": RATE_HZ}
TWIST = {
    "topic": "servo_node/delta_twist_cmds",
    "kind": "servo_twist",
    "rate_hz": RATE_HZ,
    "frame": "base_link",
}
POSES = "servo_node/pose_target_cmds"
SLOT = f"wrist-{os.getpid()}"


class Servo:
    """Moves the arm by the velocities it gets, each until the next but no longer than its timeout.

    Attributes: `commands`, as (received [ns], stamp [ns], numbers); `type`; `paused`.
    """

    def __init__(self, operator: Operator, arm: Arm | None = None) -> None:
        self._operator, self._arm = operator, arm
        self.commands: list[tuple[int, int, np.ndarray]] = []
        self.type: int | None = None
        self.paused: bool | None = None
        self.frames: set[str] = set()
        node = operator.node
        node.create_subscription(JointJog, JOG["topic"], self._on_jog, ALL)
        node.create_subscription(TwistStamped, TWIST["topic"], self._on_twist, ALL)
        node.create_subscription(PoseStamped, POSES, self._on_pose, ALL)
        node.create_service(ServoCommandType, "servo_node/switch_command_type", self._on_type)
        node.create_service(SetBool, "servo_node/pause_servo", self._on_pause)

    def _on_jog(self, message: JointJog) -> None:
        now_ns, velocities = self._operator.now_ns(), np.array(message.velocities)
        if self.commands and not self.paused and self._arm is not None:
            passed_s = min((now_ns - self.commands[-1][0]) * 1e-9, 0.1)
            for name, velocity in zip(message.joint_names, self.commands[-1][2]):
                self._arm.position[name] += velocity * passed_s
        self.commands.append((now_ns, convert.stamp_ns(message.header.stamp), velocities))

    def _on_twist(self, message: TwistStamped) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        numbers = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        self.frames.add(message.header.frame_id)
        now_ns = self._operator.now_ns()
        self.commands.append((now_ns, convert.stamp_ns(message.header.stamp), numbers))

    def _on_pose(self, message: PoseStamped) -> None:
        at, turn = message.pose.position, message.pose.orientation
        numbers = np.array([at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w])
        self.frames.add(message.header.frame_id)
        self.commands.append((self._operator.now_ns(), convert.stamp_ns(message.header.stamp), numbers))

    def _on_type(
        self, request: ServoCommandType.Request, response: ServoCommandType.Response
    ) -> ServoCommandType.Response:
        self.type, response.success = request.command_type, True
        return response

    def _on_pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.paused, response.success = request.data, True
        return response


@pytest.fixture
def contract(tmp_path, request) -> Contract:
    if "pose" in request.node.name:
        return load(tmp_path, written_pose(), ur5e_urdf())
    if "twist" in request.node.name:
        changes = {"actions": "twist", "twist": {"per": "second", "linear": 0.5, "angular": 1.0}}
        if "contact" in request.node.name:
            limits = {"force_n": {"yields": 10.0, "stops": 30.0}, "torque_nm": {"yields": 2.0, "stops": 5.0}}
            wrench = {"slot": SLOT, "rate_hz": 1000, "max_age_s": 1.0, **limits}
            changes["force"] = {"wrench": wrench, "retreat": {"m": 0.03, "rest_s": 1.5}}
        return Contract.load(write_contract(tmp_path, TWIST, joints=absolute(tmp_path), **changes))
    return Contract.load(write_contract(tmp_path, JOG))


def written_pose() -> str:
    """A UR5e whose hand Servo leads, and its finger."""
    names = ", ".join(f"j{i}" for i in range(1, 7))
    servo = f"{{topic: {POSES}, kind: servo_pose, joints: [{names}], rate_hz: {RATE_HZ}, frame: l0}}"
    lines = text("preset: libero, relative_to: commanded, ")
    lines = re.sub(r"max_age_s: [.0-9]+", "max_age_s: 1.0", lines)  # a busy machine is late
    lines = lines.replace(f"[{names}, finger_joint]", "[finger_joint]")
    return lines.replace("controllers:\n", f"controllers:\n  - {servo}\n")


def absolute(folder) -> list[dict]:
    """The arm's joints, without deltas: those of a contract of twists."""
    joints = Contract.load(write_contract(folder, JOG)).joints
    keys = ("name", "lower", "upper", "velocity", "acceleration")
    return [{**{key: getattr(joint, key) for key in keys}, "action": "absolute"} for joint in joints]


@pytest.fixture
def servo(operator, arm) -> Servo:
    return Servo(operator, arm)


@pytest.fixture
def policy(operator) -> Policy:
    return Policy(operator)


@pytest.fixture
def node(start, tmp_path, servo):
    return start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))


def wait_s(operator: Operator, seconds: float, drives=lambda condition: condition) -> None:
    end_s = time.monotonic() + seconds
    operator.wait(drives(lambda: time.monotonic() > end_s), seconds + 5.0, "a moment")


def changes_of(servo: Servo) -> tuple[np.ndarray, np.ndarray]:
    """How far numbers change from command to command, and the time between by their stamps [s]."""
    numbers = np.array([command[2] for command in servo.commands])
    stamps = np.array([command[1] for command in servo.commands])
    return np.abs(np.diff(numbers, axis=0)), np.diff(stamps) * 1e-9


def test_the_joints_arrive_by_velocities_and_servo_is_paused_while_they_are_held(
    operator, contract, arm, servo, policy, node
):
    operator.wait(lambda: servo.type == ServoCommandType.Request.JOINT_JOG, 90.0, "command type")
    assert servo.paused and not servo.commands
    policy.goal = np.array([0.5, 0.3, 1.2, 0.1, -0.4, 0.7])
    operator.wait(
        policy.drives(lambda: np.abs(arm.array(ARM) - policy.goal[:5]).max() < 0.03), 90.0, "arm at the goal"
    )
    assert servo.paused is False
    late_s = [(received - stamp) * 1e-9 for received, stamp, _ in servo.commands]
    assert np.median(late_s) < 0.5
    answer = call(operator, Trigger, "trajectory/hold", Trigger.Request())
    assert answer.success
    operator.wait(policy.drives(lambda: servo.paused), 90.0, "pause")
    count = settled(operator, "trajectory", lambda: len(servo.commands))
    assert not np.any([command[2] for command in servo.commands[-4:]])
    wait_s(operator, 0.5, policy.drives)
    assert len(servo.commands) == count
    operator.resume()
    operator.wait(policy.drives(lambda: not servo.paused and len(servo.commands) > count), 90.0, "motion")
    limits = np.array([joint.acceleration for joint in contract.joints if joint.name in ARM])
    change, passed_s = changes_of(servo)
    assert (change <= limits * np.maximum(passed_s, 1 / RATE_HZ)[:, None] * 1.5).all()


def test_deactivated_it_comes_to_rest_and_servo_is_paused(operator, arm, servo, policy, node):
    policy.goal = np.array([1.5, 1.5, 2.5, 2.0, 1.8, 0.5])
    begin = arm.array(ARM)
    operator.wait(policy.drives(lambda: np.abs(arm.array(ARM) - begin).max() > 0.2), 90.0, "motion")
    assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    operator.wait(lambda: servo.paused, 90.0, "pause")
    settled(operator, "trajectory", lambda: len(servo.commands))
    assert np.abs(servo.commands[-1][2]).max() < 0.5


def test_a_released_node_that_ends_leaves_servo_to_who_uses_it(operator, arm, servo, policy, node):
    begin = arm.array(ARM)
    operator.wait(policy.drives(lambda: np.abs(arm.array(ARM) - begin).max() > 0.2), 90.0, "motion")
    assert call(operator, Trigger, "trajectory/release", Trigger.Request()).success
    operator.wait(lambda: servo.paused, 90.0, "pause")
    servo.paused = False  # somebody else goes on with it
    assert change(operator, "trajectory", Transition.TRANSITION_DEACTIVATE)
    assert change(operator, "trajectory", Transition.TRANSITION_ACTIVATE)
    assert not servo.paused


def test_twists_move_the_hand_and_the_gripper_moves_by_its_own_controller(
    operator, contract, arm, servo, policy, node
):
    operator.wait(lambda: servo.type == ServoCommandType.Request.TWIST, 90.0, "command type")
    policy.goal = np.array([0.2, 0.0, -0.1, 0.0, 0.0, 0.6, 0.9])
    operator.wait(
        policy.drives(lambda: servo.commands and np.allclose(servo.commands[-1][2], policy.goal[:6])),
        90.0,
        "twist",
    )
    assert servo.frames == {"base_link"}
    operator.wait(policy.drives(lambda: abs(arm.position["gripper"] - 0.9) < 0.02), 90.0, "gripper")
    # Chunks cease: the hand stops by its ramp, and Servo is paused.
    operator.wait(lambda: servo.paused, 90.0, "pause")
    count = settled(operator, "trajectory", lambda: len(servo.commands))
    assert not servo.commands[-1][2].any()
    operator.wait(lambda: "holding" in node.log, 90.0, "word of it")
    operator.wait(policy.drives(lambda: not servo.paused and len(servo.commands) > count), 90.0, "motion")


def test_poses_lead_the_hand_from_where_it_is_and_servo_is_paused_when_chunks_cease(
    start, operator, contract, policy, tmp_path
):
    servo = Servo(operator)
    start("trajectory", autostart=True, contract=str(tmp_path / "robot.yaml"))
    operator.wait(lambda: servo.type == ServoCommandType.Request.POSE, 90.0, "command type")
    joints = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
    pose = ur5e(joints[:6])
    begin, diagonal = pose[:3, 3], np.diag(pose)[:3]
    policy.goal = np.array([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.03])  # 0.05 * 0.05 m a step

    def lifted() -> bool:
        return bool(servo.commands) and servo.commands[-1][2][2] > begin[2] + 0.02

    operator.wait(policy.drives(lifted, joints), 90.0, "poses that rise")
    np.testing.assert_allclose(servo.commands[0][2][:3], begin, atol=1e-3)
    squares = (1.0 + np.array([*(2.0 * diagonal - diagonal.sum()), diagonal.sum()])) / 4.0  # x, y, z, w
    np.testing.assert_allclose(servo.commands[0][2][3:] ** 2, squares, atol=1e-3)
    assert servo.frames == {"l0"}
    poses, stamps = (np.array([command[k] for command in servo.commands]) for k in (2, 1))
    passed_s = np.minimum(np.diff(stamps) * 1e-9, 2.0 / RATE_HZ)
    assert (np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1) <= 0.5 * passed_s * 1.01 + 1e-9).all()
    operator.wait(lambda: servo.paused, 90.0, "pause")


def test_a_servo_without_services_is_warned_about_once_and_sent_to(
    start, operator, arm, policy, tmp_path, contract
):
    commands: list[JointJog] = []
    operator.node.create_subscription(JointJog, JOG["topic"], commands.append, qos.REPORT)
    node = start("trajectory", autostart=True, contract=str(tmp_path / "contract.yaml"))
    policy.goal = np.array([0.5, 0.3, 1.2, 0.1, -0.4, 0.7])
    operator.wait(policy.drives(lambda: len(commands) > 10), 90.0, "commands")
    assert node.log.count("pause_servo does not answer") == 1
    assert "switch Servo to JOINT_JOG yourself" in node.log


def test_a_servo_without_units_is_refused(start, operator, servo, tmp_path, contract):
    Parameters(operator, "servo_node", moveit_servo__command_in_type="unitless")
    node = start("trajectory", contract=str(tmp_path / "contract.yaml"))
    assert change(operator, "trajectory", Transition.TRANSITION_CONFIGURE)
    assert not change(operator, "trajectory", Transition.TRANSITION_ACTIVATE)
    assert "set moveit_servo.command_in_type to speed_units" in node.log
