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
    "aliases": (LAUGHS, "its aliases stand for more than 200000 values"),
    "merges": (MERGES, "its aliases stand for more than 200000 values"),
    "itself": ("a: &a [*a]", "its aliases stand for more than 200000 values"),
    "deep": ("[" * 50_000, ""),
    "long": ("a: " + "x" * 200_000, "it has 200003 characters, at most 131072 are read"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_contract(tmp_path, name):
    text, sentence = BOMBS[name]
    file = tmp_path / "robot.yaml"
    file.write_text(text)
    found = refused(lambda: Contract.load(file)).sentence
    assert found.startswith(f"{file}: not valid YAML, mend it here: ") and sentence in found


@pytest.mark.parametrize("name", BOMBS)
def test_a_calibration(tmp_path, name):
    file = tmp_path / "camera.yaml"
    file.write_text(BOMBS[name][0])
    assert "is not a YAML file" in refused(lambda: Calibration.load(file)).sentence


def test_aliases_that_stand_for_little_are_read():
    text = "limits: &limits {lower: -1, upper: 1}\na: *limits\nb: {<<: *limits, upper: 2}\n"
    assert bounded_yaml.load(text)["b"] == {"lower": -1, "upper": 2}
    assert bounded_yaml.load("") is None
    with pytest.raises(yaml.YAMLError):
        bounded_yaml.load("a: [")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><robot name="&b;"/>',
            "has a DOCTYPE, which no URDF needs: remove it",
        ),
        ("<robot>" + "<a/>" * 1_000_000 + "</robot>", "not valid"),
        ("<robot>" + "<a/>" * 2_000_000 + "</robot>", "has 8000015 bytes, a URDF has at most 4194304"),
        ("<a>" * 400_000, "not valid XML"),
    ],
    ids=["entities", "many", "large", "deep"],
)
def test_a_urdf(tmp_path, text, sentence):
    file = tmp_path / "robot.urdf"
    file.write_text(text)
    if sentence == "not valid":
        assert urdf.read(file) == {}
    else:
        assert sentence in refused(lambda: urdf.read(file)).sentence
