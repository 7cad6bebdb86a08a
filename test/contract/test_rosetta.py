"""rosetta's contract, version 2. Its own loader takes what is exported: test_rosetta_peers.py."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import yaml

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.contract.rosetta import exported, imported
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.cli import main

CONTRACTS = Path(demo_contract()).parent
THEIRS = """
robot_type: lab-arm
robot_interface: ros2
fps: 20
x-qos: &qos {reliability: best_effort, depth: 5}
observations:
  observation.images.wrist.cam:
    channel: {topic: /wrist/compressed, type: sensor_msgs/msg/CompressedImage, qos: *qos}
    align: {strategy: asof, timeline: header, tolerance_ms: 20}
    apply: [resize: [240, 320]]
  observation.state:
    channel: {topic: /joint_states, type: sensor_msgs/msg/JointState, qos: *qos}
    align: {strategy: hold, timeline: header}
    select: [position.a, b]
    apply: [rad2deg]
  observation.tool:
    channel: {topic: /tool, type: std_msgs/msg/Float64}
    align: {strategy: hold, timeline: receive}
actions:
  action:
    channel: {topic: /arm/joint_trajectory, type: trajectory_msgs/msg/JointTrajectory, safety: hold}
    align: {strategy: hold, timeline: header}
    select: [positions.a, position.b]
    apply: [rad2deg, clamp: {min: -90, max: 90}]
tasks:
  task: {channel: {topic: /task, type: std_msgs/msg/String}}
