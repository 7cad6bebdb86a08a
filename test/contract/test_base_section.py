"""The section `base`: which numbers of rows and states are the base's, and a sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from good_contract import GOOD, SERVO

from vla_accel_ros.contract.checks.graph_check import Endpoint, Qos, inputs, judge, outputs
from vla_accel_ros.contract.contract import Contract

# LeKiwi counts m/s and degrees a second; this one's driver turns the other way round
BASE = {
    "topic": "base_controller/cmd_vel",
    "message": "TwistStamped",
    "frame": "base_link",
    "rate_hz": 20,
    "axes": {"yaw": -0.017453292519943295, "x": 1.0, "y": 1.0},
    "linear": 0.4,
    "angular": 1.0,
    "linear_acceleration": 0.8,
    "angular_acceleration": 2.0,
    "timeout_s": 0.5,
    "odometry": "base_controller/odom",
}
NAMES = ("base.angular.z", "base.linear.x", "base.linear.y")


def load(folder: Path, base: object, text: str = GOOD) -> Contract:
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(text), "base": base}, sort_keys=False))
    return Contract.load(path)


def test_base_section_puts_its_axes_at_the_end_of_rows_and_states_in_its_order(tmp_path):
    contract = load(tmp_path, BASE)
    assert contract.action_names == ("a", "b", *NAMES) == contract.state_names
    assert contract.joint_names == ("a", "b")
    assert contract.base.places == (5, 0, 1)
    assert not contract.delta_mask[2:].any() and not contract.turns[2:].any()


def test_base_section_counts_in_the_units_of_its_axes_both_ways(tmp_path):
    contract = load(tmp_path, BASE)
    robot = contract.to_robot([[0.0, 0.0, 90.0, 0.3, -0.2]])
    np.testing.assert_allclose(robot[0, 2:], [-np.pi / 2, 0.3, -0.2])
    np.testing.assert_allclose(contract.to_policy([0.0, 0.0, np.pi / 2, 0.3, -0.2])[2:], [-90.0, 0.3, -0.2])


def test_base_section_limits_each_axis_and_the_twist_by_its_half(tmp_path):
    base = load(tmp_path, BASE).base
    limits = [(axis.lower, axis.upper, axis.velocity, axis.acceleration) for axis in base.axes]
    assert limits == [(-1.0, 1.0, 1.0, 2.0), (-0.4, 0.4, 0.4, 0.8), (-0.4, 0.4, 0.4, 0.8)]
    assert (base.speeds, base.accelerations) == ((0.4, 1.0), (0.8, 2.0))
    controller = base.controller
    assert (controller.topic, controller.frame, controller.rate_hz) == (BASE["topic"], "base_link", 20.0)


def test_base_section_without_odometry_is_none_of_the_state(tmp_path):
    contract = load(tmp_path, {key: value for key, value in BASE.items() if key != "odometry"})
    assert contract.state_names == ("a", "b") and contract.to_policy([0.0, 0.0]).shape == (2,)
    assert "base.odometry" not in [topic.about for topic in inputs(contract)]


def test_base_section_stands_beside_twists_of_a_hand(tmp_path):
    contract = load(tmp_path, BASE, SERVO)
    assert contract.action_names[:6] == (
        "linear.x",
        "linear.y",
        "linear.z",
        "angular.x",
        "angular.y",
        "angular.z",
    )
    assert contract.action_names[6:] == ("b", *NAMES)


@pytest.mark.parametrize("message", ["TwistStamped", "Twist"])
def test_base_section_wants_its_message_on_its_topic_and_names_the_other(tmp_path, message):
    base = BASE | {"message": message}
    if message == "Twist":
        del base["frame"]
    contract = load(tmp_path, base)
    topic = next(topic for topic in outputs(contract) if topic.about == "base.topic")
    assert (topic.topic, topic.type) == (BASE["topic"], f"geometry_msgs/msg/{message}")
    other = {"Twist": "TwistStamped", "TwistStamped": "Twist"}[message]
    ends = [Endpoint("/diff_drive", f"geometry_msgs/msg/{other}", Qos())]
    (finding,) = judge(topic, "/base_controller/cmd_vel", ends, {})
    assert f"message: {other}" in str(finding) and " base" in str(finding)
    assert [t.type for t in inputs(contract) if t.about == "base.odometry"] == ["nav_msgs/msg/Odometry"]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"message": "Pose"}, "base.message", "Pose"),
        ({"topic": "/cmd_vel"}, "base.topic", "/cmd_vel"),
        ({"topic": "arm/joint_trajectory"}, "base.topic", "arm/joint_trajectory"),
        ({"rate_hz": 5}, "base.rate_hz", "5"),
        ({"axes": {"z": 1.0}}, "base.axes.z", "yaw"),
        ({"axes": {"x": 0}}, "base.axes.x", "0"),
        ({"axes": {}}, "base.axes", "{}"),
        ({"linear": 0}, "base.linear", "0"),
        ({"linear_acceleration": 0.1}, "base.linear_acceleration", "0.1"),
        ({"timeout_s": 0.1}, "base.timeout_s", "0.1"),
        ({"timeout_s": 10}, "base.timeout_s", "10"),
        ({"frame": None}, "base.frame", "None"),
        ({"message": "Twist"}, "base.frame", "base_link"),
        ({"odometry": "joint_states"}, "base.odometry", "joint_states"),
        ({"speed": 1}, "base.speed", "1"),
    ],
)
def test_base_section_names_each_mistake(tmp_path, change, field, value):
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, BASE | change)
    assert field in str(refusal.value) and value in str(refusal.value)


def test_base_section_needs_a_timeout(tmp_path):
    with pytest.raises(ValueError, match=r"base\.timeout_s"):
        load(tmp_path, {key: value for key, value in BASE.items() if key != "timeout_s"})
