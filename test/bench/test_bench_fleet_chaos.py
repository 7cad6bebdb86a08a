"""The plan of kills, and the page: it is made of the published run, in which nothing was wrong."""

from __future__ import annotations

from typing import Any

import fleet_chaos
import pytest

from chaos import leaks
from chaos.run import KINDS, MOVES_S, SCHEDULER, Kill, plan, report
from tables.forms import result


def test_nothing_was_wrong_in_the_published_run() -> None:
    assert result("fleet_chaos")["kills"] > 20 and not fleet_chaos.faults(result("fleet_chaos"))


def test_a_plan_is_the_same_for_a_seed_and_spares_the_last_robot_and_in_the_end_the_scheduler() -> None:
    planned = plan(200, seed=1, robots=3)
    assert planned == plan(200, seed=1, robots=3) != plan(200, seed=2, robots=3)
    assert {one.kind for one in planned} == set(KINDS) and {one.robot for one in planned} == {0, 1}
    assert all(one.kind != SCHEDULER for one in planned[130:])


def of_kills(*kills: Kill, **left: object) -> dict[str, Any]:
    """What a run found in which nothing else was wrong."""
    clean: dict[str, Any] = {"idle": True, "goes_on_again": True, "strangers_in_the_graph": []}
    clean |= {"room": "3", "most": "3", "slots_in_use": "0", "waiting": "0"}
    clean["shared_memory"] = {"files": 0, "mb": 0.0, "segments_of_this_package": 0}
    whole = {"robots_judged": {}, "by_kind": report(list(kills)), "left": {**clean, **left}, "lives": []}
    return {**whole, "ended_by_themselves": {}, "kills": len(kills)}


def killed(resumed_s: float | None, **more: Any) -> Kill:
    """A kill after which its robot goes on."""
    return Kill("inference", 1.0, "/robot0/inference", ready_s=2.0, resumed_s={"/robot0": resumed_s}, **more)


def test_a_robot_that_did_not_go_on_is_a_fault_and_counted() -> None:
    run = of_kills(killed(0.5), killed(None))
    row = run["by_kind"]["inference"]
    assert row["kills"] == 2 and row["stuck"] == 1
    assert fleet_chaos.faults(run) == ["inference: 1 robots did not go on"]


def test_a_robot_that_goes_on_late_or_is_silent_is_a_fault() -> None:
    assert fleet_chaos.faults(of_kills(killed(MOVES_S))) == []
    assert "the bound is" in fleet_chaos.faults(of_kills(killed(MOVES_S + 0.1)))[0]
    (sentence,) = fleet_chaos.faults(of_kills(killed(1.0, silent=["/robot0"])))
    assert "neither moved nor said why" in sentence


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"idle": False, "room": "2"}, "room 2 of 3"),
        ({"strangers_in_the_graph": ["node /robot0/inference"]}, "node /robot0/inference"),
        ({"shared_memory": {"files": 9, "mb": 0.1, "segments_of_this_package": 0}}, "9 files"),
        ({"shared_memory": {"files": 1, "mb": 5.0, "segments_of_this_package": 0}}, "5.0 MB"),
        ({"shared_memory": {"files": 0, "mb": 0.0, "segments_of_this_package": 1}}, "no writer any more"),
        ({"goes_on_again": False}, "does not go on"),
    ],
)
def test_what_is_left_is_a_fault(left: dict[str, Any], said: str) -> None:
    (fault,) = fleet_chaos.faults(of_kills(killed(1.0), **left))
    assert said in fault


@pytest.mark.parametrize("what", leaks.MOST)
def test_a_process_that_grows_beyond_its_limit_is_a_fault(what: str) -> None:
    life: dict[str, Any] = {"process": "scheduler", "minutes": 2.0, "kills": 5}
    life |= {name: [100, 100] for name in leaks.MOST}
    assert fleet_chaos.faults(of_kills(killed(1.0)) | {"lives": [life]}) == []
    life[what] = [100, 120]
    (fault,) = fleet_chaos.faults(of_kills(killed(1.0)) | {"lives": [life]})
    assert f"scheduler, 2.0 minutes and 5 kills of others: {what} from 100 to 120" in fault
