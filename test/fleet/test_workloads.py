"""Tasks that are drawn, recorded or refused, and profiles of replicas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fleet_builders import make_replica

from vla_accel_ros.fleet.rules.rule import SERVE
from vla_accel_ros.fleet.simulator import profiles, traces
from vla_accel_ros.fleet.simulator.traces import RecordedRound
from vla_accel_ros.fleet.simulator.workloads import DYNAMIC, STATIC, WORKLOADS, Script, draw


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_what_its_numbers_say(name):
    what = WORKLOADS[name]
    static, dynamic = draw(what, 0), draw(what, 0, DYNAMIC)
    assert len(static) == what.tasks and len({script.kind for script in static} - {"long"}) <= what.kinds
    low, high = what.horizon
    assert all(len(script.horizons) == 1 and low <= script.horizons[0] <= high for script in static)
    for one, other in zip(static, dynamic):
        assert (one.kind, one.actions) == (other.kind, other.actions) and other.rounds <= one.rounds
        assert all(one.horizons[0] <= horizon <= what.chunk for horizon in other.horizons)
    assert draw(what, 0, DYNAMIC) == dynamic and draw(what, 1, DYNAMIC) != dynamic


def test_horizons_are_as_the_papers_figures_have_them():
    static = np.array(
        [script.horizons[0] for seed in range(20) for script in draw(WORKLOADS["libero_pi05"], seed)]
    )
    assert 0.3 < (static >= 40).mean() < 0.5 and 0.02 < (static < 10).mean() < 0.15
    ratios, same, double = [], [], []
    for script, short in zip(draw(WORKLOADS["meta_smol"], 0, DYNAMIC), draw(WORKLOADS["meta_smol"], 0)):
        each = np.array(script.horizons) / short.horizons[0]
        change = np.abs(each[1:] / each[:-1] - 1)
        ratios += each.tolist()
        same += (change < 0.1).tolist()
        double += (np.maximum(each[1:] / each[:-1], each[:-1] / each[1:]) > 2).tolist()
    assert 0.4 < (np.array(ratios) >= 1.95).mean() < 0.6  # Figure 4: half of the rounds
    assert 0.523 < np.mean(same) < 0.854 and 0.049 < np.mean(double) < 0.12  # Figure 10


def test_rounds_of_a_script():
    script = Script("a", 10, (4, 3, 2))
    assert script.rounds == 4 and [script.horizon(k) for k in range(5)] == [4, 3, 2, 2, 2]


@pytest.mark.parametrize("wrong", [(0, (4,)), (5, ()), (5, (0,)), (5, (51,))])
def test_a_task_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="kind 'a'"):
        Script("a", *wrong)


def test_recorded_rounds_become_tasks(tmp_path):
    lines = [
        {"task": "1", "kind": "fold", "actions": 22, "chunk": 50},
        {"task": "2", "kind": "pick", "actions": 9, "chunk": 32},
        {"task": "1", "kind": "fold", "actions": 30, "chunk": 50},
    ]
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = traces.load(path)
    assert found.scripts == (Script("fold", 52, (22, 30), 50), Script("pick", 9, (9,), 32))
    assert (found.arrived_s, found.step_s, found.served_s) == (None, None, None)


def test_what_is_known_of_recorded_rounds_is_written_and_read(tmp_path):
    def one(task: str, asked_s: float, **known: Any) -> RecordedRound:
        return RecordedRound(task, "fold", 5, 50, asked_s=asked_s, step_s=0.05, **known)

    rounds = [one("late", 3.0, served_s=0.3), one("early", 1.0, served_s=0.1), one("late", 4.0, left_s=0.2)]
    path = tmp_path / "rounds.jsonl"
    traces.save(path, rounds)
    found = traces.load(path)
    assert found == traces.of_rounds(rounds)
    assert (found.arrived_s, found.step_s, found.lead_s) == ((1.0, 3.0), 0.05, 0.2)
    assert [script.rounds for script in found.scripts] == [1, 2]
    assert [script.served_s for script in found.scripts] == [(0.1,), ()]  # of one round it is not known
    assert found.served_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2"),
        ("[]", "line 2"),
        ('{"task": 1, "kind": "a", "actions": 0, "chunk": 5}', "0 actions of a chunk of 5"),
        ('{"task": 1, "kind": "a", "actions": 6, "chunk": 5}', "6 actions of a chunk of 5"),
        ('{"task": 1, "actions": 5, "chunk": 5}', "'kind'"),
        ('{"task": 1, "kind": "a", "actions": 5, "chunk": 5, "asked_s": -1}', "asked_s is -1"),
        ('{"task": 1, "kind": "a", "actions": 5, "chunk": 5, "served_s": 0}', "served_s is 0"),
        ('{"task": 1, "kind": "a", "actions": 5, "chunk": 5, "step_s": NaN}', "step_s is nan"),
    ],
)
def test_a_line_that_is_no_round_is_named(tmp_path, line, says):
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"task": 1, "kind": "a", "actions": 5, "chunk": 5}\n' + line + "\n")
    with pytest.raises(ValueError, match=says):
        traces.load(path)


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"caf\xe9" * 9999)
    for load in (traces.load, profiles.load):
        with pytest.raises(ValueError, match=rf"^{path}.*can't decode byte 0xe9") as refusal:
            load(path)
        assert len(str(refusal.value)) < 300


def test_a_file_without_rounds_is_refused(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"rounds\.jsonl"):
        traces.load(path)


def test_a_profile_is_read(tmp_path):
    path, replica = tmp_path / "profile.json", make_replica(3, 0.1, 0.2)
    known = {str(size): seconds for (_, size), seconds in replica.profile.known().items()}
    path.write_text(json.dumps({"device": "x", "profile": {"serve": known}}))
    found = profiles.load(path, faster=2.0, network_s=0.3)
    assert (found.limit, found.network_s) == (3, 0.3)
    assert found.profile.known() == {key: pytest.approx(s / 2) for key, s in replica.profile.known().items()}
    assert profiles.assumed(WORKLOADS["robotwin_wam"]).serves_s(4) == pytest.approx(0.35 + 4 * 0.25)


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"profile": {"serve": {"1": -1}}}', '{"profile": {"encode": {"1": 1}}}', '{"profile": 3}'],
)
def test_another_file_is_no_profile(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"is no profile.*{SERVE}"):
        profiles.load(path)


def test_static_is_the_default():
    assert draw(WORKLOADS["meta_smol"], 2) == draw(WORKLOADS["meta_smol"], 2, STATIC)
