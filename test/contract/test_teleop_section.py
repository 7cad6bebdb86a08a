"""The section `teleop`: what it means, its defaults, and a sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import hand_arms
import pytest
import yaml
from good_contract import SERVO

from vla_accel_ros.contract.checks.graph_check import person
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Deadman

SIM_ARM = Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml"
TELEOP = {"topic": "leader/joint_states", "rate_hz": 50, "max_age_s": 0.2}
FULL = TELEOP | {"type": "JointJog", "joints": {"gripper": "jaw"}, "deadman": {"topic": "joy", "button": 4}}


def load(folder: Path, teleop: object) -> Contract:
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(SIM_ARM.read_text()), "teleop": teleop}))
    return Contract.load(path)


def test_teleop_section_may_be_absent(contract):
    assert contract.teleop is None and person(contract) == []
    assert not {"teleop", "deadman"} & contract.max_ages_s.keys()


def test_teleop_section_names_all_joints_where_it_names_none(tmp_path):
    contract = load(tmp_path, TELEOP)
    assert contract.teleop.type == "JointState" and contract.teleop.deadman is None
    assert contract.teleop.joints == {name: name for name in contract.joint_names}
    assert contract.max_ages_s["teleop"] == 0.2
    assert [topic.type for topic in person(contract)] == ["sensor_msgs/msg/JointState"]


def test_teleop_section_reads_every_field(tmp_path):
    teleop = load(tmp_path, FULL).teleop
    assert (teleop.type, teleop.joints, teleop.deadman) == ("JointJog", {"gripper": "jaw"}, Deadman("joy", 4))
    types = [topic.type for topic in person(load(tmp_path, FULL))]
    assert types == ["control_msgs/msg/JointJog", "sensor_msgs/msg/Joy"]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"topic": None}, "teleop.topic", "None"),
        ({"type": "Twist"}, "teleop.type", "Twist"),
        ({"max_age_s": 0.03}, "teleop.max_age_s", "0.03"),
        ({"rate_hz": 0}, "teleop.rate_hz", "0"),
        ({"joints": {"elbow_fleks": "b"}}, "teleop.joints.elbow_fleks", "elbow_flex?"),
        ({"joints": {}}, "teleop.joints", "{}"),
        ({"joints": {"gripper": 3}}, "teleop.joints.gripper", "3"),
        ({"deadman": {"topic": "joy"}}, "teleop.deadman.button", "missing"),
        ({"deadman": {"topic": "joy", "button": 1.5}}, "teleop.deadman.button", "1.5"),
        ({"deadman": {"topic": "joy", "button": -1}}, "teleop.deadman.button", "-1"),
        ({"topic": "joint_states"}, "teleop.topic", "joint_states"),
        ({"speed": 1}, "teleop.speed", "1"),
    ],
)
def test_teleop_section_names_each_mistake(tmp_path, change, field, value):
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, TELEOP | change)
    assert field in str(refusal.value) and value in str(refusal.value)


HAND = {"base": "l0", "tip": "tool0", "axes": "base", "linear": 0.25, "angular": 1.0}


def load_hand(folder: Path, hand: object, **changes: object) -> Contract:
    (folder / "arm.urdf").write_text(hand_arms.ur5e_urdf())
    fields = {**yaml.safe_load(hand_arms.text()), **changes}
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump({**fields, "teleop": TELEOP | {"type": "TwistStamped", "hand": hand}}))
    return Contract.load(path)


def test_teleop_section_of_twists_has_the_chain_of_the_hand(tmp_path):
    hand = load_hand(tmp_path, HAND).teleop.hand
    assert hand.arm.joints == ("j1", "j2", "j3", "j4", "j5", "j6")
    assert (hand.axes, hand.linear, hand.angular) == ("base", 0.25, 1.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"tip": "hand"}, "hand"), ({"axes": "world"}, "world"), ({"linear": 0}, "linear"), ({"x": 1}, "x")],
)
def test_teleop_section_of_twists_names_each_mistake(tmp_path, change, field):
    with pytest.raises(ValueError, match=rf"teleop\.hand.*{field}"):
        load_hand(tmp_path, HAND | change)


def test_teleop_section_of_twists_needs_the_robots_description(tmp_path):
    with pytest.raises(ValueError, match="urdf"):
        load(tmp_path, TELEOP | {"type": "TwistStamped", "hand": HAND})


def test_teleop_section_of_a_hand_that_twists_move_is_of_twists_without_a_hand(tmp_path):
    path = tmp_path / "contract.yaml"

    def load(**more: object) -> Contract:
        path.write_text(yaml.safe_dump({**yaml.safe_load(SERVO), "teleop": TELEOP | more}))
        return Contract.load(path)

    teleop = load().teleop
    assert (teleop.type, teleop.hand) == ("TwistStamped", None)
    assert [topic.type for topic in person(load())] == ["geometry_msgs/msg/TwistStamped"]
    for more, words in (({"type": "JointJog"}, "teleop.type.*JointJog"), ({"hand": HAND}, "teleop.hand")):
        with pytest.raises(ValueError, match=words):
            load(**more)