"""


def changed(old: str, new: str) -> str:
    assert THEIRS.count(old) >= 1
    return THEIRS.replace(old, new)


def test_import_carries_over_what_both_say_and_names_the_rest():
    text, notes = imported(THEIRS, "theirs.yaml")
    ours = yaml.safe_load(text.replace(UNKNOWN, f'"{UNKNOWN}"'))
    assert ours["robot"] == "lab_arm" and ours["chunk"]["step_dt_s"] == pytest.approx(0.05)
    camera = {"topic": "/wrist/compressed", "image": "wrist.cam", "transport": "compressed"}
    assert ours["cameras"]["wrist_cam"].items() >= camera.items()
    assert [(j["name"], j["unit"], j["lower"]) for j in ours["joints"]] == [
        ("a", "deg", UNKNOWN),
        ("b", "deg", UNKNOWN),
    ]
    (controller,) = ours["controllers"]
    assert controller == {"topic": "arm/joint_trajectory", "kind": "joint_trajectory", "joints": ["a", "b"]}
    for words in ("asof", "apply", "observation.tool", "clamp", "tasks"):
        assert any(words in note for note in notes), words
    with pytest.raises(ValueError, match=r"\?\?\?.*max_skew_s"):
        Contract.parse(text, "", "ours.yaml")


def test_import_with_a_urdf_leaves_its_limits_to_it():
    text, _ = imported(THEIRS, "theirs.yaml", "arm.urdf")
    joint = yaml.safe_load(text.replace(UNKNOWN, "0"))["joints"][0]
    assert "urdf: arm.urdf" in text and joint.keys() == {"name", "acceleration", "action", "unit"}


def test_import_of_commands_by_joint_states_asks_for_the_controller():
    text, notes = imported(changed("trajectory_msgs/msg/JointTrajectory", "sensor_msgs/msg/JointState"), "f")
    assert "kind: ???" in text and any("/arm/joint_trajectory" in note for note in notes)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("safety: hold", "safety: zeros", "zeros"),
        ("safety: hold", 'encoder: "os:system"', "os:system"),
        ("qos: *qos}", 'decoder: "a.b:c"}', "a.b:c"),
        ("select: [position.a, b]", "select: [velocity.a, b]", "velocity.a"),
        ("select: [position.a, b]", "select: [b, position.a]", "order"),
        ("select: [position.a, b]", "kind: quaternion", "quaternion"),
        ("apply: [rad2deg]", "apply: [square]", "square"),
        (
            "type: trajectory_msgs/msg/JointTrajectory",
            "type: geometry_msgs/msg/Twist",
            "geometry_msgs/msg/Twist",
        ),
        ("fps: 20", "fps: -1", "fps"),
        ("robot_type: lab-arm", "robot: lab-arm", "robot_type"),
        ("channel: {topic: /tool, type: std_msgs/msg/Float64}", "select: [a]", "observation.tool.channel"),
        (
            "observation.tool:\n    channel: {topic: /tool, type: std_msgs/msg/Float64}",
            "observation.images.wrist-cam:\n    channel: {topic: /other, type: sensor_msgs/msg/Image}",
            "wrist_cam",
        ),
    ],
)
def test_import_refuses_code_slams_and_what_is_no_joint(old, new, words):
    with pytest.raises(ValueError, match="f") as refusal:
        imported(changed(old, new), "f")
    assert words in str(refusal.value)


@pytest.mark.parametrize("text", ["[", "a", "- a", "observations: 1"])
def test_import_refuses_what_is_no_contract(text):
    with pytest.raises(ValueError, match=r"f\.yaml"):
        imported(text, "f.yaml")


VALUES = (
    "null",
    "[]",
    "{}",
    "1",
    "true",
    "''",
    "[1, 2]",
    "{a: 1}",
    "&a [*a]",
    "1e999",
    "!!python/name:os.system x",
)


def damaged(seed: int) -> str:
    """With letters cut out, a value of another type, or a line twice."""
    rng, text = random.Random(seed), THEIRS
    for _ in range(rng.randint(1, 3)):
        values = list(re.finditer(r": ([^\n{},]+)", text))
        lines, place = text.splitlines(), rng.randrange(len(text))
        twice = rng.randrange(len(lines))
        value = rng.choice(values) if values else None
        changes = ["\n".join([*lines[:twice], lines[twice], *lines[twice:]])]
        changes.append(text[:place] + text[place + rng.randint(1, 12) :])
        if value is not None:
            changes.append(text[: value.start(1)] + rng.choice(VALUES) + text[value.end(1) :])
        text = rng.choice(changes)
    return text


def test_import_of_a_damaged_contract_is_refused_in_words_or_taken():
    refusals = 0
    for seed in range(2000):
        try:
            imported(damaged(seed), "f")
        except ValueError as refusal:
            refusals += 1
            assert str(refusal)
    assert 500 < refusals < 2000


@pytest.mark.parametrize("robot", ["sim_arm", "ur5e_robotiq", "franka", "aloha"])
def test_export_and_import_keep_cameras_joints_and_controllers(robot):
    contract = Contract.load(CONTRACTS / f"{robot}.yaml")
    text, notes = exported(contract, (240, 320))
    document = yaml.safe_load(text)
    assert (document["robot_interface"], document["fps"]) == ("ros2", round(1 / contract.chunk.step_dt_s))
    for image in (e for key, e in document["observations"].items() if "images" in key):
        assert image["apply"] == [{"resize": [240, 320]}] and image["align"]["timeline"] == "header"
    assert notes
    ours = yaml.safe_load(imported(text, "f")[0].replace(UNKNOWN, "0"))
    assert [joint["name"] for joint in ours["joints"]] == list(contract.joint_names)
    assert [(c["topic"], tuple(c["joints"])) for c in ours["controllers"]] == [
        (c.topic, c.joints) for c in contract.controllers
    ]
    assert {c["topic"]: c["image"] for c in ours["cameras"].values()} == {
        c.topic: c.image for c in contract.cameras
    }


PATHS = {"x": "linear.x", "y": "linear.y", "yaw": "angular.z"}
BASE = {
    "topic": "base/cmd_vel",
    "rate_hz": 20,
    "linear": 0.4,
    "angular": 1.0,
    "linear_acceleration": 0.8,
    "angular_acceleration": 2.0,
    "timeout_s": 0.5,
}


def mobile(folder: Path, axes: dict[str, float], **changes: object) -> Contract:
    document = yaml.safe_load(Path(demo_contract()).read_text())
    path = folder / "mobile.yaml"
    path.write_text(yaml.safe_dump(document | {"base": {**BASE, "axes": axes, **changes}}, sort_keys=False))
    return Contract.load(path)


@pytest.mark.parametrize("odometry", ["/odom", ""])
@pytest.mark.parametrize(("message", "wrapped"), [("Twist", ""), ("TwistStamped", "twist.")])
def test_export_and_import_keep_a_bases_velocities_last_and_in_their_order(
    tmp_path, message, wrapped, odometry
):
    axes = {"yaw": 1.0, "x": 1.0, "y": 1.0}
    changes = {"message": message} | ({"frame": "base_link"} if wrapped else {})
    changes |= {"odometry": odometry} if odometry else {}
    text, notes = exported(mobile(tmp_path, axes, **changes), (224, 224))
    document = yaml.safe_load(text)
    *_, command = document["actions"]["action"]
    assert command["select"] == [f"{wrapped}{PATHS[axis]}" for axis in axes]
    kind = f"geometry_msgs/msg/{message}"
    assert command["channel"] == {"topic": "base/cmd_vel", "type": kind, "safety": "zeros"}
    assert command["align"]["timeline"] == ("header" if wrapped else "receive")
    state = document["observations"]["observation.state"]
    if odometry:
        assert state[-1]["channel"] == {"topic": "/odom", "type": "nav_msgs/msg/Odometry"}
        assert state[-1]["select"] == [f"twist.twist.{PATHS[axis]}" for axis in axes]
    assert not any("m/s" in note for note in notes)
    base = yaml.safe_load(imported(text, "f")[0].replace(UNKNOWN, f'"{UNKNOWN}"'))["base"]
    known = {"topic": "base/cmd_vel", "message": message, "axes": axes}
    known |= {"odometry": odometry} if odometry else {}
    unknown = {*BASE.keys() - known.keys(), *({"frame"} if wrapped else ())}
    assert list(base["axes"]) == list(axes)
    assert base == known | dict.fromkeys(unknown, UNKNOWN)


def test_export_says_that_a_bases_numbers_are_in_other_units(tmp_path):
    contract = mobile(tmp_path, {"x": 1.0, "yaw": 0.0174533}, message="Twist")
    (note,) = [note for note in exported(contract, (224, 224))[1] if "m/s" in note]
    assert "base.angular.z" in note and "base.linear.x" not in note


ODOMETRY = """    - channel: {topic: /odom, type: nav_msgs/msg/Odometry}
      align: {strategy: hold, timeline: header}
      select: [twist.twist.linear.x, twist.twist.angular.z]
