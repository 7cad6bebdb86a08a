"""Benches that start nodes run on their smallest case."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_smoke import STARTS_NODES, measured

import run

pytestmark = pytest.mark.usefixtures("one_thread", "environment")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What it was, after a command that enters a graph of its own; a process finds what is in bench/."""
    before = dict(os.environ)
    paths = [str(run.BENCHES.parent), str(run.BENCHES), before.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("name", sorted(STARTS_NODES))
def test_it_runs_on_its_smallest_case(name: str, tmp_path: Path) -> None:
    if name == "fleet_replicas":
        pytest.importorskip("ray")
    assert measured(name, tmp_path)[importlib.import_module(name).BENCH.rows]
