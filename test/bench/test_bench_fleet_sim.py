"""The bench of fleet policies runs, and docs/fleet_sim.md has the tables of its file."""

from __future__ import annotations

import json
import math

import fleet_sim
import fleet_sim_fresh
import numpy as np
import pytest
from fleet_sim_statistics import interval
from fleet_sim_tables import PAGE, RESULT, TABLES, filled, markdown


def test_it_runs_and_its_tables_can_be_made(tmp_path, capsys):
    assert fleet_sim.main(["--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "fleet_sim.json").read_text())
    assert document["simulated"] is True and document["profiles"] == "assumed"
    for name in TABLES:
        assert markdown(name, document).count("\n") > 4
    assert "libero_pi05" in capsys.readouterr().out


def test_what_bounds_the_best_policy_is_simulated(tmp_path):
    assert fleet_sim_fresh.main(["--small", "--seeds", "2", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "fleet_sim_fresh.json").read_text())["rows"]
    assert len(rows) == 15 and {row["policy"] for row in rows} == {"aged_remaining", "known", "clairvoyant"}


def test_one_seed_has_no_interval(tmp_path, capsys):
    assert fleet_sim.main(["--seeds", "1", "--out", str(tmp_path)]) == 2
    assert "give 2 or more" in capsys.readouterr().err


def test_the_interval_is_students():
    found = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
    assert found["mean"] == 4.5
    assert found["half"] == pytest.approx(2.3646 * math.sqrt(6.0 / 8.0), rel=0.01)


def test_the_page_has_the_tables_of_the_file():
    page, document = PAGE.read_text(), json.loads(RESULT.read_text())
    assert document["seeds"] >= 8
    assert filled(page, document) == page
