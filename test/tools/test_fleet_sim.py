"""`vla fleet-sim` says what a simulation says, also of tasks that `vla fleet-trace` reads from bags, and both
refuse what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rclpy.serialization import serialize_message

from vla_accel_msgs.msg import ActionChunk, FleetAnswer, FleetRequest
from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.runs import Load, figures, open_loop
from vla_accel_ros.fleet.simulator.simulation import Settings, Simulation
from vla_accel_ros.fleet.simulator.workloads import WORKLOADS, Script, draw
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.fleet_sim import trace

BASE = ("fleet-sim", "--tasks", "20")
NAMED = (*BASE, "--workload", "libero_pi05")


def test_figures_on_standard_output_are_json_alone(capsys):
    assert cli.main([*NAMED, "--policy", "kairos", "--load", "1.6", "--seed", "3", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True and found["tasks"] == 20
    assert {"workload", "policy", "load", "seed"} <= found.keys()
    assert found["latency_s"].keys() == {"avg", "p25", "p50", "p95", "p99"}


def test_a_table_and_a_file(tmp_path, capsys):
    file = tmp_path / "found.json"
    replicas = ("--replicas", "edge", "cloud:2.5:200")
    assert cli.main([*NAMED, "--robots", "5", *replicas, "--horizon", "dynamic", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "simulated: 20 tasks" in said and "task latency" in said and "cloud" in said
    assert json.loads(file.read_text())["gpu_load"].keys() == {"edge", "cloud"}


def test_rules_and_loads_are_compared_in_one_call_and_drawn(tmp_path, capsys):
    picture, rules, loads = tmp_path / "latency.png", ("fifo", "kairos"), ("0.5", "1.6")
    compared = (*NAMED, "--rule", *rules, "--load", *loads, "--png", str(picture))
    assert cli.main([*compared, "--json", "-"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["policy"], run["load"]) for run in runs] == [
        (rule, float(load)) for rule in rules for load in loads
    ]
    for run in runs:
        assert cli.main([*NAMED, "--rule", run["policy"], "--load", str(run["load"]), "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out) == run
    pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
    for colour in ((0x1F, 0x77, 0xB4), (0xFF, 0x7F, 0x0E)):  # matplotlib's first two, a line each
        assert (pixels == colour).all(axis=1).any()
    assert cli.main([*NAMED, "--rule", *rules, "--robots", "2", "4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[2:]] == [[rule, n] for rule in rules for n in ("2", "4")]


def test_recorded_tasks_on_a_profile(tmp_path, capsys):
    trace, profile = tmp_path / "rounds.jsonl", tmp_path / "profile.json"
    trace.write_text('{"task": 1, "kind": "a", "actions": 15, "chunk": 50}\n' * 2)
    profile.write_text('{"profile": {"serve": {"1": 0.1}}}')
    assert cli.main([*BASE, "--workload", str(trace), "--profile", str(profile), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 2 and found["latency_s"]["avg"] == pytest.approx(1.0 + 0.1 + 0.005)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--policy", "magic"), "'magic' is none of vla_accel_ros.fleet_rules (fifo, las"),
        (("--load", "-1"), "the load is -1.0"),
        (("--robots", "0"), "there are 0 robots"),
        (("--tasks", "0"), "--tasks is 0"),
        (("--seed", "-1"), "--seed is -1"),
        (("--kairos-buckets", "0"), "kairos_buckets is 0"),
        (("--kairos-ageing", "0"), "kairos_ageing_s is 0.0"),
        (("--age-exponent", "-1"), "age_exponent is -1.0"),
        (("--lead", "-1"), "lead_s is -1.0"),
        (("--replicas", "edge", "edge"), "--replicas edge"),
        (("--replicas", "edge:0"), "--replicas edge:0"),
        (("--replicas", "edge:fast"), "such as cloud:2.5:200"),
        (("--replicas", "edge:1:2:3"), "such as cloud:2.5:200"),
        (("--replicas", "edge:1:-5"), "such as cloud:2.5:200"),
        (("--replicas", "edge:1:1e308"), "at most 60000"),
        (("--replicas", "edge:1e-308"), "from 0.001 to 1000"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options, says, capsys):
    assert cli.main([*NAMED, *options]) == 2
    assert says in capsys.readouterr().err


def test_recorded_tasks_as_they_were_recorded(tmp_path, capsys):
    """Two tasks of a round, 1 s apart; each chunk as long as it took, unless a profile is given."""
    trace, profile = tmp_path / "rounds.jsonl", tmp_path / "profile.json"
    same = {"kind": "a", "actions": 20, "chunk": 50, "step_s": 0.05}
    lines = [{"task": n, "asked_s": at_s, "served_s": s, **same} for n, at_s, s in ((1, 5, 0.4), (2, 6, 0.2))]
    trace.write_text("\n".join(map(json.dumps, lines)))
    profile.write_text('{"profile": {"serve": {"1": 0.1}}}')
    asked = (*BASE, "--workload", str(trace), "--json", "-")
    for options, served_s in (((), (0.4, 0.2)), (("--profile", str(profile)), (0.1, 0.1))):
        assert cli.main([*asked, *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["latency_s"]["avg"] == pytest.approx(1.005 + sum(served_s) / 2)
        assert found["run_s"] == pytest.approx(1.0 + 1.005 + served_s[1])
    assert cli.main([*asked, "--replicas", "edge:2"]) == 0  # half of the median of what they took
    assert json.loads(capsys.readouterr().out)["latency_s"]["avg"] == pytest.approx(1.005 + 0.15)


@pytest.mark.parametrize(
    ("name", "says"),
    [("rounds.jsonl", "give --profile FILE"), ("none", "is neither a file nor one of libero_pi05")],
)
def test_a_trace_without_durations_and_a_workload_that_is_none(name, says, tmp_path, capsys):
    (tmp_path / "rounds.jsonl").write_text('{"task": 1, "kind": "a", "actions": 15, "chunk": 50}\n')
    assert cli.main([*BASE, "--workload", str(tmp_path / name)]) == 2
    assert says in capsys.readouterr().err


def simulated(capsys, *options):
    assert cli.main([*NAMED, "--tasks", "120", "--load", "1.6", "--json", "-", *options]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("policy", "option", "values"),
    [
        ("kairos", "--kairos-buckets", ("1", "10")),
        ("kairos", "--kairos-ageing", ("2", "1000")),
        ("aged_srpt", "--age-exponent", ("0", "4")),
    ],
)
def test_options_of_a_policy_reach_it(policy, option, values, capsys):
    found = [simulated(capsys, "--policy", policy, option, value) for value in values]
    assert found[0]["latency_s"] != found[1]["latency_s"]
    assert [one[option[2:].replace("-", "_")] for one in found] == [float(value) for value in values]
    assert (
        simulated(capsys, "--policy", "fifo", option, values[0])["latency_s"]
        == (simulated(capsys, "--policy", "fifo")["latency_s"])
    )


def test_what_a_run_cannot_say_is_told(capsys):
    """A burst is not stationary, and horizons that cost nothing are an oracle."""
    assert cli.main([*NAMED, "--robots", "10", "--horizon", "dynamic"]) == 0
    said = capsys.readouterr().out
    assert "not stationary" in said and "2 a robot" in said and "oracle horizons" in said
    assert "first chunk after" in said and "stall of a task" in said
    assert cli.main([*NAMED, "--robots", "10", "--tasks", "600"]) == 0
    said = capsys.readouterr().out
    assert "stationary" not in said and "60 a robot" in said and "oracle" not in said
    found = simulated(capsys, "--horizon", "dynamic")
    assert found["oracle_horizons"] is True and found["stationary"] is False and found["tasks_per_robot"] == 1


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
