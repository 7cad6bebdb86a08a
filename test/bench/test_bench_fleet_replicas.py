"""bench/fleet_replicas.py with tiny models on a CPU: real actors of Ray, every case with its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fleet_replicas
import pytest
import torch

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("one_thread")
BENCH = Path(fleet_replicas.__file__).parent
SETTING = "scheduling=batches,staggered=4,frames_together=2"


def test_every_case_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BENCH.parent), str(BENCH)]))
    given = ["--small", "--size", "30", "40", "--seconds", "1", "--fleet-seconds", "1", "--warm-up", "0.5"]
    given += ["--robots", "2", "--hz", "1", "--setting", SETTING, "--out", str(tmp_path)]
    assert fleet_replicas.main(given) == 0
    document = json.loads((tmp_path / "fleet_replicas.json").read_text())
    assert {"machine", "versions", "date", "seeds", "setting", "dtype"} <= document.keys()
    assert document["function_only"] and document["versions"]["ray"] and len(document["network_ms"]) == 2
    cases = {case["case"]: case for case in document["cases"]}
    assert list(cases) == ["local", "ray, first", "ray, second", "ray, both"]
    for case in cases.values():
        saturated, fleet = case["saturated"], case["fleet"]
        assert saturated["refused"] == fleet["unanswered"] == 0 and fleet["requests"] >= 2
        assert saturated["robots"] > fleet["robots"] and saturated["cpu_ms_per_chunk"] > 0
    assert cases["ray, first"]["fleet"]["by_replica"].keys() == {"first"}
    assert cases["ray, both"]["fleet"]["robots"] == 4


def test_the_speed_up_is_over_the_mean_of_either_alone() -> None:
    hz = {"local": 9.0, "ray, first": 10.0, "ray, second": 12.0, "ray, both": 22.0}
    cases = [{"case": name, "saturated": {"chunks_hz": each}} for name, each in hz.items()]
    assert fleet_replicas.speedup(cases) == 2.0
    cases[2]["saturated"] = {"chunks_hz": 0.0}
    with pytest.raises(RuntimeError, match="the second replica made no chunk while saturated"):
        fleet_replicas.speedup(cases)


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fleet_replicas.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
