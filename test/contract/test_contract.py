"""A contract is read whole or refused with one sentence that names the field, the value and the mend."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from good_contract import GOOD, load

from vla_accel_ros.contract.contract import Contract

CONTRACTS = Path(__file__).resolve().parents[2] / "config" / "contracts"


def test_reads_every_field(tmp_path):
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


def test_an_image_has_any_name_that_the_policy_has_for_it(tmp_path):
    contract = load(tmp_path, GOOD.replace("left_wrist_0_rgb", "observation.wrist-left/0"))
    assert [camera.image for camera in contract.cameras] == ["base_0_rgb", "observation.wrist-left/0"]


def test_units_cross_both_ways(tmp_path):
    contract = load(tmp_path, GOOD)
    np.testing.assert_allclose(contract.to_policy([[math.pi / 2, 0.05]]), [[0.0, 0.05]], atol=1e-12)
    positions = np.array([0.3, 0.02])
    np.testing.assert_allclose(contract.to_robot(contract.to_policy(positions)), positions, rtol=1e-15)


@pytest.mark.parametrize("path", sorted(CONTRACTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_contracts_load(path):
    assert Contract.load(path).robot == path.stem


def test_the_simulated_arm():
    contract = Contract.load(CONTRACTS / "sim_arm.yaml")
    assert contract.joint_names == (
        "shoulder_pan",
        "shoulder_lift",
        "elbow_flex",
        "wrist_flex",
        "wrist_roll",
        "gripper",
    )
    assert contract.delta_mask.tolist() == [True] * 5 + [False]
    assert contract.chunk.step_dt_s == 1 / 30


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("robot: two_joints\n", "", "robot is missing: add it"),
        (
            "two_joints",
            "two joints",
            "robot = 'two joints' is not a name of letters, digits and underscores: mend it",
        ),
        ("rate_hz: 30,", "", "cameras.top.rate_hz is missing: add it"),
        ("rate_hz: 30", "rate_hz: 0", "cameras.top.rate_hz = 0 is not greater than 0: raise it"),
        (
            "rate_hz: 30",
            "rate_hz: fast",
            "cameras.top.rate_hz = 'fast' is not a finite number: write one such as 0.5",
        ),
        (
            "rate_hz: 30",
            "rate_hz: true",
            "cameras.top.rate_hz = True is not a finite number: write one such as 0.5",
        ),
        (
            "rate_hz: 30",
            "rate_hz: .nan",
            "cameras.top.rate_hz = nan is not a finite number: write one such as 0.5",
        ),
        (
            "max_age_s: 0.2",
            "max_age_s: 0.03",
            "cameras.top.max_age_s = 0.03 is not longer than one period at 30 Hz: raise it",
        ),
        (
            "max_age_s: 0.2",
            "max_age_s: 1.0e+300",
            "cameras.top.max_age_s = 1e+300 is more than 3600: lower it",
        ),
        ("max_age_s: 0.6", "max_age_s: 3601", "chunk.max_age_s = 3601 is more than 3600: lower it"),
        ("max_skew_s: 0.05", "max_skew_s: 3601", "max_skew_s = 3601 is more than 3600: lower it"),
        ("camera/top/image_raw", "c/" + 149 * "a", "image_raw, of at most 150 characters: mend it"),
        (
            "topic: camera/top/image_raw",
            "topic: camera//top",
            "cameras.top.topic = 'camera//top' is not a topic name such as /joint_states or camera/",
        ),
        (
            "left_wrist_0_rgb",
            '" "',
            "cameras.side.image = ' ' is not the policy's name of an image: mend it",
        ),
        (
            "left_wrist_0_rgb",
            "base_0_rgb",
            "cameras.side.image = 'base_0_rgb' is already cameras.top.image: give every camera its own image",
        ),
        (
            "camera/side/image_raw",
            "camera/top/image_raw",
            "cameras.side.topic = 'camera/top/image_raw' is already cameras.top.topic: give every stream",
        ),
        (
            "max_age_s: 0.3}",
            "max_age_s: 0.3, max_age: 1}",
            "cameras.side.max_age = 1 is an unknown key: remove it",
        ),
        ("max_skew_s: 0.05", "max_skew_s: -1", "max_skew_s = -1 is not greater than 0: raise it"),
        ("lower: -1", "lower: 3", "joints[0].lower = 3.0 is not below upper = 2: swap or mend them"),
        ("velocity: 1.5", "velocity: 0", "joints[0].velocity = 0 is not greater than 0: raise it"),
        (
            "acceleration: 9",
            "acceleration: -9",
            "joints[0].acceleration = -9 is not greater than 0: raise it",
        ),
        (
            "action: delta",
            "action: relative",
            "joints[0].action = 'relative' is unknown: write delta or absolute",
        ),
        ("unit: deg", "unit: turns", "joints[0].unit = 'turns' is unknown: write rad or m or deg"),
        ("sign: -1", "sign: 2", "joints[0].sign = 2 is unknown: write 1 or -1"),
        ("sign: -1", "sign: true", "joints[0].sign = True is unknown: write 1 or -1"),
        ("offset: 90", "ofset: 90", "joints[0].ofset = 90 is an unknown key: did you mean offset?"),
        (
            "velocity: 1.5",
            "velocityy: 1.5",
            "joints[0].velocityy = 1.5 is an unknown key: did you mean velocity?",
        ),
        ("name: b,", "name: a,", "joints[1].name = 'a' is already joints[0].name: name every joint once"),
        (
            "joints: [b]",
            "joints: []",
            "controllers[1].joints = [] is not a list of at least one entry: write - entry",
        ),
        (
            "joints: [b]",
            "joints: [c]",
            "controllers[1].joints[0] = 'c' is not a joint of joints: add it there",
        ),
        ("joints: [b]", "joints: [a]", "controllers[1].joints[0] = 'a' is already controllers[0].joints[0]"),
        (
            "  - {topic: hand/joint_trajectory, joints: [b]}\n",
            "",
            "joints[1].name = 'b' has no controller: name it",
        ),
        ("step_dt_s: 0.05", "step_dt_s: 0", "chunk.step_dt_s = 0 is not greater than 0: raise it"),
        ("step_dt_s: 0.05", "step_dt_s: 50", "chunk.step_dt_s = 50.0 is more than 1 s between two"),
        ("step_dt_s: 0.05", "step_dt_s: 0.0001", "chunk.step_dt_s = 0.0001 is less than 0.001 s between two"),
        ("max_age_s: 0.6}", "max_age_s: 0.6, mode: x}", "chunk.mode = 'x' is an unknown key"),
        (
            "chunk: {step_dt_s: 0.05, max_age_s: 0.6}",
            "chunk: 3",
            "chunk = 3 is not a mapping: write key: value",
        ),
        ("chunk:", "extra: 1\nchunk:", "extra = 1 is an unknown key: remove it or mend its spelling"),
        ("chunk:", "robot: again\nchunk:", "the key 'robot' occurs twice"),
        ("  top:", "  a top:", "cameras = 'a top' is not a name of letters, digits and underscores: mend it"),
        ("chunk:", "? [a]\n: 1\nchunk:", "a key is not plain text"),
        ("chunk:", "[", "not valid YAML, mend it here: "),
    ],
)
def test_a_mistake_is_named_by_path_value_and_mend(tmp_path, old, new, sentence):
    assert old in GOOD
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert str(refusal.value).startswith(f"{tmp_path / 'robot.yaml'}: ")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_no_cameras_and_no_mapping_are_refused(tmp_path):
    head, tail = GOOD.index("  top:"), GOOD.index("max_skew_s")
    with pytest.raises(ValueError, match=r"cameras = \{\} is empty: give at least one"):
        load(tmp_path, GOOD[:head].rstrip()[:-1] + ": {}\n" + GOOD[tail:])
    with pytest.raises(ValueError, match="not valid YAML, mend it here: 'utf-8' codec"):
        path = tmp_path / "latin.yaml"
        path.write_bytes(b"robot: \xff")
        Contract.load(path)
    with pytest.raises(ValueError, match="the file = 'hello' does not hold a mapping: write key: value"):
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


def test_all_mistakes_are_told_at_once_and_each_only_once(tmp_path):
    text = GOOD
    for old, new in SEVERAL.items():
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, text)
    head, *mistakes = str(refusal.value).splitlines()
    assert head == f"{tmp_path / 'robot.yaml'}: 10 mistakes:"
    assert sorted(mistake.strip() for mistake in mistakes) == [
        "cameras.side.rate_hz = 'fast' is not a finite number: write one such as 0.5",
        "cameras.top.topic = 'camera//top' is not a topic name such as /joint_states or "
        "camera/front/image_raw, of at most 150 characters: mend it",
        "chunk.max_age = 0.6 is an unknown key: did you mean max_age_s?",
        "chunk.step_dt_s = 50.0 is more than 1 s between two actions: give seconds",
        "controllers[0].kind = 'magic' is unknown: write joint_trajectory or forward_command or servo_joint "
        "or servo_twist",
        "home.b = 'up' is not a finite number: write one such as 0.5",
        "joints[0].lower = 3.0 is not below upper = 2: swap or mend them",
        "joints[0].velocityy = 1.5 is an unknown key: did you mean velocity?",
        "joints[1].action = 'relative' is unknown: write delta or absolute",
        "robott = 'two_joints' is an unknown key: did you mean robot?",
    ]


def test_a_misspelt_joint_of_a_controller_is_told_once_with_what_was_meant(tmp_path):
    text = GOOD.replace("name: a,", "name: elbow,").replace("joints: [a]", "joints: [elbw]")
    with pytest.raises(
        ValueError, match=r"joints\[0\] = 'elbw' is not a joint of joints: did you mean elbow\?$"
    ):
        load(tmp_path, text)


def test_a_file_of_nothing_but_mistakes_is_refused_early(tmp_path):
    text = GOOD + "".join(f"wrong{n}: 1\n" for n in range(1000))
    with pytest.raises(ValueError, match="20 mistakes and perhaps more:") as refusal:
        load(tmp_path, text)
    assert len(str(refusal.value)) < 5000
