"""The plan of kills, and the page: it is made of the published run, in which nothing was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fleet_chaos

from chaos import table
from chaos.run import KINDS, SCHEDULER, Kill, plan, report


def published() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads(fleet_chaos.RESULT.read_text())
    return found


def test_the_page_is_made_of_the_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(fleet_chaos.PAGE.read_text())
    table.write(page, published())
    assert page.read_text() == fleet_chaos.PAGE.read_text()


def test_nothing_was_wrong_in_it() -> None:
    assert published()["kills"] > 20 and not fleet_chaos.faults(published())


def test_a_plan_is_the_same_for_a_seed_and_spares_the_last_robot_and_in_the_end_the_scheduler() -> None:
    planned = plan(200, seed=1, robots=3)
    assert planned == plan(200, seed=1, robots=3) != plan(200, seed=2, robots=3)
    assert {one.kind for one in planned} == set(KINDS) and {one.robot for one in planned} == {0, 1}
    assert all(one.kind != SCHEDULER for one in planned[130:])


def test_a_robot_that_did_not_go_on_is_a_fault_and_counted() -> None:
    kills = [Kill("inference", 1.0, "/robot0/inference", ready_s=2.0, resumed_s={"/robot0": 0.5})]
    kills += [Kill("inference", 9.0, "/robot0/inference", ready_s=2.0, resumed_s={"/robot0": None})]
    found = report(kills)
    assert found["inference"]["kills"] == 2 and found["inference"]["stuck"] == 1
    left = {"idle": True, "goes_on_again": True, "strangers_in_the_graph": []}
    whole = {"robots_judged": {}, "by_kind": found, "left": left, "ended_by_themselves": {}}
    assert fleet_chaos.faults(whole) == ["inference: 1 robots did not go on"]
