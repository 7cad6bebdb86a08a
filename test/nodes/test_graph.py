"""The nodes look at the live graph: what cannot work is refused at configure, what comes later is said."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import pytest
import rclpy
from builders import make_checkpoint
from calling import change
from lifecycle_msgs.msg import Transition
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from running import NodeProcess, until
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.contract.checks.findings import OK
from vla_accel_ros.contract.checks.graph_check import Qos, inputs, outputs, states
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.graph import look, qos_of
from vla_accel_ros.nodes.running.environment import demo_contract


@pytest.fixture
def driver(ros_domain) -> Iterator[Node]:
    """A node of the robot's, which is set up wrongly by the tests."""
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("driver", context=context)
    yield node
    node.destroy_node()
    context.try_shutdown()


def test_the_simulated_robot_fits(start, operator, contract):
    start("sim_robot")
    topics = [*inputs(contract), *outputs(contract)]
    until(
        lambda: all(finding.level == OK for finding in look(operator.node, topics)),
        90.0,
        "fitting graph",
        lambda: "\n".join(map(str, look(operator.node, topics))),
    )


def refused(operator: Operator, name: str, node: NodeProcess) -> str:
    """The log once the node has refused to configure. It may be asked before it has discovered the driver."""

    def configure() -> bool:
        if not change(operator, name, Transition.TRANSITION_CONFIGURE):
            return True
        assert change(operator, name, Transition.TRANSITION_CLEANUP)
        return False

    until(configure, 90.0, f"refusal of {name}", lambda: node.log)
    return node.log


def test_a_camera_of_another_type_is_refused_at_configure(start, operator, driver, contract, tmp_path):
    driver.create_publisher(CompressedImage, contract.cameras[0].topic, qos.SENSOR)
    node = start("inference", model=str(make_checkpoint(tmp_path / "policy")))
    assert (
        "cannot configure: cameras.front.topic: /camera/front/image_raw is published by /driver as "
        "sensor_msgs/msg/CompressedImage, not sensor_msgs/msg/Image; write transport: compressed in "
        "cameras.front, or another topic"
    ) in refused(operator, "inference", node)


def test_a_controller_of_another_type_is_refused_at_configure(start, driver, contract):
    renamed = replace(
        contract, controllers=contract.controllers[1:]
    )  # an operator listens to controllers, too
    driver.create_subscription(Float64MultiArray, contract.controllers[0].topic, lambda _: None, qos.COMMAND)
    with Operator(renamed) as operator:
        log = refused(operator, "trajectory", start("trajectory"))
    assert (
        "cannot configure: controllers[0].topic: /arm_controller/joint_trajectory is heard by /driver" in log
    )
    assert "write kind: forward_command in controllers[0], or another topic" in log


def test_qos_overridden_so_that_nothing_arrives_is_refused(driver, contract):
    topic = contract.joint_states.topic
    best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    driver.create_publisher(JointState, topic, best_effort)
    context = rclpy.Context()
    overridden = "qos_overrides./joint_states.subscription.reliability:=reliable"
    rclpy.init(args=["--ros-args", "-p", overridden], context=context)
    node = rclpy.create_node("us", context=context)
    try:
        node.create_subscription(
            JointState, topic, lambda _: None, copy(qos.SENSOR), qos_overriding_options=qos.overridable()
        )
        until(lambda: node.count_publishers(topic), 90.0, "publisher")
        assert "we request reliable, so nothing arrives" in str(look(node, [states(contract)])[0])
    finally:
        node.destroy_node()
        context.try_shutdown()
    assert look(driver, [states(contract, Qos("best_effort"))])[0].fact == "nobody publishes /joint_states"


def test_what_overrides_one_stream_overrides_no_other(start, operator, contract, tmp_path):
    front, joints = f"/{contract.cameras[0].topic}", f"/{contract.joint_states.topic}"
    override = {f"qos_overrides.{front}.subscription.reliability": "reliable"}
    start("inference", autostart=True, model=str(make_checkpoint(tmp_path / "policy")), **override)

    def reliability(topic: str) -> set[str]:
        subscriptions = operator.node.get_subscriptions_info_by_topic(topic)
        profiles = [info.qos_profile for info in subscriptions if info.node_name == "inference"]
        return {qos_of(profile).reliability for profile in profiles}

    until(lambda: reliability(front) and reliability(joints), 90.0, "subscriptions of inference")
    assert (reliability(front), reliability(joints)) == ({"reliable"}, {"best_effort"})


def test_a_wrong_driver_that_starts_later_is_said_in_log_and_diagnostics(start, operator, contract):
    node = start("trajectory", autostart=True)
    node.wait_for_log("nobody publishes /joint_states; start its driver, or fix joint_states.topic")
    operator.wait(lambda: operator.diagnostics.get("trajectory: graph"), 90.0, "diagnostics")
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    newcomer = rclpy.create_node("late", context=context)
    try:
        newcomer.create_publisher(Image, contract.joint_states.topic, qos.SENSOR)
        finding = (
            "/joint_states is published by /late as sensor_msgs/msg/Image, not sensor_msgs/msg/JointState"
        )
        operator.wait(lambda: finding in operator.diagnostics["trajectory: graph"].message, 90.0, "finding")
        node.wait_for_log(finding)
    finally:
        newcomer.destroy_node()
        context.try_shutdown()


def test_joints_of_an_absolute_topic_reach_a_robot_in_a_namespace(start, driver, tmp_path, contract):
    file = tmp_path / "robot.yaml"
    text = demo_contract().read_text()
    file.write_text(text.replace("joint_states: {topic: joint_states", "joint_states: {topic: /joint_states"))
    start("trajectory", namespace="arm", contract=str(file), autostart=True)
    until(lambda: driver.count_subscribers("/joint_states") > 0, 90.0, "subscription to /joint_states")
    assert not driver.count_subscribers("/arm/joint_states")
