"""What a mobile base is sent and says is recorded, and what it says is played back as an input."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.recorder.topics import recorded
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording.roles import Role, role

SPEEDS = {"linear": 0.4, "angular": 1.0, "linear_acceleration": 0.8, "angular_acceleration": 2.0}
BASE = {**SPEEDS, "topic": "cmd_vel", "odometry": "odom", "rate_hz": 20, "axes": {"x": 1.0}, "timeout_s": 0.5}


@pytest.mark.parametrize("kind", [{"message": "Twist"}, {"message": "TwistStamped", "frame": "base_link"}])
def test_commands_and_odometry_of_a_base_are_recorded_and_only_odometry_is_an_input(
    tmp_path: Path, kind: dict[str, str]
) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | {"base": BASE | kind}))
    types = {entry.topic: entry.bag_type for entry in recorded(Contract.load(path))}
    sent, said = f"geometry_msgs/msg/{kind['message']}", "nav_msgs/msg/Odometry"
    assert (types["cmd_vel"], types["odom"]) == (sent, said)
    assert (role("/arm/cmd_vel", sent), role("/arm/odom", said)) == (Role.COMMAND, Role.INPUT)
