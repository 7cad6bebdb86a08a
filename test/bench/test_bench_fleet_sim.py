"""The bench of fleet policies runs, and docs/lab/fleet_sim.md has the tables of its file."""

from __future__ import annotations

import json
import math

import fleet_sim
import fleet_sim_fresh
import numpy as np
import pytest
from fleet_sim_statistics import doubling, interval
from fleet_sim_tables import AGREEMENT, BURSTS, FLEET, PAGE, RESULT, TABLES, filled, markdown

from vla_accel_ros.extensions import BUILT_IN, FLEET_POLICIES


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
    oracles = {row["policy"] for row in rows if row["oracle"]}
    assert len(rows) == 24 and oracles == {"known", "clairvoyant"}
    assert {row["policy"] for row in rows} - oracles == {"aged_remaining", "aged_srpt"}
    assert (rows[-1]["workload"], rows[-1]["load"]) == ("mixed_fleet", 1.6)


def test_one_seed_has_no_interval(tmp_path, capsys):
    assert fleet_sim.main(["--seeds", "1", "--out", str(tmp_path)]) == 2
    assert "give 2 or more" in capsys.readouterr().err


def test_the_interval_is_students():
    found = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))
    assert found["mean"] == 4.5
    assert found["half"] == pytest.approx(2.3646 * math.sqrt(6.0 / 8.0), rel=0.01)


def test_the_page_has_the_tables_of_the_file():
    page, document = PAGE.read_text(), json.loads(RESULT.read_text())
    assert document["seeds"] >= 6
    assert filled(page, document) == page


def printed(name):
    """The rows of a table as the page has them, by the names of its columns."""
    table = PAGE.read_text().split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_files_say_machine_versions_date_and_seeds():
    for file in (RESULT, AGREEMENT):
        document = json.loads(file.read_text())
        assert {"machine", "versions", "date", "seeds"} <= document.keys() and document["simulated"] is True


@pytest.mark.parametrize("name", TABLES)
def test_a_wait_for_the_first_chunk_stands_beside_each_stall(name):
    head = printed(name)[0]
    assert ("first chunk" in head) == ("stall" in head)


def test_horizons_that_are_an_oracle_are_named_in_their_row():
    rows = printed("closed")
    assert {row["horizons"] for row in rows} == {"static", "dynamic (oracle)"}
    assert any("kairos" in row.values() and row["horizons"] == "dynamic (oracle)" for row in rows)


def test_policies_that_are_oracles_are_named_in_their_row():
    policies = {row["policy"] for row in printed("overload")}
    assert "clairvoyant (oracle)" in policies and "clairvoyant" not in policies


def test_figures_of_the_paper_stand_beside_ours():
    """Kairos, section 5.3."""
    (row,) = (row for row in printed("closed") if row["horizons"] != "static")
    assert (row["robots"], row["paper: average"]) == (str(FLEET), "-41.0 to -42.8 %")


def test_closed_fleets_state_tasks_a_robot_and_are_stationary():
    """By Little's law within 1 %, with the same sign at half the length; robots = rate x latency. `las` and
    three hundred robots need longer runs, and their rows say so."""
    rows = [row for row in json.loads(RESULT.read_text())["closed"] if row["policy"] != "las"]
    for row in rows:
        if row["robots"] <= 100:
            assert abs(row["little"]["mean"] - 1.0) <= 0.01 and row["same_sign"], row["policy"]
            served = row["tasks_per_min"]["mean"] / 60 * row["avg"]["mean"]
            assert served == pytest.approx(row["robots"], rel=0.02)
    assert all(int(row["tasks a robot"]) >= 40 and row["Little's law"] for row in printed("closed"))


def test_bursts_state_their_number_of_tasks():
    rows = printed("overload")
    assert {row["workload"] for row in rows} == set(BURSTS)
    assert all(row["tasks (a robot)"].endswith("(1)") for row in rows)


def test_node_and_simulator_agree_in_the_published_run():
    document = json.loads(AGREEMENT.read_text())
    assert [row["policy"] for row in document["rows"]] == list(BUILT_IN[FLEET_POLICIES])
    for row in document["rows"]:
        assert abs(row["apart"]["avg"]) <= 3.0 and abs(row["apart"]["p95"]) <= 5.0


def test_half_a_run_says_the_same_or_nothing():
    for half, whole, same in (
        (-20.0, -10.0, True),
        (-20.0, 10.0, False),
        (-20.0, 0.5, True),
        (0.5, 9.0, True),
    ):
        assert doubling({"mean": half, "half": 1.0}, {"mean": whole, "half": 1.0}) is same
        assert doubling({"mean": half}, {"mean": whole}) is same
