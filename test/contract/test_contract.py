"""A contract is read whole or refused with one sentence that names the field, the value and the fix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from good_contract import GOOD, load

from vla_accel_ros.contract.contract import Contract


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
