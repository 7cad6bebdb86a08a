"""Two processes for two tasks, with and without an MPS daemon, and the page that shows it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from grids import mps, sizes
from grids.tables import render

ROOT = Path(__file__).parents[2]

CONTROL = """#!/bin/sh
# Stands for NVIDIA's: notes what it is told and where its pipes are, serves one server with two clients.
[ "$1" = -d ] && { echo "start in $CUDA_MPS_PIPE_DIRECTORY" >> "$MPS_TOLD"; exit %d; }
read command
echo "$command" >> "$MPS_TOLD"
case $command in get_server_list) echo 71;; "get_client_list 71") printf '72\\n73\\n';; esac
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a daemon's stand-in, first on the path, notes what it is told."""
    install(tmp_path, 0)
    file = tmp_path / "told"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MPS_TOLD", str(file))
    return file


def install(folder: Path, status: int) -> None:
    control = folder / mps.CONTROL
    control.write_text(CONTROL % status)
    control.chmod(control.stat().st_mode | stat.S_IXUSR)


def test_both_processes_are_served_by_a_daemon_of_their_own_that_ends_with_them(told: Path) -> None:
    grid = mps.Grid(2, (2, 3), frames=2, seconds=0.01)
    rows = mps.measure("small", grid, with_mps=True)["rows"]
    assert [(row["tokens"], row["mps_clients"]) for row in rows] == [(n, 2) for n in (2, 2, 2, 3, 3, 3)]
    for row in rows:
        assert row["system"] == "two processes, MPS" and row["frames_s"] > 0 and row["tokens_s"] > 0
    start, *commands = told.read_text().splitlines()
    assert commands == ["get_server_list", "get_client_list 71", "quit"]
    assert not Path(start.removeprefix("start in ")).exists(), "its folder is gone with it"


def test_a_daemon_that_does_not_start_is_told(told: Path, tmp_path: Path) -> None:
    install(tmp_path, 3)
    (row,) = mps.measure("small", sizes.small().mps, with_mps=True)["rows"]
    assert row["none"] == f"{mps.CONTROL} does not start here (status 3): it said nothing"


def test_without_a_daemon_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = mps.measure("small", sizes.small().mps, with_mps=True)["rows"]
    assert "is not installed here" in row["none"]


def test_a_process_that_ends_says_why() -> None:
    with (
        pytest.raises(RuntimeError, match="the juggling process ended with status 1: KeyError: 'huge'"),
        mps.Process("juggling", "huge", sizes.small().mps, {}) as process,
    ):
        process.end()


def test_the_published_page_is_the_published_figures() -> None:
    figures = json.loads((ROOT / "bench/results/pipeline.json").read_text())
    page = (ROOT / "docs/lab/pipeline.md").read_text()
    assert page == render(figures), "run python bench/pipeline.py --tables"


def test_the_page_says_where_a_row_is_not_what_it_is_named_after() -> None:
    run = {"plan": "full", "dtype": "bfloat16", "machine": {"cpu": "C"}, "versions": {}, "date": "2026-11-21"}
    cells = (
        ("speculative 50%", 7, 3.0), ("speculative 50%", 8, 4.0), ("speculative 50%, fresh", 7, 2.67),
        ("speculative 50%, fresh", 8, 3.2), ("speculative 100%", 7, 6.0), ("speculative 100%", 8, 0.0),
        ("pipelined", 7, 0.0),
    )  # fmt: skip
    rows = [
        {
            "system": system,
            "tokens": k,
            "prompt": 9,
            "frames_s": 50.0,
            "age_p50_ms": 20.0,
            "accepted": a,
        }
        for system, k, a in cells
    ]
    page = render({"actionflow": {"rows": rows, "runs": [{**run, "cells": []}], "not_measured": []}})
    assert "| speculative 50% | 50, 20 ms | 50, 20 ms |" in page
    assert "| speculative 50%, fresh | 50, 20 ms (2.67 of 3) | 50, 20 ms (3.2 of 4) |" in page
    assert "| speculative 100% | 50, 20 ms | 50, 20 ms (0 of 7) |" in page
    assert "| pipelined | 50, 20 ms | - |" in page


def test_the_page_says_what_was_not_measured() -> None:
    run = {"plan": "full", "dtype": "bfloat16", "machine": {"cpu": "C"}, "versions": {}, "date": "2026-11-21"}
    part = {"rows": [], "runs": [{**run, "cells": ["S 20"]}], "not_measured": ["S 5", "S 10"]}
    page = render({"staggered": part})
    assert "bfloat16, plan full, 1 cell." in page and "Not measured, 2 of 3 cells: S 5; S 10." in page
    assert page.count("\n\nNot measured.\n") == 2, "the other parts"
