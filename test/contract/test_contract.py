"""A contract is read whole or refused before it costs anything, with one sentence for each mistake that names
the field, the value and the fix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from bombs import refused
from good_contract import FROM_URDF, GOOD, SERVO, load, load_with_urdf

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.files import bounded_yaml, urdf
from vla_accel_ros.sensing.cameras.calibration import Calibration


def test_contract_reads_every_field(tmp_path):
    contract = load(tmp_path, GOOD)
    assert contract.robot == "two_joints"
    assert [(c.name, c.image, c.topic) for c in contract.cameras] == [
        ("top", "base_0_rgb", "camera/top/image_raw"),
        ("side", "left_wrist_0_rgb", "camera/side/image_raw"),
    ]
    assert contract.joint_names == ("a", "b")
    assert contract.controllers[1].joints == ("b",)
    assert (contract.chunk.step_dt_s, contract.max_skew_s) == (0.05, 0.05)
    assert contract.max_ages_s == {"camera/top": 0.2, "camera/side": 0.3, "joint_states": 0.1, "chunk": 0.6}
    np.testing.assert_array_equal(contract.delta_mask, [True, False])


def test_contract_takes_any_name_of_an_image(tmp_path):
    contract = load(tmp_path, GOOD.replace("left_wrist_0_rgb", "observation.wrist-left/0"))
    assert [camera.image for camera in contract.cameras] == ["base_0_rgb", "observation.wrist-left/0"]


def test_contract_converts_units_both_ways(tmp_path):
    contract = load(tmp_path, GOOD)
    np.testing.assert_allclose(contract.to_policy([[math.pi / 2, 0.05]]), [[0.0, 0.05]], atol=1e-12)
    positions = np.array([0.3, 0.02])
    np.testing.assert_allclose(contract.to_robot(contract.to_policy(positions)), positions, rtol=1e-15)


def test_contract_refuses_a_file_without_cameras_or_that_is_no_mapping(tmp_path):
    head, tail = GOOD.index("  top:"), GOOD.index("max_skew_s")
    with pytest.raises(ValueError, match=r"cameras = \{\}"):
        load(tmp_path, GOOD[:head].rstrip()[:-1] + ": {}\n" + GOOD[tail:])
    with pytest.raises(ValueError, match="'utf-8' codec"):
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"robot: \xff")
        Contract.load(path)
    with pytest.raises(ValueError, match="hello"):
        load(tmp_path, "hello")


SEVERAL = {
    "robot: two_joints": "robott: two_joints",
    "camera/top/image_raw": "camera//top",
    "rate_hz: 15": "rate_hz: fast",
    "lower: -1": "lower: 3",
    "velocity: 1.5": "velocityy: 1.5",
    "action: absolute": "action: relative",
    "{topic: arm/": "{rate_hz: 5, kind: magic, topic: arm/",
    "chunk: {step_dt_s: 0.05, max_age_s: 0.6}": "chunk: {step_dt_s: 50, max_age: 0.6}\nhome: {a: 0, b: up}",
}


def test_contract_reports_all_mistakes_at_once_and_each_only_once(tmp_path):
    text = GOOD
    for old, new in SEVERAL.items():
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, text)
    head, *mistakes = str(refusal.value).splitlines()
    assert str(tmp_path / "robot.yaml") in head and "10 mistakes" in head
    assert sorted(mistake.split()[0] for mistake in mistakes) == [
        "cameras.side.rate_hz",
        "cameras.top.topic",
        "chunk.max_age",
        "chunk.step_dt_s",
        "controllers[0].kind",
        "home.b",
        "joints[0].lower",
        "joints[0].velocityy",
        "joints[1].action",
        "robott",
    ]
    assert {mistake.split()[-1] for mistake in mistakes if "unknown key" in mistake} == {
        "max_age_s?",
        "velocity?",
        "robot?",
    }


def test_contract_suggests_the_joint_that_a_controller_meant(tmp_path):
    text = GOOD.replace("name: a,", "name: elbow,").replace("joints: [a]", "joints: [elbw]")
    with pytest.raises(ValueError, match=r"joints\[0\] = 'elbw'.* elbow\?$"):
        load(tmp_path, text)


def test_contract_reading_ends_early_when_a_file_holds_nothing_but_mistakes(tmp_path):
    text = GOOD + "".join(f"wrong{n}: 1\n" for n in range(1000))
    with pytest.raises(ValueError, match="20 mistakes") as refusal:
        load(tmp_path, text)
    assert len(str(refusal.value)) < 5000


MISTAKES = {
    GOOD: [
        ("robot: two_joints\n", "", "robot is missing"),
        ("two_joints", "two joints", "robot = 'two joints'"),
        ("rate_hz: 30,", "", "cameras.top.rate_hz is missing"),
        ("rate_hz: 30", "rate_hz: 0", "cameras.top.rate_hz = 0"),
        ("rate_hz: 30", "rate_hz: fast", "cameras.top.rate_hz = 'fast'"),
        ("rate_hz: 30", "rate_hz: true", "cameras.top.rate_hz = True"),
        ("rate_hz: 30", "rate_hz: .nan", "cameras.top.rate_hz = nan"),
        ("max_age_s: 0.2", "max_age_s: 0.03", "cameras.top.max_age_s = 0.03"),
        ("max_age_s: 0.2", "max_age_s: 1.0e+300", "cameras.top.max_age_s = 1e+300"),
        ("max_age_s: 0.6", "max_age_s: 3601", "chunk.max_age_s = 3601"),
        ("max_skew_s: 0.05", "max_skew_s: 3601", "max_skew_s = 3601"),
        ("camera/top/image_raw", "c/" + 149 * "a", "cameras.top.topic = "),
        ("topic: camera/top/image_raw", "topic: camera//top", "cameras.top.topic = 'camera//top'"),
        ("left_wrist_0_rgb", '" "', "cameras.side.image = ' '"),
        ("left_wrist_0_rgb", "base_0_rgb", "cameras.side.image = 'base_0_rgb'"),
        ("camera/side/image_raw", "camera/top/image_raw", "cameras.side.topic = 'camera/top/image_raw'"),
        ("max_age_s: 0.3}", "max_age_s: 0.3, max_age: 1}", "cameras.side.max_age = 1"),
        ("max_skew_s: 0.05", "max_skew_s: -1", "max_skew_s = -1"),
        ("lower: -1", "lower: 3", "joints[0].lower = 3.0"),
        ("velocity: 1.5", "velocity: 0", "joints[0].velocity = 0"),
        ("acceleration: 9", "acceleration: -9", "joints[0].acceleration = -9"),
        ("action: delta", "action: relative", "joints[0].action = 'relative'"),
        ("unit: deg", "unit: turns", "joints[0].unit = 'turns'"),
        ("sign: -1", "sign: 2", "joints[0].sign = 2"),
        ("sign: -1", "sign: true", "joints[0].sign = True"),
        ("offset: 90", "ofset: 90", "joints[0].ofset = 90"),
        ("velocity: 1.5", "velocityy: 1.5", "joints[0].velocityy = 1.5"),
        ("name: b,", "name: a,", "joints[1].name = 'a'"),
        ("joints: [b]", "joints: []", "controllers[1].joints = []"),
        ("joints: [b]", "joints: [c]", "controllers[1].joints[0] = 'c'"),
        ("joints: [b]", "joints: [a]", "controllers[1].joints[0] = 'a'"),
        ("  - {topic: hand/joint_trajectory, joints: [b]}\n", "", "joints[1].name = 'b'"),
        ("step_dt_s: 0.05", "step_dt_s: 0", "chunk.step_dt_s = 0"),
        ("step_dt_s: 0.05", "step_dt_s: 50", "chunk.step_dt_s = 50.0"),
        ("step_dt_s: 0.05", "step_dt_s: 0.0001", "chunk.step_dt_s = 0.0001"),
        ("max_age_s: 0.6}", "max_age_s: 0.6, mode: x}", "chunk.mode = 'x'"),
        ("chunk: {step_dt_s: 0.05, max_age_s: 0.6}", "chunk: 3", "chunk = 3"),
        ("chunk:", "extra: 1\nchunk:", "extra = 1"),
        ("chunk:", "robot: again\nchunk:", "the key 'robot' occurs twice"),
        ("  top:", "  a top:", "cameras = 'a top'"),
        ("chunk:", "? [a]\n: 1\nchunk:", "a key is not plain text"),
        ("chunk:", "[", "not valid YAML, fix it here"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, transport: h264}", "cameras.top.transport = 'h264'"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, max_pixels: 40000000}", "cameras.top.max_pixels = 40000000"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, rotation: 45}", "top.rotation = 45"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, crop: 1.5}", "cameras.top.crop = 1.5"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, crop: 0.05}", "cameras.top.crop = 0.05"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, max_pixels: 0}", "top.max_pixels = 0"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, info: //i}", "cameras.top.info = '//i'"),
        ("topic: arm/", "topic: /arm/", "[0].topic = '/arm/joint_trajectory'"),
        ("max_age_s: 0.2}", "max_age_s: 0.2, info: joint_states}", "joint_states.topic = 'joint_states'"),
        ("{topic: arm", "{kind: magic, topic: arm", "controllers[0].kind = 'magic'"),
        ("joints: [a]}", "joints: [a], rate_hz: 50}", "controllers[0].rate_hz = 50"),
        ("joints: [a]}", "joints: [a], frame: tool0}", "controllers[0].frame = 'tool0'"),
        ("{topic: arm", "{kind: forward_command, topic: arm", "controllers[0].rate_hz is missing"),
        ("{topic: arm", "{kind: forward_command, rate_hz: 50, topic: arm", "controllers[0].rate_hz = 50.0"),
        ("{topic: arm", "{kind: servo_joint, rate_hz: 500, topic: arm", "controllers[0].rate_hz = 500.0"),
        (
            "{topic: arm",
            "{kind: gripper_command, rate_hz: 20, topic: arm",
            "controllers[0].action is missing",
        ),
        ("joints: [a]}", "joints: [a], max_effort: 5}", "controllers[0].max_effort = 5"),
        (
            "{topic: arm/joint_trajectory, joints: [a]}",
            "{kind: gripper_command, rate_hz: 20, topic: g, action: go, max_effort: -1, joints: [a]}",
            "controllers[0].max_effort = -1",
        ),
        (
            "[a]}\n  - {topic: hand/joint_trajectory, joints: [b]}",
            "[a, b], kind: gripper_command, rate_hz: 20, action: go}",
            "controllers[0].joints = 'a, b'",
        ),
        (
            "joints: [a]}",
            "joints: [a], action: hand/joint_trajectory}",
            "controllers[0].action = 'hand/joint_trajectory'",
        ),
        (
            "{topic: arm",
            "{kind: servo_twist, rate_hz: 50, frame: x, topic: arm",
            "controllers[0].kind = 'servo_twist'",
        ),
        ("chunk:", "actions: torque\nchunk:", "actions = 'torque'"),
        ("chunk:", "twist: {per: step, linear: 1, angular: 1}\nchunk:", "twist = {"),
        ("chunk:", "home: {c: 0}\nchunk:", "home.c = 0.0"),
        ("chunk:", "home: {a: 3}\nchunk:", "home.a = 3.0"),
        ("chunk:", "home: {}\nchunk:", "home = {}"),
        ("chunk:", "home: {a: up}\nchunk:", "home.a = 'up'"),
        (
            "[a]}\n  - {topic: hand/joint_trajectory, joints: [b]}",
            "[a, b]}\nhome: {a: 0}",
            "home.b is missing",
        ),
        ("acceleration: 9,", "", "joints[0].acceleration is missing"),
        ("unit: m}", "map: {robot: [0, 1], policy: [0, 1]}, unit: m}", "joints[1].unit = 'm'"),
        ("unit: m}", "map: {robot: [1, 1], policy: [0, 1]}}", "joints[1].map.robot = [1.0, 1.0]"),
        ("unit: m}", "map: {robot: [0, 1], policy: [2, 2]}}", "joints[1].map.policy = [2.0, 2.0]"),
        ("unit: m}", "map: {robot: [0], policy: [2, 1]}}", "joints[1].map.robot = [0]"),
        ("unit: m}", "map: {robot: [0, .inf], policy: [2, 1]}}", "joints[1].map.robot[1] = inf"),
        ("unit: m}", "map: {robot: [0, 1.0e+300], policy: [0, 1.0e-300]}}", "joints[1].map = 0.0"),
        ("unit: m}", "map: {robot: [0, 1]}}", "joints[1].map.policy is missing"),
        ("unit: m}", "unit: m, continuous: true}", "joints[1].continuous = True"),
        ("unit: m}", "unit: m, continuous: 1}", "joints[1].continuous = 1"),
        ("upper: 2.0", "upper: 1.0e+6", "joints[0].upper = 1000000.0"),
        ("lower: -1, upper: 2.0", "lower: -101, upper: 101", "joints[0].lower = -101.0"),
        ("lower: -1, upper: 2.0", "lower: 0, upper: 12.6", "joints[0].upper = 12.6"),
        ("lower: -1, upper: 2.0", "lower: -6.4, upper: 6.4", "joints[0].lower = -6.4"),
        ("velocity: 1.5", "velocity: 90", "joints[0].velocity = 90.0"),
        ("lower: -1", "lower_deg: -1", "joints[0].lower_deg = 'in degrees'"),
        ("lower: -1", "lower: -1, lower_deg: -57", "joints[0].lower_deg = 'in degrees'"),
        ("velocity: 0.2, ", "velocity_deg: 1, ", "joints[1].velocity_deg = 'in degrees'"),
        (
            "lower: -1, upper: 2.0, velocity: 1.5",
            "lower: ???, upper: 2.0, velocity: '???'",
            "not filled in yet (???): joints[0].lower, joints[0].velocity",
        ),
        ("joints: [b]", "joints: [???]", "not filled in yet (???): controllers[1].joints[0]"),
        ("unit: m}", "unit: ???}", "not filled in yet (???): joints[1].unit"),
        ("chunk:", "home: {a: ???}\nchunk:", "not filled in yet (???): home.a"),
        ("robot: two_joints", "robot: ???", "not filled in yet (???): robot"),
        ("lower: -1", "lower: -2.0e+4", "joints[0].lower = -20000.0"),
        ("lower: -1, upper: 2.0", "lower: 0, upper: 1.0e-9", "joints[0].lower = 0.0"),
        ("velocity: 1.5", "velocity: 1.0e-12", "joints[0].velocity = 1e-12"),
        ("velocity: 1.5", "velocity: 1.0e+9", "joints[0].velocity = 1000000000.0"),
        ("acceleration: 9,", "acceleration: 1.0e+9,", "joints[0].acceleration = 1000000000.0"),
        ("acceleration: 9,", "acceleration: 0.1,", "joints[0].acceleration = 0.1"),
    ],
    FROM_URDF: [
        ("name: a", "name: arm", "joints[0].name = 'arm'"),
        ("name: b", "name: other", "joints[1].name = 'other'"),
        ("upper: 1.5, velocity: 1}", "lower: 2, upper: 1.5, velocity: 1}", "joints[0].lower = 2.0"),
        ("upper: 1.5, velocity: 1}", "lower: 2, velocity: 1}", "joints[0].lower = 2.0"),
        ("velocity: 1}", "velocity: 0}", "joints[0].velocity = 0"),
        ("upper: 1.5", "upper: 2.5", "joints[0].upper = 2.5"),
        ("upper: 1.5", "lower: -3", "joints[0].lower = -3.0"),
        ("velocity: 1}", "velocity: 4}", "joints[0].velocity = 4.0"),
        ("acceleration: 5\n", "acceleration: 0\n", "acceleration = 0"),
        ("two.urdf", "3.5", "urdf = 3.5"),
        ("upper: 1.5", "continuous: true", "joints[0].continuous = True"),
    ],
    SERVO: [
        ("twist: {per: step, linear: 0.25, angular: 1.0}\n", "", "twist is missing"),
        ("per: step", "per: hour", "twist.per = 'hour'"),
        ("linear: 0.25", "linear: 0", "twist.linear = 0"),
        ("acceleration: 9}", "acceleration: 9, action: delta}", "joints[0].action = 'delta'"),
        (", frame: base_link", "", "controllers[0].frame is missing"),
        ("rate_hz: 50, frame: base_link", "rate_hz: 300, frame: base_link", "controllers[0].rate_hz = 300"),
        (
            "servo_twist, topic: servo_node/delta_twist_cmds, joints: [a], rate_hz: 50, frame: base_link",
            "servo_joint, topic: servo_node/joints, joints: [a], rate_hz: 50",
            "actions = 'twist'",
        ),
        (
            "kind: forward_command, topic: hand/commands, joints: [b], rate_hz: 100",
            "kind: servo_twist, topic: hand/commands, joints: [b], rate_hz: 100, frame: x",
            "controllers[1].kind = 'servo_twist'",
        ),
    ],
}


@pytest.mark.parametrize(
    ("good", "old", "new", "fact"),
    [(good, *case) for good, cases in MISTAKES.items() for case in cases],
    ids=lambda text: text.split("\n", 1)[0],
)
def test_contract_names_path_and_value_of_a_mistake(tmp_path, good, old, new, fact):
    assert old in good
    with pytest.raises(ValueError) as refusal:
        load_with_urdf(tmp_path, good.replace(old, new, 1))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.yaml'}: ")
    assert fact in str(refusal.value)
    assert "\n" not in str(refusal.value)


LAUGHS = "a0: &a0 {k: 1, l: 2}\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
BOMBS = {
    "aliases": (LAUGHS, "200000 values"),
    "merges": (MERGES, "200000 values"),
    "itself": ("a: &a [*a]", "200000 values"),
    "deep": ("[" * 50_000, ""),
    "long": ("a: " + "x" * 200_000, "200003 characters, at most 131072"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_asks_for_much_is_refused_as_contract_and_as_calibration(tmp_path, name):
    text, fact = BOMBS[name]
    file = tmp_path / "robot.yaml"
    file.write_text(text)
    refusal = refused(lambda: Contract.load(file)).sentence
    assert refusal.startswith(f"{file}: ") and fact in refusal
    assert "is not a YAML file" in refused(lambda: Calibration.load(file)).sentence


def test_yaml_with_aliases_that_stand_for_little_is_read():
    text = "limits: &limits {lower: -1, upper: 1}\na: *limits\nb: {<<: *limits, upper: 2}\n"
    assert bounded_yaml.load(text)["b"] == {"lower": -1, "upper": 2}
    assert bounded_yaml.load("") is None
    with pytest.raises(yaml.YAMLError):
        bounded_yaml.load("a: [")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ('<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><robot name="&b;"/>', "DOCTYPE"),
        ("<robot>" + "<a/>" * 1_000_000 + "</robot>", ""),
        ("<robot>" + "<a/>" * 2_000_000 + "</robot>", "8000015 bytes, a URDF has at most 4194304"),
        ("<a>" * 400_000, "not valid XML"),
    ],
    ids=["entities", "many", "large", "deep"],
)
def test_urdf_that_asks_for_much_is_refused(tmp_path, text, fact):
    file = tmp_path / "robot.urdf"
    file.write_text(text)
    if fact:
        assert fact in refused(lambda: urdf.read(file)).sentence
    else:
        assert urdf.read(file) == {}
