"""How many robots fit an engine: expected before any is tried, expected for robots as they were seen to ask,
and found by trying."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from fleets.loads import most_robots, play
from fleets.serving import Robots, as_observation, serving
from vla_accel_ros.fleet.admission.forecast import Rhythm, chunks_hz, fits, pace
from vla_accel_ros.fleet.admission.replica_model import Measured, ReplicaModel
from vla_accel_ros.models.policy import Policy

Seen = Sequence[Sequence[float] | None]
"""Of each robot its period, how much that varies, and when it asks next; None where that is not known."""


def rhythm(seen: Sequence[float] | None, hz: float, buffer_s: float) -> Rhythm:
    """Of one robot."""
    if seen is None:
        return Rhythm(1.0 / hz, buffer_s=buffer_s)
    period_s, jitter, next_s = seen
    return Rhythm(period_s, jitter, next_s, buffer_s)


def expected_beside(
    measured: Measured,
    seen: Seen,
    took_s: float | None,
    hz: float,
    within_s: float,
    buffer_s: float,
    most: int,
) -> tuple[int, float]:
    """The largest number of which the last is expected to fit beside the others as they were seen to ask, and
    by which factor the replica was found to be slower than measured. took_s: the median of their requests."""
    model, slower = ReplicaModel.of(measured), 1.0
    if took_s is not None:
        slower = pace(model, [rhythm(asked_rhythm, hz, buffer_s) for asked_rhythm in seen], took_s)
        model = model.slower(slower)

    def fit(robots: int) -> bool:
        known = (*seen[: robots - 1], *[None] * (robots - 1 - len(seen)))
        rhythms = [rhythm(known_rhythm, hz, buffer_s) for known_rhythm in (*known, None)]
        return fits(model, rhythms, within_s)[0]

    return most_robots(fit, 1, most, len(seen)), slower


def half(seeds: Sequence[int], well: Callable[[int], bool]) -> bool:
    """Whether it goes well with at least half of these seeds; tries no more than that needs."""
    good = bad = 0
    for seed in seeds:
        if 2 * good >= len(seeds) or 2 * bad > len(seeds):
            break
        if well(seed):
            good += 1
        else:
            bad += 1
    return 2 * good >= len(seeds)


def measured_fleet(
    policy: Policy, setting: str, robots: Robots, given: argparse.Namespace, told: Callable[[Any], None]
) -> dict[str, Any]:
    """A setting: what is expected, and what is found by windows of each seed: a number fits if at least half
    of the windows do, each by its p99 and its stall, as the forecast has it of its draws. told: of each
    window. What is expected beside robots that were seen is that of the largest fleet that was served well,
    as it asked before what counts."""
    windows: list[dict[str, Any]] = []
    with serving(policy, setting, robots, given.views) as replica:
        replica.measure(as_observation(robots, robots.names[0]))
        model_of_engine = Measured.of(replica)
        hz, within_s, buffer_s, limit = given.hz, given.within, given.buffer, given.most_robots
        expected = min(round(chunks_hz(model_of_engine, hz, within_s, buffer_s) / hz), limit)

        def window(count: int, seed: int) -> dict[str, Any]:
            figures = play([replica], robots, count, hz, buffer_s, given.window, seed, warm_up=given.warm_up)
            windows.append({"seed": seed, **figures})
            told({"setting": f"  seed {seed}", **figures})
            return figures

        def well(figures: dict[str, Any]) -> bool:
            p99_ms = figures["image_to_chunk"].get("p99_ms", math.inf)
            return p99_ms <= 1e3 * within_s and figures["stall"] <= given.stall

        def fit(count: int) -> bool:
            return half(given.admit_seeds, lambda seed: well(window(count, seed)))

        largest = most_robots(fit, 1, limit, expected)
    last = [row for row in windows if row["robots"] == max(1, largest)]
    for row in last:
        took_s = None if row["took_ms"] is None else 1e-3 * row["took_ms"]
        pace_of_robots = expected_beside(model_of_engine, row["seen"], took_s, hz, within_s, buffer_s, limit)
        row["expected"], row["slower"] = pace_of_robots[0], round(pace_of_robots[1], 3)
    predicted = median(row["expected"] for row in last) if last else None
    return {
        "setting": setting,
        "expected": expected,
        "expected_beside": predicted,
        "most": largest,
        "error": round(expected / largest - 1.0, 4) if largest else None,
        "error_beside": round(predicted / largest - 1.0, 4) if largest and predicted is not None else None,
        "capacity_hz": round(model_of_engine.capacity_hz, 2),
        "curve_ms": {str(batch): round(1e3 * seconds, 3) for batch, seconds in model_of_engine.serve},
        "frames_ms": {str(batch): round(1e3 * seconds, 3) for batch, seconds in model_of_engine.frames},
        "at_once": model_of_engine.limit,
        "windows": windows,
    }
