"""Contracts, calibrations and URDFs that ask for much are refused before they get it, in one sentence."""

from __future__ import annotations

import pytest
import yaml
from bombs import refused

from vla_accel_ros.contract import bounded_yaml, urdf
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.calibration import Calibration

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