"""
ARM = """    - channel: {topic: /joint_states, type: sensor_msgs/msg/JointState}
      align: {strategy: hold, timeline: header}
      select: [position.a]
"""
SENT = """
    channel: {topic: /cmd_vel, type: geometry_msgs/msg/TwistStamped, safety: zeros}
    align: {strategy: hold, timeline: header}
    select: [twist.linear.x, twist.angular.z]
"""
SAID = SENT.replace("[twist.linear.x, twist", "[twist.twist.linear.x, twist.twist")
SAID = SAID.replace("geometry_msgs/msg/TwistStamped, safety: zeros", "nav_msgs/msg/Odometry")
MOBILE = f"""
robot_type: stone
robot_interface: ros2
fps: 30
observations:
  observation.state:
{ARM}{ODOMETRY}actions:
  action:
    channel: {{topic: /arm/joint_trajectory, type: trajectory_msgs/msg/JointTrajectory, safety: hold}}
    align: {{strategy: hold, timeline: header}}
    select: [position.a]
  action.base:{SENT}    apply: [clamp: {{min: -0.5, max: 0.5}}]
"""


def test_import_of_a_mobile_robot_takes_its_velocities_and_zeros_as_their_stop():
    text, notes = imported(MOBILE, "f")
    base = yaml.safe_load(text.replace(UNKNOWN, "0"))["base"]
    assert (base["topic"], base["message"], base["odometry"]) == ("cmd_vel", "TwistStamped", "/odom")
    assert list(base["axes"]) == ["x", "yaw"] and "frame" in base
    assert any("clamp" in note for note in notes)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[twist.linear.x, twist.angular.z]", "[twist.angular.z, twist.linear.x]", "order"),
        ("[twist.linear.x, twist.angular.z]", "[twist.linear.x, twist.linear.x]", "once"),
        ("[twist.linear.x, twist.angular.z]", "[linear.x, angular.z]", "twist.linear.x"),
        ("twist.twist.angular.z", "pose.pose.position.x", "pose.pose.position.x"),
        (ARM + ODOMETRY, ODOMETRY + ARM, "last"),
        (SENT, SAID, "nav_msgs/msg/Odometry"),
        ("apply: [clamp: {min: -0.5, max: 0.5}]", "apply: [rad2deg]", "rad2deg"),
    ],
)
def test_import_refuses_velocities_that_ours_has_not(old, new, words):
    assert MOBILE.count(old) == 1
    with pytest.raises(ValueError, match=words):
        imported(MOBILE.replace(old, new), "f")


def test_export_names_what_rosetta_cannot_do_and_the_command_says_both(capsys, tmp_path):
    ring = CONTRACTS / "so101_bimanual.yaml"
    assert main(["contract", "export", str(ring)]) != 0 and "ring" in capsys.readouterr().err
    assert main(["contract", "export", str(demo_contract())]) == 0
    streams = capsys.readouterr()
    assert "limits" in streams.err and yaml.safe_load(streams.out)["robot_type"] == "sim_arm"
    file = tmp_path / "theirs.yaml"
    file.write_text(THEIRS)
    assert main(["contract", "import", str(file)]) == 0
    assert "lab_arm" in capsys.readouterr().out
