"""What robots send to a fleet's scheduler and ask of it: contracts as any text, replicas as words, and the
time it goes by."""

from __future__ import annotations

import argparse
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.fleet.protocol import RobotDescription
from vla_accel_ros.fleet.replicas.ray_cluster import Where
from vla_accel_ros.fleet.replicas.replica import SERVE
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.fleet.clock import SchedulerClock
from vla_accel_ros.nodes.fleet.contracts import Reader, contract_of
from vla_accel_ros.nodes.fleet.engines import where
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.fleet.up import node_arguments, register

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


def test_ray_replicas_are_read_nearest_first() -> None:
    assert where("edge") == [(Where("edge"), False)]
    assert where("edge:1 cloud:2:0.5") == [(Where("edge"), False), *[(Where("cloud", 0.5), True)] * 2]
    assert where("cloud:1::0.04") == [(Where("cloud", network_s=0.04), False)]


@pytest.mark.parametrize(
    "word",
    [
        "",
        "edge:0",
        "edge:x",
        "edge:1:-1",
        "edge:1:nan",
        ":2",
        "a b:c",
        "edge:999",
        "edge:1:1:-1",
        "edge:1::x",
    ],
)
def test_ray_replicas_are_refused_when_malformed(word: str) -> None:
    with pytest.raises(ValueError, match="ray_replicas"):
        where(word)


def test_fleet_up_passes_its_options_to_node() -> None:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    command = [
        "up",
        "--replicas",
        "edge:1",
        "cloud:2",
        "--address",
        "auto",
        "--goal",
        "many_robots",
        "--param",
        "most_robots:=3",
    ]
    words = node_arguments(parser.parse_args(command))
    for word in (
        "replicas:='ray'",
        "goal:='many_robots'",
        "ray_replicas:='edge:1 cloud:2'",
        "ray_address:='auto'",
        "most_robots:=3",
    ):
        assert word in words
    with pytest.raises(ValueError, match="NAME:=VALUE"):
        node_arguments(parser.parse_args([*command, "--param", "most_robots"]))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        node_arguments(parser.parse_args([*command, "--model", "/nowhere"]))


S = 1_000_000_000


class Times:
    """Real and simulated time of a test."""

    def __init__(self, ros_ns: int | None) -> None:
        self.steady_s, self.ros_ns = 100.0, ros_ns
        self.clock = SchedulerClock(lambda: self.ros_ns, lambda: self.steady_s)

    def go(self, seconds: float, pace: float) -> None:
        self.steady_s += seconds
        if self.ros_ns is not None:
            self.ros_ns += round(seconds * pace * S)


def replica(**profile: float) -> Any:
    """One that makes a chunk in so many real seconds."""
    return SimpleNamespace(name="local", profile=Profile({(SERVE, 1): profile.get("takes_s", 0.4)}))


def test_real_time_is_steady_time_and_scales_nothing() -> None:
    times, one = Times(None), replica()
    for _ in range(5):
        times.go(0.5, 1.0)
        assert times.clock.look([one])
    assert times.clock.now_s() == 102.5
    assert one.profile.known() == {(SERVE, 1): 0.4}


def test_simulated_time_goes_on_over_jumps() -> None:
    times = Times(0)
    assert times.ros_ns is not None
    times.go(1.0, 0.25)
    times.ros_ns += 1_700_000_000 * S  # the first that is heard of the simulation's clock
    times.clock.jumped(1_700_000_000 * S)
    times.go(1.0, 0.25)
    assert times.clock.now_s() == pytest.approx(0.5)
    times.ros_ns -= 1000 * S
    times.clock.jumped(-1000 * S)
    assert times.clock.now_s() == pytest.approx(0.5)


def test_a_replica_makes_more_chunks_in_slower_seconds() -> None:
    times, one = Times(5 * S), replica(takes_s=0.4)
    assert not times.clock.look([one])
    times.go(0.5, 0.1)
    assert times.clock.look([one])
    for pace in (0.1, 0.5, 1.0):
        for _ in range(6):
            times.clock.look([one])
            times.go(0.5, pace)
        assert one.profile.known()[SERVE, 1] == pytest.approx(0.4 * pace, rel=0.3)
    times.clock.look([one])
    assert one.profile.known()[SERVE, 1] == pytest.approx(0.4, rel=0.06)


def test_one_that_was_measured_anew_is_scaled_anew_and_time_that_stands_still_changes_nothing() -> None:
    times, one = Times(5 * S), replica(takes_s=0.4)
    for _ in range(6):
        times.clock.look([one])
        times.go(0.5, 0.1)
    one.profile = Profile({(SERVE, 1): 0.8})
    times.clock.look([one])
    assert one.profile.known()[SERVE, 1] == pytest.approx(0.08)
    for _ in range(6):
        times.go(0.5, 0.0)
        times.clock.look([one])
    assert one.profile.known()[SERVE, 1] > 0.0
