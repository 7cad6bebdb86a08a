"""What a page prints, and the measured figures that it must be."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
README, PERFORMANCE, STAGGERED = "README.md", "docs/lab/performance.md", "docs/lab/staggered.md"
FLEET_SIM, FLEET_DEMO, REPLICAS = (
    "docs/lab/fleet_sim.md",
    "docs/lab/fleet_demo.md",
    "docs/lab/fleet_replicas.md",
)
TRACE, OFFLOAD, CORUN = "docs/guide/trace.md", "docs/lab/offload.md", "docs/lab/corun.md"
PLAN, PRECISION, TUNING = "docs/lab/plan.md", "docs/lab/precision.md", "docs/guide/tuning.md"
STREAMING, SCHEDULER = "docs/lab/streaming.md", "docs/lab/fleet_scheduler.md"
Claim = tuple[str, str, list[float | None]]


@cache
def result(name: str) -> Any:
    """bench/results/NAME.json"""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The first row that has what is wanted."""
    return next(row for row in rows if all(row.get(name) == value for name, value in wanted.items()))


def percent(won: int, played: int) -> tuple[float, float]:
    """The interval of a success rate at 95 %: the roots of (p - rate)^2 n = z^2 p (1 - p) (Wilson)."""
    z2 = 1.959964**2
    roots = np.roots([played + z2, -(2 * won + z2), won * won / played])
    return 100 * float(min(roots)), 100 * float(max(roots))


def counted(demo: dict[str, Any]) -> list[float]:
    """Of the demo: episodes that succeeded, all, and the interval of their share."""
    won, played = (sum(pair[i] for pair in demo["successes"].values()) for i in (0, 1))
    return [won, played, *percent(won, played)]


def printed(text: str) -> list[str]:
    """The numbers in it, not those that are part of a name."""
    return re.findall(r"(?<![\w.^])(?<!\d,)(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?![\w^]|\.\d)", text)
