"""What a recorder hears of a contract, latched or not, and what of it a replay says again: inputs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.recorder.topics import recorded
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.roles import Role, role

SPEEDS = {"linear": 0.4, "angular": 1.0, "linear_acceleration": 0.8, "angular_acceleration": 2.0}
BASE = {**SPEEDS, "topic": "cmd_vel", "odometry": "odom", "rate_hz": 20, "axes": {"x": 1.0}, "timeout_s": 0.5}
PERSON = {"topic": "leader", "rate_hz": 50, "max_age_s": 0.2, "deadman": {"topic": "joy", "button": 0}}
TWIST, STAMPED = {"message": "Twist"}, {"message": "TwistStamped", "frame": "base_link"}


@pytest.mark.parametrize(
    ("part", "types"),
    [
        ({"base": BASE | TWIST}, {"cmd_vel": "geometry_msgs/msg/Twist", "odom": "nav_msgs/msg/Odometry"}),
        ({"base": BASE | STAMPED}, {"cmd_vel": "geometry_msgs/msg/TwistStamped"}),
        (
            {"teleop": PERSON | {"type": "JointState"}},
            {"leader": "sensor_msgs/msg/JointState", "joy": "sensor_msgs/msg/Joy"},
        ),
        ({"teleop": PERSON | {"type": "JointJog"}}, {"leader": "control_msgs/msg/JointJog"}),
    ],
)
def test_topics_of_a_base_and_of_a_person_are_recorded_with_their_types(
    tmp_path: Path, part: dict[str, Any], types: dict[str, str]
) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | part))
    found = {entry.topic: entry.bag_type for entry in recorded(Contract.load(path))}
    assert {topic: found[topic] for topic in types} == types


def test_what_a_base_says_is_an_input_and_what_it_is_sent_a_command():
    for kind in ("Twist", "TwistStamped"):
        assert role("/arm/cmd_vel", f"geometry_msgs/msg/{kind}") is Role.COMMAND
    assert role("/arm/odom", "nav_msgs/msg/Odometry") is Role.INPUT


def test_subtask_is_recorded_latched_and_is_a_report_of_which_next_subtask_is_the_input():
    (entry,) = (e for e in recorded(Contract.load(demo_contract())) if e.topic == "subtask")
    assert entry.latched and entry.ours
    assert role("/left/subtask", entry.bag_type) is Role.REPORT
    assert role("/left/next_subtask", entry.bag_type) is Role.INPUT
