"""The section `force`: what it means, its defaults, and a sentence for each mistake."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from vla_accel_ros.contract.checks.graph_check import forces
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.force.executed import Retreat

SIM_ARM = Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml"
WRENCH = {
    "slot": "wrist_ft",
    "rate_hz": 1000,
    "max_age_s": 0.02,
    "force_n": {"yields": 15, "stops": 40},
    "torque_nm": {"yields": 2, "stops": 5},
}
EFFORT = {
    "topic": "joint_states",
    "rate_hz": 125,
    "max_age_s": 0.1,
    "joints": {"elbow_flex": {"yields": 4, "stops": 8}, "wrist_flex": {"yields": 2, "stops": 3}},
}


def load(folder: Path, force: object, **changes: object) -> Contract:
    fields = yaml.safe_load(SIM_ARM.read_text())
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump({**fields, "force": force, **changes}))
    return Contract.load(path)


def test_force_section_may_be_absent(contract):
    assert contract.force is None and forces(contract) == []


def test_force_section_has_defaults(tmp_path):
    force = load(tmp_path, {"wrench": WRENCH, "effort": EFFORT}).force
    wrench, effort = force.sensors
    assert (wrench.name, wrench.slot, wrench.topic, wrench.width) == ("wrench", "wrist_ft", "", 6)
    assert (wrench.lowpass_hz, wrench.release, wrench.frozen_s, wrench.tared) == (100.0, 0.5, 0.5, False)
    assert [q.name for q in wrench.quantities] == ["force", "torque"]
    assert wrench.quantities[0].most == math.inf
    assert (effort.type, effort.width, effort.frozen_s) == ("JointState", 2, math.inf)
    assert effort.quantities[1].axes == ("wrist_flex",)
    assert force.retreat == Retreat() and force.stay == ("gripper",)  # its following_error is off


def test_force_section_reads_every_field(tmp_path):
    wrench = {
        **WRENCH,
        "topic": "wrist/wrench",
        "type": "WrenchStamped",
        "force_n": {"yields": 15, "stops": 40, "most": 200, "bias": 5},
        "frozen_s": False,
        "lowpass_hz": 50,
        "release": 0.4,
    }
    del wrench["slot"]
    retreat = {"rad": 0.1, "s": 0.5, "speed": 0.5, "rest_s": 1.0, "most": 5}
    contract = load(tmp_path, {"wrench": wrench, "retreat": retreat, "stay": ["wrist_roll"]})
    (sensor,) = contract.force.sensors
    assert sensor.tared and sensor.quantities[0].most == 200.0 and sensor.frozen_s == math.inf
    assert contract.force.retreat == Retreat(0.1, 0.5, 0.5, 1.0, 5)
    assert contract.force.stay == ("wrist_roll", "gripper")
    (topic,) = forces(contract)
    assert (topic.topic, topic.type) == ("wrist/wrench", "geometry_msgs/msg/WrenchStamped")


def changed(**changes: object) -> dict:
    fields = {"wrench": {**WRENCH, **changes}}
    return {"wrench": {key: value for key, value in fields["wrench"].items() if value is not None}}


@pytest.mark.parametrize(
    ("force", "fact"),
    [
        ({}, "force.wrench is missing"),
        ([1], "force = [1]"),
        (changed(topic="a/b"), "force.wrench.topic = 'a/b'"),
        (changed(slot=None), "force.wrench.slot is missing"),
        (changed(slot="a b"), "force.wrench.slot = 'a b'"),
        (changed(type="WrenchStamped"), "force.wrench.type = 'WrenchStamped'"),
        (changed(rate_hz=1e6), "force.wrench.rate_hz = 1000000.0"),
        (changed(max_age_s=0.002), "force.wrench.max_age_s = 0.002"),
        (changed(frozen_s=0), "force.wrench.frozen_s = 0"),
        (changed(release=1.0), "force.wrench.release = 1.0"),
        (changed(lowpas_hz=3), "force.wrench.lowpas_hz = 3"),
        (changed(torque_nm=None), "force.wrench.torque_nm is missing"),
        (changed(force_n={"yields": 9, "stops": 9}), "force.wrench.force_n.stops = 9.0"),
        (changed(force_n={"yields": 9, "stops": 20, "most": 19}), "force.wrench.force_n.most = 19.0"),
        (changed(force_n={"yields": 9, "stops": 20, "bias": 10}), "force.wrench.force_n.bias = 10.0"),
        ({"effort": {**EFFORT, "type": "Wrench"}}, "force.effort.type = 'Wrench'"),
        (
            {"effort": {**EFFORT, "joints": {"elbow_flx": {"yields": 1, "stops": 2}}}},
            "force.effort.joints.elbow_flx = 'elbow_flx'",
        ),
        ({"wrench": WRENCH, "stay": ["thumb"]}, "force.stay[0] = 'thumb'"),
        ({"wrench": WRENCH, "retreat": {"speed": 1.5}}, "retreat.speed = 1.5"),
        ({"wrench": WRENCH, "retreat": {"most": 1.5}}, "force.retreat.most = 1.5"),
    ],
)
def test_force_section_names_path_and_value_of_a_mistake(tmp_path, force, fact):
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, force)
    assert fact in str(refusal.value)


def test_force_section_has_a_retreat_in_metres_only_when_a_hand_is_moved_by_twists(tmp_path):
    twist = {"per": "second", "linear": 0.2, "angular": 1.0}
    controllers = yaml.safe_load(SIM_ARM.read_text())["controllers"]
    controllers[0] |= {"kind": "servo_twist", "rate_hz": 50, "frame": "base"}
    joints = [
        {k: v for k, v in j.items() if k != "action"} for j in yaml.safe_load(SIM_ARM.read_text())["joints"]
    ]
    joints[5]["action"] = "absolute"
    changes = {"actions": "twist", "twist": twist, "controllers": controllers, "joints": joints}
    changes["home"] = {joints[5]["name"]: 0.0}
    assert load(tmp_path, {"wrench": WRENCH}, **changes).force.retreat.hand.m == 0.05
    force = {"wrench": WRENCH, "retreat": {"m": 0.02}}
    assert load(tmp_path, force, **changes).force.retreat.hand.m == 0.02
    with pytest.raises(ValueError, match=r"force.retreat.m = 0.02"):
        load(tmp_path, force)
