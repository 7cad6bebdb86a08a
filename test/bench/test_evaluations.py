"""bench/evaluations.py with a tiny model on a CPU: each chunk is its solver's, in its number of steps."""

from __future__ import annotations

import json
from pathlib import Path

import evaluations
import pytest
import torch

from grids.sizes import config_of
from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_way_has_its_times_and_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--kinds", "pi0", "--views", "1", "--runs", "2", "--out", str(tmp_path)]
    assert evaluations.main(given) == 0
    document = json.loads((tmp_path / "evaluations.json").read_text())
    assert {"machine", "versions", "date", "seeds", "prompt", "runs", "dtype"} <= document.keys()
    cases = {case["way"]: case for case in document["cases"]}
    assert list(cases) == ["euler 10", "euler 5", "ab2 10", "ab2 5"]
    for case in cases.values():
        assert case["to_float32"] < 1e-5 and case["plain_to_float32"] == 0.0
        assert all(case[stage]["p99_ms"] >= case[stage]["p50_ms"] > 0 for stage in evaluations.STAGES)
    assert "pi0, 1 view, ab2 5" in capsys.readouterr().out


def test_ways_differ_by_more_than_their_errors() -> None:
    device = torch.device("cpu")
    config = config_of("pi0", True)
    model, inputs = random_model(config, device), random_inputs(config, 1, evaluations.PROMPT, device)
    plain = evaluations.plain(model, inputs)
    for way in evaluations.WAYS:
        chunk = Ours(model, inputs, way.steps, solver=way.solver).actions
        apart = {of: float((chunk - other).norm() / other.norm()) for of, other in plain.items()}
        own = apart.pop((way.solver, way.steps))
        assert own < 1e-5 < 1e-4 < min(apart.values())
