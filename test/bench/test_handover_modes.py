"""The tables of modes and masks: what is played, what the figures mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import make_policy

from handovers import masks, modes
from handovers.modes import Cell, Plan, summary
from handovers.paired import bootstrap
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.tools.demo_policy.rollout import Episode


def make_cell(mode: str, times: list[float | None], condition: str = "static", delay: int = 4) -> Cell:
    """Episodes with these times, None for a failure."""
    episodes = [
        Episode(
            "reach the red block", "reach", seed, "normal", time is not None, time or 4.0,
            jerk=200.0 + seed, answers_right=0, answers_asked=0, tracking=0.03, seam=0.05,
        )
        for seed, time in enumerate(times)
    ]  # fmt: skip
    return Cell(condition, delay, mode, episodes)


def test_a_plan_has_every_condition_delay_and_mode() -> None:
    plan = Plan(Path("policy"), Path("contract"))
    assert len(plan.cells) == len(set(plan.cells)) == 3 * 3 * len(modes.MODES)
    assert {"block", "async", "blend", "rtc"} <= set(modes.MODES)
    assert plan.as_dict()["policy"] == "policy"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"family": "dance"}, "family is 'dance'; use one of reach"),
        ({"seeds": 0}, "seeds is 0"),
        ({"delays": ()}, "delays are"),
        ({"delays": (0, 4)}, "of at least 1 step"),
    ],
)
def test_a_wrong_plan_is_refused(wrong: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Plan(Path("policy"), Path("contract"), **wrong)


def test_differences_are_paired_by_seed() -> None:
    blend, rtc = make_cell("blend", [1.0, 3.0, None, 2.0]), make_cell("rtc", [0.9, 2.9, 1.0, None])
    rows = {row["mode"]: row for row in summary([blend, rtc])}
    assert rows["rtc"]["success"] == rows["blend"]["success"] == 0.75
    assert rows["rtc"]["time_s"]["n"] == 3
    assert rows["rtc"]["time_s"]["median"] == 1.0
    against = rows["rtc"]["against_blend"]
    assert (against["won_only_here"], against["won_only_there"]) == (1, 1)
    assert against["time_s"]["n"] == 2
    assert against["time_s"]["median"] == pytest.approx(-0.1)
    assert rows["blend"]["against_blend"]["jerk"]["median"] == 0.0


def test_the_table_shows_a_cell_without_success() -> None:
    rows = summary([make_cell("blend", [1.0, 1.0]), make_cell("rtc", [None, None])])
    head, rule, blend, rtc = modes.lines(rows)
    assert head.count("|") == rule.count("|") == blend.count("|") == rtc.count("|") == 11
    assert "| static | 4 | rtc | 2 | 0 (0-66) | - | - |" in rtc
    assert "| 100 (34-100) | 1.00 (1.00 to 1.00) | +0.00 (+0.00 to +0.00) |" in blend
    (row,) = modes.as_json([make_cell("rtc", [1.0, None])])
    assert (row["success"], row["time_s"], row["jerk"]) == ([1.0, 0.0], [1.0, 4.0], [200.0, 201.0])


def test_the_bootstrap_covers_the_median_and_shrinks_with_more_values() -> None:
    rng = np.random.default_rng(1)
    few, many = bootstrap(rng.normal(5, 1, 10).tolist()), bootstrap(rng.normal(5, 1, 1000).tolist())
    assert few[0] < 5 < few[1] and many[0] < 5 < many[1]
    assert many[1] - many[0] < 0.3 * (few[1] - few[0])


def test_what_a_mask_keeps_is_predicted_from_its_weights() -> None:
    contract = Contract.load(demo_contract())
    engine = Engine(make_policy(delta_mask=contract.delta_mask, horizon=32), steps=5)
    rows = {row["mask"]: row for row in masks.table(engine, SimRobot((28, 28)), contract, seeds=2)}
    assert rows["delay only"]["predicted"] == pytest.approx([1, 0, 0, 0, 0, 0])
    assert rows["hard, whole overlap"]["predicted"] == pytest.approx([1] * 6)
    assert rows["hard, whole overlap"]["kept"] == pytest.approx([1] * 6, abs=0.3)
    assert rows["delay only"]["kept"][0] > 0.7 > rows["delay only"]["kept"][-1]
    for row in rows.values():
        assert row["predicted"] == sorted(row["predicted"], reverse=True) or "strength" in row["mask"]
    head, rule, *body = masks.lines(rows.values())
    assert len(body) == len(masks.MASKS)
    assert head.count("|") == rule.count("|") == body[0].count("|")
