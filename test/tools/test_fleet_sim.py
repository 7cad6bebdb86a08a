"""`vla fleet-sim` prints and writes what a simulation says, and refuses what cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from vla_accel_ros.tools import cli

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
