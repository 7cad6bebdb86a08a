"""A plan shared out to processes, each with a GPU of its own, and their files joined again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pipeline
import pytest
import torch
from pipeline import PARTS

from full_size.gpu import alone, gpu_id
from grids import oxygen, sizes
from grids.merging import merged
from grids.parts import SET_UP_S, part
from grids.shares import Group, dealt
from grids.tables import render

ROOT = Path(__file__).parents[2]
CELLS = {("full", "grid"): ("a", "b", "c", "d")}


def planned(name: str) -> dict[str, Any]:
    plan = sizes.plan(name)
    return {each: part(each, plan, torch.device("cpu"), torch.float32) for each in PARTS}


@pytest.mark.parametrize("plan", sizes.PLANS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_every_cell_is_of_one_share_with_what_it_is_compared_with(plan: str, count: int) -> None:
    parts = planned(plan)
    shares = dealt({name: made.groups for name, made in parts.items()}, SET_UP_S, count)
    for name, made in parts.items():
        cells = [cell for share in shares for cell in share[name]]
        assert sorted(cells) == sorted(made.cells)
        for share in shares:
            for group in made.groups:
                assert len(share[name].intersection(group.cells)) in (0, len(group.cells))


def test_the_cells_of_one_isolated_execution_are_a_group() -> None:
    grid = sizes.full().oxygen
    cells, (alone_, *groups) = grid.cells(), grid.groups()
    assert alone_.cells == (oxygen.PARTS,)
    at = [{(cell.steps, cell.tokens) for cell in map(cells.get, group.cells) if cell} for group in groups]
    assert sorted(found for (found,) in at) == sorted((s, n) for s in grid.steps for n in grid.tokens)


def test_shares_of_the_whole_plan_take_about_as_long_as_each_other() -> None:
    parts = planned("full")
    seconds = {group.cells[0]: group.seconds for made in parts.values() for group in made.groups}
    for count in (2, 3, 4):
        shares = dealt({name: made.groups for name, made in parts.items()}, SET_UP_S, count)
        loads = [
            sum(seconds.get(cell, 0.0) for cells in share.values() for cell in cells)
            + sum(SET_UP_S[name] for name, cells in share.items() if cells)
            for share in shares
        ]
        assert max(loads) < 1.2 * min(loads), loads


def test_a_process_is_not_given_a_model_to_make_for_little() -> None:
    groups = {"grid": [Group(("a",), 9.0), Group(("b",), 1.0)], "other": [Group(("c",), 8.0)]}
    first, second = dealt(groups, {"grid": 5.0, "other": 1.0}, 2)
    assert first == {"grid": {"a", "b"}, "other": frozenset()}
    assert second == {"grid": frozenset(), "other": {"c"}}


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "1/0", "-1/4", ""])
def test_what_is_no_share_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pipeline.main(["--small", f"--share={text}", "--json", "x.json"])
    assert f"'{text}' is no share: give I/N" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--resume"], ["--share", "1/2"], ["--merge", "a.json"]])
def test_there_must_be_a_file(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--small", *option]) == 2
    assert f"{option[0]} needs a file of figures: give it by --json FILE" in capsys.readouterr().err


def test_shares_measured_apart_are_one_file_again(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    files = [tmp_path / f"{number}.json" for number in (1, 2)]
    bench = ["--small", "--parts", "oxygen", "staggered"]
    for number, file in enumerate(files, start=1):
        assert pipeline.main([*bench, "--share", f"{number}/2", "--json", str(file)]) == 0
    torch.set_num_threads(threads)
    whole, order = tmp_path / "whole.json", list(sizes.small().oxygen.cells())
    whole.write_text(json.dumps({"mps": {"rows": [], "runs": [], "not_measured": ["with MPS"]}}))
    assert pipeline.main(["--json", str(whole), "--merge", *map(str, files)]) == 0
    document = json.loads(whole.read_text())
    assert document["mps"]["not_measured"] == ["with MPS"], "parts that no share has stay"
    grid = document["oxygen"]
    assert grid["not_measured"] == [] and [row["cell"] for row in grid["rows"]] == order[1:]
    assert document["staggered"]["runs"][0]["share"] in ("1/2", "2/2") and "beside" in grid
    assert "plan small, 7 cells" in render(document)


def figures(*cells: str, **changed: Any) -> dict[str, Any]:
    """A file of one part of plan full, with these cells measured."""
    run = {"plan": "full", "dtype": "bfloat16", "machine": {"gpu": "H200"}, "versions": {"torch": "2.11"}}
    left = [cell for cell in "abcd" if cell not in cells]
    rows = [{"cell": cell, "of": cell.upper()} for cell in cells]
    made = {"rows": rows, "runs": [{**run, "cells": [*cells]}] if cells else [], "not_measured": left}
    return {"grid": {**made, "counts": {"frames": 3}, **changed}}


def joined(files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return merged({Path(name): document for name, document in files.items()}, CELLS)


def test_rows_are_in_the_order_of_the_plan_and_what_is_missing_is_said() -> None:
    one = figures("d", "a", failed={"c": "RuntimeError: no", "b": "tried there"})
    grid = joined({"1": one, "2": figures("b", parts_ms={"act": 7}), "3": figures()})["grid"]
    assert [row["of"] for row in grid["rows"]] == ["A", "B", "D"] and grid["parts_ms"] == {"act": 7}
    assert [run["cells"] for run in grid["runs"]] == [["d", "a"], ["b"]]
    assert grid["not_measured"] == ["c"] and grid["failed"] == {"c": "RuntimeError: no"}


def test_no_cell_counts_twice() -> None:
    with pytest.raises(ValueError, match="grid, b is in 1 and in 2: give files of different shares"):
        joined({"1": figures("a", "b"), "2": figures("b")})


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("plan", "quick", "full, bfloat16, H200, 2.11 and quick, bfloat16, H200, 2.11"),
        ("dtype", "float16", "float16"),
        ("machine", {"gpu": "A100"}, "A100"),
        ("versions", {"torch": "2.12"}, "2.12"),
    ],
)
def test_figures_of_different_tables_are_not_joined(key: str, value: Any, told: str) -> None:
    other = figures("b")
    other["grid"]["runs"][0][key] = value
    with pytest.raises(ValueError, match=f"grid of 1 and of 2 are not of one table: .*{told}"):
        joined({"1": figures("a"), "2": other})


def test_other_counts_and_other_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="grid of 1 and of 2 count other numbers of frames"):
        joined({"1": figures("a"), "2": figures("b", counts={"frames": 4})})
    with pytest.raises(ValueError, match="grid of 1 has a cell that plan full has not: e"):
        joined({"1": figures("e")})


def test_a_gpu_is_measured_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = pytest.raises(RuntimeError, match="GPU-1 is being measured by another process")
    with alone("GPU-1"), alone("GPU-2"), alone(None), alone(None), told, alone("GPU-1"):
        pass
    with alone("GPU-1"):
        pass


@pytest.mark.gpu
def test_energy_is_of_the_gpu_that_is_measured() -> None:
    """In a process that sees only the last GPU, as its first: NVML must find the same PCI bus as torch."""
    last = gpu_id(torch.device("cuda", torch.cuda.device_count() - 1))
    assert last is not None
    code = """
import pynvml, torch
from full_size.gpu import gpu_id
device = torch.device("cuda")
pynvml.nvmlInit()
seen = pynvml.nvmlDeviceGetPciInfo(pynvml.nvmlDeviceGetHandleByUUID(gpu_id(device)))
mine = torch.cuda.get_device_properties(device)
assert (seen.bus, seen.domain) == (mine.pci_bus_id, mine.pci_domain_id)
assert torch.cuda.device_count() == 1
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": last, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_the_page_shows_every_cell_of_the_grid() -> None:
    part_ = json.loads((ROOT / "bench/results/pipeline.json").read_text())["oxygen"]
    run, row = part_["runs"][0], part_["rows"][0]
    cells = list(sizes.full().oxygen.grid())
    rows = [{**row, **cell._asdict(), "frames_s": 1000.0 + index} for index, cell in enumerate(cells)]
    runs = [{**run, "share": f"{number}/4", "cells": ["a", "b"]} for number in range(1, 5)]
    page = render({"oxygen": {**part_, "rows": rows, "runs": runs, "not_measured": []}})
    assert all(f"{1000 + index:,}" in page for index in range(len(cells)))
    assert "plan full, 8 cells in 4 runs, each on a GPU of its own." in page
