"""Contracts as robots send them: any text is taken, or refused in a sentence that names the robot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from vla_accel_ros.fleet.protocol import RobotDescription
from vla_accel_ros.nodes.fleet.contracts import MOST_LETTERS, contract_of
from vla_accel_ros.nodes.running.environment import demo_contract

GOOD = Path(demo_contract()).read_text()
ENTITIES = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><robot name="&x;"/>'
REFUSED = {
    "nested": ("urdf: " + "[" * 2000 + "]" * 2000, "", "is nested too deeply"),
    "nested maps": ("urdf: " + "{a: " * 3000, "", "is nested too deeply"),
    "nested, not closed": ("a: " + "[" * 5000, "", "is nested too deeply"),
    "endless": ("urdf: x\na: &a [*a]", "", "its aliases stand for more than"),
    "code": ("!!python/object/apply:os.system ['true']", "", "could not determine a constructor"),
    "half a character": ("\ud800", "", "unacceptable character"),
    "no text at all": ("", "", "does not hold a mapping"),
    "huge": ("x" * (MOST_LETTERS + 1), "", f"more than {MOST_LETTERS} letters"),
    "long": ("a: [" + "x, " * 60_000 + "]", "", "characters, at most"),
    "no URDF": (f"{GOOD}\nurdf: /etc/passwd\n", "", "it names a URDF; send its text beside it"),
    "entities": (f"{GOOD}\nurdf: robot.urdf\n", ENTITIES, "has a DOCTYPE"),
    "half a character in the URDF": (GOOD, "\ud800", "can't encode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_none_is_refused_with_its_robot(name: str) -> None:
    contract, urdf, why = REFUSED[name]
    for _ in range(2):  # a robot says it again every second
        with pytest.raises(ValueError, match="the contract of /left") as refusal:
            contract_of(RobotDescription("engine", "/left", contract, urdf))
        assert why in str(refusal.value)


def test_damaged_texts_are_taken_or_refused() -> None:
    rng, words = random.Random(0), ["[", "{", "&a ", "*a", "- ", ": ", "nan", "1e999", "null", "\n", "\0"]
    taken = 0
    for _ in range(300):
        text = GOOD
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text))
            text = text[:place] + rng.choice(["", *words]) + text[place + rng.choice([0, 0, 1, 20]) :]
        try:
            taken += contract_of(RobotDescription("engine", "/left", text)).robot != ""
        except ValueError as refusal:
            assert "the contract of /left" in str(refusal)
    assert 10 < taken < 290


def test_what_is_good_is_read_without_a_file_of_this_machine() -> None:
    contract = contract_of(RobotDescription("engine", "/left", GOOD))
    assert contract.robot == "sim_arm" and contract.urdf is None
