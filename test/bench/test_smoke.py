"""Every bench runs on the smallest case that it has, and its file says where and when it was made."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import run
from tables.pages import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")
NEEDS_A_GPU = {"block_shapes"}
STARTS_NODES = {
    name for name in run.names() if "starts_nodes=True" in (run.BENCHES / f"{name}.py").read_text()
}


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The file of a bench, run on its smallest case."""
    bench = importlib.import_module(name).BENCH
    assert run.main(bench, [*bench.smoke.split(), "--out", str(folder)]) == 0
    (path,) = folder.glob(f"{name}*.json")  # some have a file of their own for a part, device or size
    document: dict[str, Any] = json.loads(path.read_text())
    for part in document.get("parts", {"": document}).values():
        assert {"machine", "versions", "date"} <= part.keys()
    return document


@pytest.mark.parametrize("name", sorted({*run.names()} - STARTS_NODES - NEEDS_A_GPU))
def test_it_runs_on_its_smallest_case(name: str, tmp_path: Path) -> None:
    document = measured(name, tmp_path)
    bench = importlib.import_module(name).BENCH
    rows = document[bench.rows] if bench.measure is not None else document
    assert rows and "failed" not in str(rows)


def test_without_a_gpu_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.command(["engine"]) == 1
    sentence = capsys.readouterr().err
    assert "no CUDA device" in sentence and sentence.count("\n") == 1


def test_it_is_listed_and_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.command(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in run.names())
    assert run.command(["engin"]) == 2
    assert "no bench is called engin" in capsys.readouterr().err


def counted(given: run.Given) -> Any:
    """As many rows as asked for; then an end that no bench has."""
    for number in range(given.count):
        yield {"number": number, "seed": given.seed}
    if given.count > 2:
        raise KeyboardInterrupt


BENCH = run.Bench(
    "engine", counted, lambda add: (add("--count", type=int), add("--seed", type=int)), key=("number",)
)


def test_rows_of_other_cases_stay_and_an_interrupted_run_keeps_its_own(tmp_path: Path) -> None:
    def rows() -> list[tuple[int, int]]:
        document = json.loads((tmp_path / "engine.json").read_text())
        return [(row["number"], row["seed"]) for row in document["cases"]]

    assert run.main(BENCH, ["--count", "2", "--seed", "5", "--out", str(tmp_path)]) == 0
    assert rows() == [(0, 5), (1, 5)]
    assert run.main(BENCH, ["--count", "1", "--seed", "6", "--out", str(tmp_path)]) == 0
    assert sorted(rows()) == [(0, 6), (1, 5)]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        raise SystemExit(run.main(BENCH, ["--count", "3", "--seed", "7", "--out", str(tmp_path)]))
    assert sorted(rows()) == [(0, 7), (1, 7), (2, 7)]
    assert not list(tmp_path.glob("*.part"))


def test_every_table_of_the_pages_is_made_of_its_file() -> None:
    assert (ROOT / "docs").is_dir()
    assert run.command(["tables", "--check"]) == 0
