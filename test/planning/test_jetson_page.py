"""docs/guide/jetson.md prints what the plan predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import Work

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "jetson.md").read_text()


@pytest.mark.parametrize("mode", ["maxn", "50w", "30w", "15w"])
def test_the_table_of_power_modes_is_the_plans(mode: str) -> None:
    printed = []
    for precision in ("exact", "w8a8", "w8a8-int4"):
        plan = make_plan(MODELS["pi05"], load(f"orin-agx-64:{mode}"), Work(precision=precision))
        ms, least, most = (f"{1e3 * each:.0f}" for each in plan.latency)
        printed.append(f"{ms} ({least} to {most})")
    assert f"| `{mode}` | {' | '.join(printed)} |" in PAGE
