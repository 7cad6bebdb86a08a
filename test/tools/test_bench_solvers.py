"""`vla bench solvers`: what a table of solvers says of a policy, and which observations it is made on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy
from openvla_builders import make_openvla_folder
from recorded_run import Run

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.bench import solvers
from vla_accel_ros.tools.bench.observations import recorded


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_solvers_more_steps_are_nearer_and_ab2_is_nearer_with_as_many(kind, monkeypatch):
    policy = make_policy(kind)
    smooth = lambda x, t, state, kv: x * torch.sin(3.0 * t) - 0.5  # noqa: E731
    monkeypatch.setattr(policy.model, "velocity", smooth)
    table = solvers.errors(
        policy,
        [make_observation(seed) for seed in range(3)],
        solvers.ways(("euler", "ab2"), (20, 80), "openpi"),
    )
    error = {row["way"]: row["error"]["median"] for row in table["ways"]}
    assert list(error) == ["euler 10", "euler 20", "euler 80", "ab2 20", "ab2 80"]
    assert error["euler 20"] > error["euler 80"] > error["ab2 80"] > 0.0
    assert error["ab2 20"] > table["reference_to_half"]["median"] > error["ab2 80"]
    assert table["observations"] == 3 and table["two_samples"]["median"] > error["euler 80"]
    default = {row["way"]: row["to_default"]["most"] for row in table["ways"]}
    assert default.pop("euler 10") == 0.0 and min(default.values()) > 0.0


def test_solvers_policy_without_a_flow_and_ways_that_there_are_not_are_refused(tmp_path):
    policy = load_policy(make_openvla_folder(tmp_path / "openvla"))
    with pytest.raises(ValueError, match="openvla"):
        solvers.errors(policy, [], {})
    with pytest.raises(ValueError, match=r"solver is 'ab2'.*openvla"):
        Engine(policy, solver="ab2")
    with pytest.raises(ValueError, match="solver is 'heun'"):
        solvers.ways(("heun",), (5,), "openpi")
    with pytest.raises(ValueError, match="steps is 0"):
        solvers.ways(("ab2",), (0,), "openpi")


def test_solvers_observations_of_a_bag_are_those_that_were_seen_spread_over_it(tmp_path):
    path = Run(tmp_path).frames(7).tell().end()
    few, model, contract = recorded(path, 3)
    every, _, _ = recorded(path, 100)
    assert model == tmp_path / "model" and len(every) == 7 and len(few) == 3
    for observation, other in zip(few, every[::3], strict=False):
        assert observation.stamp_ns == other.stamp_ns and observation.instruction == other.instruction
        np.testing.assert_array_equal(observation.state, other.state)
        assert set(observation.images) == {camera.image for camera in contract.cameras}
        assert not any(picture.sum() == 0 for picture in observation.images.values())
    assert every[4].instruction == "reach the blue block" != every[3].instruction


def test_solvers_command_measures_a_bag_and_writes_what_it_prints(tmp_path, capsys):
    path, out = Run(tmp_path).frames(3).tell().end(), tmp_path / "found.json"
    options = ["--bag", str(path), "--frames", "2", "--steps", "2", "4", "--runs", "1", "--out", str(out)]
    assert cli.main(["bench", "solvers", *options]) == 0
    printed, document = capsys.readouterr().out, json.loads(out.read_text())
    rows = re.findall(r"^\| ((?:euler|ab2) \d+) \| ([\d.]+) \|", printed, re.MULTILINE)
    assert rows == [(row["way"], f"{row['error']['median']:.4f}") for row in document["ways"]]
    assert [way for way, _ in rows] == ["euler 10", "euler 2", "euler 4", "ab2 2", "ab2 4"]
    assert all(row["ms"]["p50"] > 0 for row in document["ways"])
    assert document["model"] == "model" and "machine" in document and str(tmp_path) not in out.read_text()
    assert cli.main(["bench", "solvers", "--frames", "0"]) == 2
    assert "--frames is 0" in capsys.readouterr().err


def test_solvers_bag_without_images_is_refused(tmp_path):
    path: Path = Run(tmp_path, spoil=lambda *_: None).frames(2).tell().end()
    with pytest.raises(ValueError, match=str(path)):
        recorded(path, 4)
