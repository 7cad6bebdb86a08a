"""bench/pipeline.py runs whole on small models, and what it compares is equal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import pytest
import torch

from grids import sizes
from grids.arrivals import ARRIVALS, arrivals
from grids.report import table

ENERGY = {"power_w", "energy_mj", "isolated_energy_mj"}
SYSTEMS = [
    "HF eager",
    "sequential",
    "naive pipe",
    "pipelined",
    *(f"speculative {part}%{fresh}" for part in (0, 50, 100) for fresh in ("", ", fresh")),
    "HF, one graph",
]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("bench") / "deep" / "pipeline.json"
    assert pipeline.main(["--small", "--json", str(file)]) == 0
    torch.set_num_threads(threads)
    return json.loads(file.read_text())


def assert_figures(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        for name, value in row.items():
            if name in ENERGY:
                assert value is None, "a CPU does not count its energy"
            elif not isinstance(value, str):
                assert math.isfinite(value) and value >= 0, (name, value)


def test_the_grid_of_oxygen(document: dict[str, Any]) -> None:
    rows = document["oxygen"]["rows"]
    cells = [(row["steps"], row["tokens"], row["per_frame"], row["arrivals"]) for row in rows]
    assert cells == list(sizes.small().oxygen.grid())
    assert_figures(rows)
    for row in rows:
        assert row["tokens_equal"] == row["plain_tokens_equal"] == 1.0 and row["texts"] > 0
        assert row["actions_error"] == 0.0 and row["plain_actions_error"] < 1e-5
        assert {"bound_frames_s", "over_isolated", "over_plain", "memory_gb"} <= row.keys()
        assert row["frames"] == 6
    uniform = {row["per_frame"]: row["batch"] for row in rows if row["arrivals"] == "uniform"}
    assert uniform == {1: 4.0, 4: 1.0}, "texts under way at once: N / k"
    assert_figures([document["oxygen"]["beside"], document["oxygen"]["parts_ms"]])
    assert {"observe", "act", "last hidden", "decode 4", "head 1"} <= document["oxygen"]["parts_ms"].keys()


def test_the_grid_of_actionflow(document: dict[str, Any]) -> None:
    rows = document["actionflow"]["rows"]
    assert [row["system"] for row in rows] == SYSTEMS
    found = {row["system"]: row for row in rows}
    assert found["HF eager"].pop("over_sequential") is None
    assert_figures(rows)
    for row in rows:
        assert row["tokens_equal"] == row["hf_tokens_equal"] == 1.0, row["system"]
    assert [found[f"speculative {part}%"]["accepted"] for part in (0, 50, 100)] == [0, 1, 2]
    (forwards,) = document["actionflow"]["forwards"]
    assert_figures([forwards])
    assert {"prefill_ms", "drafted_ms", "decode_ms", "packed_ms", "shift_ms"} <= forwards.keys()
    assert {"packed_by_64_ms", "packed_to_rows_ms", "packed_to_products_ms"} <= forwards.keys()


def test_staggered_against_sequential(document: dict[str, Any]) -> None:
    rows = document["staggered"]["rows"]
    assert [(row["system"], row["steps"]) for row in rows] == [("sequential", 3), ("staggered", 3)]
    assert_figures(rows)
    assert all(row["actions_error"] < 1e-5 for row in rows)


def test_two_processes(document: dict[str, Any]) -> None:
    *rows, with_mps = document["mps"]["rows"]
    assert [row["way"] for row in rows] == ["one after the other", "both at once", "each as fast as it can"]
    for row in rows:
        assert (row["system"], row["steps"], row["tokens"]) == ("two processes", 2, 4)
    assert_figures([{**row, "over_in_turn": row.get("over_in_turn", 0.0)} for row in rows])
    assert with_mps["system"] == "two processes, MPS"


def test_where_the_figures_come_from(document: dict[str, Any]) -> None:
    plan = sizes.small()
    whole = {"oxygen": len(plan.oxygen.cells()), "actionflow": 1, "staggered": 1, "mps": 2}
    assert document.keys() == whole.keys()
    for name, cells in whole.items():
        (run,) = document[name]["runs"]
        assert run["plan"] == "small" and run["dtype"] == "float32" and len(run["cells"]) == cells
        assert {row["cell"] for row in document[name]["rows"]} <= set(run["cells"])
        assert {"machine", "versions", "date", "seconds", "usable_cores"} <= run.keys()
        assert document[name]["not_measured"] == [] and document[name]["counts"]


def test_arrivals() -> None:
    assert arrivals("uniform", 3, 9) == [[9], [9], [9]]
    poisson = [len(frame) for frame in arrivals("poisson", 4000, 9)]
    assert np.mean(poisson) == pytest.approx(1.0, abs=0.05) and max(poisson) > 2 and min(poisson) == 0
    mixed = [length for (length,) in arrivals("random length", 1000, 10)]
    assert set(mixed) == {2, 10} and np.mean(mixed) == pytest.approx(6.0, abs=0.3)
    with pytest.raises(ValueError, match="arrivals are 'rush'"):
        arrivals("rush", 1, 1)


def test_requests_of_different_lengths_are_compared_with_what_each_takes_alone(
    document: dict[str, Any],
) -> None:
    rows = {row["arrivals"]: row for row in document["oxygen"]["rows"] if row["per_frame"] == 1}
    tokens = {kind: row["isolated_tokens_s"] / row["isolated_frames_s"] for kind, row in rows.items()}
    assert tokens["uniform"] == pytest.approx(4.0, rel=0.01)
    assert 1.0 < tokens["random length"] < 4.0, "short texts have one token, long ones four"


def test_a_table_has_dashes_for_what_is_not_there() -> None:
    lines = table([{"system": "one", "frames_s": 1.5}, {"system": "two", "none": "no GPU"}]).splitlines()
    assert lines[0].split() == ["system", "frames/s", "none"]
    assert lines[1].split() == ["one", "1.5", "-"]
    assert lines[2].split() == ["two", "-", "no", "GPU"]


def test_the_full_and_the_quick_grid() -> None:
    full, quick = sizes.full(), sizes.quick()
    assert len(list(full.oxygen.grid())) == 3 * (3 + 4 + 4 + 5) * len(ARRIVALS)
    assert len(full.actionflow.cells()) == 16
    assert set(quick.oxygen.grid()) <= set(full.oxygen.grid())
    first = list(full.oxygen.grid())[:5]
    assert {(cell.steps, cell.tokens, cell.arrivals) for cell in first} == {(10, 30, "uniform")}


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pipeline.main(["--json", str(tmp_path / "no.json")]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
