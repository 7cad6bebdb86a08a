"""What a person commands the arm by is recorded, whatever its type."""

from __future__ import annotations

import pytest
import yaml

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.recorder.topics import recorded
from vla_accel_ros.nodes.running.environment import demo_contract


@pytest.mark.parametrize(
    ("kind", "bag_type"),
    [("JointState", "sensor_msgs/msg/JointState"), ("JointJog", "control_msgs/msg/JointJog")],
)
def test_commands_of_a_person_and_the_button_are_recorded(tmp_path, kind, bag_type):
    teleop = {"topic": "leader", "type": kind, "rate_hz": 50, "max_age_s": 0.2}
    teleop["deadman"] = {"topic": "joy", "button": 0}
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(demo_contract().read_text()) | {"teleop": teleop}))
    types = {entry.topic: entry.bag_type for entry in recorded(Contract.load(path))}
    assert (types["leader"], types["joy"]) == (bag_type, "sensor_msgs/msg/Joy")
