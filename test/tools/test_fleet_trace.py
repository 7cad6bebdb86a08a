"""`vla fleet-trace`: bags of a fleet's topics become tasks, which the simulator does as they were done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rclpy.serialization import serialize_message

from vla_accel_msgs.msg import ActionChunk, FleetAnswer, FleetRequest
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.figures import figures
from vla_accel_ros.fleet.simulator.runs import Load, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import WORKLOADS, Script, draw
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.fleet_sim import trace

START_NS, ROBOTS_CLOCK_NS = 1_000_000_000_000, 7_000_000_000
SETTINGS = Settings(link_s=0.0, lead_s=0.3)
STEP_S = 1.0 / SETTINGS.rate_hz


class Tape:
    """A bag of messages at given times [s]."""

    def __init__(self, path: Path) -> None:
        self._bag, self._topics = McapBag(path), set[str]()

    def write(self, at_s: float, name: str, message: Any) -> None:
        topic, kind = f"{message.robot}/fleet/{name}", type_name(type(message))
        if topic not in self._topics:
            self._topics.add(topic)
            self._bag.add(Topic(topic, kind, definition(kind), True))
        self._bag.write(topic, START_NS + round(at_s * 1e9), serialize_message(message))

    def request(self, robot: str, task: int, number: int, at_s: float, **fields: Any) -> None:
        """Of an observation that is `age_s` old; the robot's clock is another."""
        age_s = fields.pop("age_s", 0.0)
        named = {"engine": "e", "robot": robot, "task": task, "round": number, "instruction": "fold"}
        message = FleetRequest(**{**named, **fields})
        sent_ns = ROBOTS_CLOCK_NS + round(at_s * 1e9)
        set_stamp(message.header.stamp, sent_ns)
        set_stamp(message.stamp, sent_ns - round(age_s * 1e9))
        self.write(at_s, "request", message)

    def answer(self, robot: str, task: int, number: int, at_s: float, horizon: int, **fields: Any) -> None:
        chunk = ActionChunk(horizon=50, execution_horizon=horizon, action_dim=1, step_dt_s=STEP_S)
        named = {"engine": "e", "robot": robot, "task": task, "round": number, "chunk": chunk}
        self.write(at_s, "answer", FleetAnswer(**{**named, **fields}))

    def close(self) -> None:
        self._bag.close()


class Taped(Simulation):
    """A simulated fleet whose messages are recorded."""

    tape: Tape

    def _asked(self, robot: Any, now_s: float) -> None:
        super()._asked(robot, now_s)
        executed_s, left_s = robot.told(now_s)
        told = {"executed_s": executed_s, "remaining": round(left_s * SETTINGS.rate_hz)}
        self.tape.request(robot.name, 0, 1 + robot.rounds, now_s, instruction=robot.script.kind, **told)

    def _answered(self, of: Any, now_s: float) -> None:
        _, _, robots, began_s = of
        for robot in robots:
            number, horizon = robot.rounds, robot.script.horizon(robot.rounds)
            self.tape.answer(robot.name, 0, 1 + number, now_s, horizon, served_s=now_s - began_s)
        super()._answered(of, now_s)


