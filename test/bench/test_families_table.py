"""The table of families has all kinds, whatever numbers of images they take, and rows of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from families import BENCH, KINDS, STEPS

import run
import tables.forms
from tables.engine import families

VIEWS = {"fastwam": (2,), "mimic_video": (5,), "groot_n1_5": (1,)}
"""Of other kinds 1 and 2 are measured."""


def case_of(kind: str, views: int) -> dict[str, Any]:
    """Made up: a frame takes as many milliseconds as there are views, and its number's tenth."""
    time = views + [*KINDS].index(kind) / 10
    case: dict[str, Any] = {"kind": kind, "views": views, "weights_gb": 2.0 * views}
    case |= {"frame": {"p50_ms": time, "p99_ms": time + 10.0}, "act": {"p50_ms": 1.0, "p99_ms": 1.0}}
    if kind == "pi0_fast":
        return case | {"token": {"p50_ms": 1.5, "p99_ms": 2.0}}
    return case | {"eager": {"p50_ms": 50.0, "p99_ms": 60.0}, "error": 0.0025}


def made_up(given: run.Given) -> Iterator[run.Row]:
    for kind in given.kinds:
        yield from (case_of(kind, views) for views in VIEWS.get(kind, (1, 2)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables.forms, "RESULTS", tmp_path)
    return tmp_path


def measured(folder: Path, *kinds: str) -> None:
    bench = replace(BENCH, measure=made_up, gpu=False)
    assert run.main(bench, ["--kinds", *kinds, "--json", str(folder / "families.json")]) == 0


def rows() -> list[list[str]]:
    head, *lines = map(list, families())
    assert all(len(line) == len(head) for line in lines)
    return [head, *lines]


def test_the_table_has_every_kind_with_the_views_that_it_takes(folder: Path) -> None:
    measured(folder, *KINDS)
    head, *lines = rows()
    assert head[3:6] == ["1 view", "2 views", "5 views"]
    cells = {line[0]: line[1:] for line in lines}
    assert len(cells) == len(KINDS)
    assert cells["GR00T N1.7"] == ["4", "4.00", "1.0", "2.0", "-", "12.0", "50", "0.25 %"]
    assert cells["GR00T N1.5"] == ["4", "2.00", "1.1", "-", "-", "11.1", "50", "0.25 %"]
    assert cells["OpenVLA-OFT"][0] == str(STEPS["openvla_oft"])
    assert cells["pi0-FAST"] == ["tokens of 1.50 ms", "4.00", "1.4", "2.4", "-", "12.4", "-", "-"]
    assert cells["Fast-WAM"][2:5] == ["-", "2.5", "-"]
    assert cells["mimic-video"] == ["10", "10.00", "-", "-", "5.6", "15.6", "50", "0.25 %"]


def test_the_rows_of_a_kind_that_is_not_measured_again_stay(folder: Path) -> None:
    measured(folder, "groot_n1_7", "xvla")
    before = rows()
    measured(folder, "groot_n1_7")
    assert rows() == before
    measured(folder, "fastwam")
    assert [line[0] for line in rows()] == ["", "GR00T N1.7", "X-VLA", "Fast-WAM"]
    assert json.loads((folder / "families.json").read_text())["kinds"] == ["fastwam"]
