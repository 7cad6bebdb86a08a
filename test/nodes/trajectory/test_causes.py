"""Why a robot stands is told in its terminal: the causes, each once, with what was found instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import rclpy
from builders import JOINTS, make_checkpoint
from calling import change
from chunks import Policy
from drivers import Drivers
from lifecycle_msgs.msg import Transition
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from running import NodeProcess
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import Motion
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator

ARM, GRIPPER = "arm_controller/joint_trajectory", "gripper_controller/joint_trajectory"


@contextmanager
def listening(nodes: Sequence[str], topics: Sequence[str] = (ARM, GRIPPER)) -> Iterator[list[Node]]:
    """Nodes, by full name, that listen to these topics."""
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    started = []
    for name in nodes:
        namespace, _, base = name.rpartition("/")
        started.append(rclpy.create_node(base, namespace=namespace, context=context))
        for topic in topics:
            started[-1].create_subscription(JointTrajectory, topic, lambda _: None, qos.COMMAND)
    try:
        yield started
    finally:
        for node in started:
            node.destroy_node()
        context.try_shutdown()


def told(*nodes: NodeProcess) -> list[str]:
    """The lines of their logs that say why the robot stands."""
    text = "".join(node.log for node in nodes)
    return re.findall(r"(?:not moving|stopping|no chunks are made): (.*)", text)


def reports(operator: Operator, count: int) -> None:
    """Wait until the trajectory node has reported its statistics so many times more: once a second."""
    begun = len(operator.reports)
    operator.wait(lambda: len(operator.reports) >= begun + count, 90.0, "reports")


def begin(operator: Operator, *nodes: str) -> None:
    """Configure these nodes, which then discover the others, and activate them."""
    assert all(change(operator, node, Transition.TRANSITION_CONFIGURE) for node in nodes)
    assert all(change(operator, node, Transition.TRANSITION_ACTIVATE) for node in nodes)


def wait_for(operator: Operator, policy: Policy, state: int) -> None:
    operator.wait(
        policy.drives(lambda: operator.motions and operator.motions[-1].state == state),
        90.0,
        f"motion state {state}",
    )


def test_commands_that_only_recorders_bags_and_bridges_would_get_hold_the_robot_and_name_the_controllers(
    start, operator, contract
):
    observers = ("rosbag2_recorder", "foxglove_bridge", "_ros2cli_4711", "camera_bag_recorder")
    with (
        Drivers(contract, listen=None),
        listening(observers),
        listening(["/left/jtc"], ["left/arm_controller/joint_trajectory"]),
    ):
        node = start("trajectory", check_controllers=False)
        begin(operator, "trajectory")
        policy = Policy(operator)
        policy.goal = np.full(JOINTS, 0.15)
        operator.wait(policy.drives(lambda: f"nobody listens to /{ARM}" in node.log), 90.0, "cause")
        operator.wait(policy.drives(lambda: f"nobody listens to /{GRIPPER}" in node.log), 90.0, "cause")
        lines = told(node)
        assert len(lines) == 2 and all(f"/{name}" in line for name in observers for line in lines)
        assert "/operator" in "".join(lines)
        assert "/left/arm_controller/joint_trajectory (/left/jtc)" in "".join(lines)
        assert "running" not in node.log and not operator.sent
        reasons = operator.motions[-1].reasons
        assert len(reasons) == 2 and all("nobody listens to " in reason for reason in reasons)
        with listening(["arm_controller", "gripper_controller"]):
            wait_for(operator, policy, Motion.RUNNING)
            operator.wait(policy.drives(lambda: operator.sent), 90.0, "commands")
        wait_for(operator, policy, Motion.HOLDING)
        assert f"nobody listens to /{ARM}" in operator.motions[-1].reasons[0]


@pytest.mark.parametrize("name", ["ros_gz_bridge", "data_recorder"])
def test_a_bridge_from_which_the_joint_states_come_executes_what_it_receives(start, operator, contract, name):
    with Drivers(contract, listen=None, driver=name) as drivers:
        for topic in (ARM, GRIPPER):
            drivers.nodes[0].create_subscription(JointTrajectory, topic, lambda _: None, qos.COMMAND)
        start("trajectory", autostart=True, check_controllers=False)
        policy = Policy(operator)
        policy.goal = np.full(JOINTS, 0.15)
        wait_for(operator, policy, Motion.RUNNING)


def test_each_cause_is_told_once_in_the_terminal_before_there_is_an_instruction(
    start, operator, contract, tmp_path
):
    joints = tuple(f"{name}_joint" for name in contract.joint_names)
    with Drivers(contract, joints=joints) as drivers:
        drivers.silence("wrist")
        model = make_checkpoint(tmp_path / "model")
        trajectory = start("trajectory", check_controllers=False)
        inference = start("inference", model=str(model), steps=2, language_hz=0.0)
        begin(operator, "trajectory", "inference")
        causes = ("camera/wrist has not come yet", "no state of joint shoulder_pan", "no instruction yet")
        for cause in causes:
            trajectory.wait_for_log(cause)
        reports(operator, 4)
        lines = told(inference, trajectory)
        for cause in causes:
            assert sum(line.count(cause) for line in lines) == 1, lines
        assert "elbow_flex_joint" in "".join(lines)
        assert not re.search("camera/front|beginning anew|no chunks", "".join(lines)), lines
        reasons = operator.motions[-1].reasons
        assert [reason.partition(" ")[0] for reason in reasons] == ["camera/wrist", "joint_states", "chunk"]


def test_a_robot_without_inference_and_drivers_is_told_who_is_missing_and_not_what_follows(start, operator):
    with listening(["arm_controller", "gripper_controller", "/left/inference"]):
        node = start("trajectory", check_controllers=False)
        begin(operator, "trajectory")
        node.wait_for_log("/inference does not run")
        reports(operator, 4)
        lines = "; ".join(told(node))
    assert lines.count("nobody publishes /joint_states") == lines.count("/left/inference") == 1, lines
    assert not re.search("camera/|beginning anew|nobody listens", lines), lines