def test_a_recorded_fleet_is_simulated_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the last rounds of tasks, which are recorded to their horizons; so tasks here end with
    one."""
    drawn = [
        Script(one.kind, one.horizon(0) * one.rounds, one.horizons, one.chunk)
        for one in draw(WORKLOADS["meta_smol"], 4, tasks=25)
    ]
    rounds = [
        traces.RecordedRound(f"/r{n}", one.kind, one.horizon(k), 50, served_s=0.05 + 0.01 * ((n + k) % 7))
        for n, one in enumerate(drawn)
        for k in range(one.rounds)
    ]
    made = traces.of_rounds(rounds)
    replica = {"edge": profiles.recorded(made)}
    simulation = Taped(replica, find(FLEET_RULES, "kairos"), SETTINGS)
    simulation.tape = Tape(tmp_path / "bag")
    arrivals_s = [0.25 * number for number in range(25)]
    before = simulation.open(made.scripts, arrivals_s)
    simulation.tape.close()

    file = tmp_path / "tasks.jsonl"
    assert cli.main(["fleet-trace", str(tmp_path / "bag"), "--out", str(file)]) == 0
    assert f"{sum(one.rounds for one in made.scripts)} rounds of 25 tasks" in capsys.readouterr().out
    found = traces.load(file)
    assert found.arrived_s == pytest.approx(arrivals_s) and found.step_s == pytest.approx(STEP_S)
    assert found.served_s == pytest.approx(made.served_s)
    for one, other in zip(found.scripts, made.scripts, strict=True):
        assert (one.kind, one.chunk, one.rounds) == (other.kind, other.chunk, other.rounds)
        assert one.served_s == pytest.approx(other.served_s, abs=1e-6)
    again = open_loop(
        Load(found.scripts, found.scripts, arrived_s=found.arrived_s),
        find(FLEET_RULES, "kairos"), None, {"edge": profiles.recorded(found)}, SETTINGS,
    )  # fmt: skip
    assert again.served == before.served
    old, new = figures(before)["latency_s"], figures(again)["latency_s"]
    assert all(new[name] == pytest.approx(old[name], rel=0.01) for name in old)
    asked = ["fleet-sim", "--workload", str(file), "--policy", "kairos", "--json", "-"]
    assert cli.main(asked) == 0
    assert '"tasks": 25' in capsys.readouterr().out


def test_what_is_told_of_a_round(tmp_path: Path) -> None:
    """The first attempt counts for when it was asked, the answered one for the observation's age."""
    tape = Tape(tmp_path / "bag")
    tape.request("/a", 3, 1, 0.0, executed_s=-1.0)
    tape.answer("/a", 3, 1, 0.1, 20, served_s=0.1)
    tape.request("/a", 3, 2, 0.5, executed_s=0.4, remaining=6, attempt=0)
    tape.request("/a", 3, 2, 0.8, executed_s=0.7, remaining=0, attempt=1, age_s=0.05)
    tape.answer("/a", 3, 2, 1.0, 20, attempt=1, queued_s=0.4, served_s=0.1)
    tape.request("/a", 3, 3, 2.0, executed_s=1.0, remaining=0)
    tape.answer("/a", 3, 3, 2.1, 7, served_s=0.1)
    tape.request("/a", 3, 4, 2.2, executed_s=0.1, remaining=1)
    tape.write(2.3, "answer", FleetAnswer(engine="e", robot="/a", task=3, round=4, refusal="no"))
    tape.close()
    first, second, third = trace.read([tmp_path / "bag"])
    assert (first.actions, second.actions, third.actions) == (12 + 6, 20, 3 + 1)
    assert (second.asked_s, second.left_s) == (pytest.approx(0.5), pytest.approx(6 * STEP_S))
    assert (second.queued_s, second.served_s) == (pytest.approx(0.4), pytest.approx(0.1))
    assert second.age_s == pytest.approx(0.05 + 0.2)
    assert {one.kind for one in (first, second, third)} == {"fold"} and second.robot == "/a"
    assert [one.round for one in (first, second, third)] == [0, 1, 2]


def test_several_bags_and_the_same_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tape = Tape(tmp_path / name)
        tape.request(f"/{name}", 1, 1, 5.0 if name == "b" else 4.0, executed_s=-1.0)
        tape.answer(f"/{name}", 1, 1, 6.0, 20, served_s=0.1)
        tape.close()
    rounds = trace.read([tmp_path / name for name in ("b", "a", "a")])
    assert [(one.task, one.asked_s) for one in rounds] == [("/a/e/1", 0.0), ("/b/e/1", 1.0)]


def test_a_bag_without_answers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tape(tmp_path / "bag").close()
    assert cli.main(["fleet-trace", str(tmp_path / "bag"), "--out", str(tmp_path / "x")]) == 2
    assert "no request was answered" in capsys.readouterr().err and not (tmp_path / "x").exists()
