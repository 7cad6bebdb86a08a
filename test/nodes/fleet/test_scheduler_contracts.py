"""Contracts as robots send them: any text is taken, or refused in a sentence that names the robot."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import RobotDescription
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.fleet.contracts import Reader, contract_of
from vla_accel_ros.nodes.running.environment import demo_contract

GOOD = Path(demo_contract()).read_text()
ENTITIES = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><robot name="&x;"/>'
REFUSED = {
    "nested": ("urdf: " + "[" * 2000 + "]" * 2000, "", "is nested too deeply"),
    "nested maps": ("urdf: " + "{a: " * 3000, "", "is nested too deeply"),
    "nested, not closed": ("a: " + "[" * 5000, "", "is nested too deeply"),
    "endless": ("urdf: x\na: &a [*a]", "", "its aliases stand for more than"),
    "code": ("!!python/object/apply:os.system ['true']", "", "could not determine a constructor"),
    "half a character": ("\ud800", "", "can't encode"),
    "no text at all": ("", "", "does not hold a mapping"),
    "16 kB and a letter": (GOOD + "#" * (16385 - len(GOOD)), "", "16385 letters, more than 16384 letters"),
    "120 kB": ("a: [" + "x, " * 40_000 + "]", "", "120005 letters, more than 16384"),
    "huge URDF": (GOOD, "x" * (2**20 + 1), f"`urdf` of fleet/robot has {2**20 + 1} letters"),
    "no URDF": (f"{GOOD}\nurdf: /etc/passwd\n", "", "it names a URDF; send its text beside it"),
    "entities": (f"{GOOD}\nurdf: robot.urdf\n", ENTITIES, "has a DOCTYPE"),
    "half a character in the URDF": (f"{GOOD}\nurdf: robot.urdf\n", "\ud800", "can't encode"),
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


def test_a_contract_of_16_kb_is_read() -> None:
    text = GOOD + "#" * (16384 - len(GOOD))
    assert contract_of(RobotDescription("engine", "/left", text)).robot == "sim_arm"


@pytest.mark.parametrize("name", ["contract", "urdf", "statistics", "horizon"])
def test_a_description_with_a_text_that_is_too_long_is_refused_before_it_is_read(name: str) -> None:
    good = RobotDescription("engine", "/left", GOOD)
    message = fleet_convert.description_to_message(good, 0)
    assert fleet_convert.description_from_message(message) == good
    setattr(message, name, "x" * (2**20 + 1))
    with pytest.raises(ValueError, match=f"/left.*`{name}`.* {2**20 + 1} letters"):
        fleet_convert.description_from_message(message)


def test_a_text_is_read_once_in_another_thread_whichever_robots_send_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    parse = Contract.parse

    def parsed(text: str, urdf: str, file: str) -> Contract:
        threads.append(threading.current_thread().name)
        return parse(text, urdf, file)

    monkeypatch.setattr(Contract, "parse", parsed)
    woken = threading.Semaphore(0)
    reader, text = Reader(woken.release), f"{GOOD}\n# of this test\n"
    descriptions = [RobotDescription("engine", f"/r{number}", text) for number in range(20)]
    bad = RobotDescription("engine", "/bad", "no contract")
    for description in (*descriptions, bad, *descriptions):
        reader.read(description)
    for _ in range(21):
        assert woken.acquire(timeout=30.0)
    read = dict(reader.finished())
    assert [read[one].robot for one in descriptions] == ["sim_arm"] * 20
    assert isinstance(read[bad], ValueError) and "the contract of /bad" in str(read[bad])
    assert not list(reader.finished())
    assert contract_of(descriptions[0]) is read[descriptions[0]]
    assert len(threads) == 2 and threading.current_thread().name not in threads
    reader.close()
