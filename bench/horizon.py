"""Execution horizons with the bundled policy: success against load.

    python bench/horizon.py [--horizons static:8 update_ratio:0.02 ...] [--seeds N] [--processes N]

The next image is taken so late that its chunk comes just before the last horizon ends, as on a robot that
shares a GPU; an inference takes 4 frames of 1/30 s (shared/closed_loop.py). The load is chunks a second;
`actions` is the number executed of a chunk. `signals`, of which the file has figures, was an experiment:
which signal predicts the errors of a chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from run import Bench, Given, Row, main
from shared import closed_loop
from shared.closed_loop import Job, play
from shared.paired import median, success
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import FRAME_S, Handover, Timing

LATENCY, SEEDS = 4, 100
ON_DEMAND = Timing(period=LATENCY, latency=LATENCY, on_demand=True)
MOVED = ("static:8", "static:12", "static:16", "static:24", "all", "update_ratio:0.02")
STATIC = ("static:24", "all", "update_ratio:0.02")


def options(add: Callable[..., Any]) -> None:
    closed_loop.options(add)
    add("--horizons", nargs="+", help="in a scene in which the target moves (default: as published)")


def front(given: Given) -> Row:
    """Success, with intervals at 95 %, and load."""
    seeds = given.seeds or SEEDS
    cases = [("moved", horizon) for horizon in given.horizons or MOVED]
    cases += [] if given.horizons else [("static", horizon) for horizon in STATIC]
    jobs = {
        (condition, horizon): [
            Job("reach", condition, ON_DEMAND, seed, Handover("blend", horizon=horizon))
            for seed in range(seeds)
        ]
        for condition, horizon in cases
    }
    played = play([job for group in jobs.values() for job in group], given, "horizon")
    rows = []
    for (condition, horizon), episode_jobs in jobs.items():
        episodes = [played[job] for job in episode_jobs]
        chunks_per_s = sum(episode.chunks_per_s for episode in episodes) / len(episodes)
        rows.append(
            {
                "family": "reach",
                "condition": condition,
                "mode": "on demand",
                "horizon": horizon,
                **success(episodes),
                "time_s": median([episode.time_s for episode in episodes if episode.success]),
                "jerk": median([episode.jerk for episode in episodes]),
                "wanted": median([episode.horizon for episode in episodes]),
                "chunks_per_s": chunks_per_s,
                "actions": 1.0 / (FRAME_S * chunks_per_s),
            }
        )
    for row in rows:
        row["on_front"] = not any(_beats(other, row) for other in rows)
    return {
        "front": {
            "seeds": [0, seeds - 1],
            "denoise_steps": DENOISE_STEPS,
            "timing": asdict(ON_DEMAND),
            "rows": rows,
        }
    }


def _beats(other: Row, row: Row) -> bool:
    """Whether it succeeds as often with less load, or more often with as much, in the same condition."""
    better = other["won"] >= row["won"] and other["chunks_per_s"] <= row["chunks_per_s"]
    differs = (other["won"], other["chunks_per_s"]) != (row["won"], row["chunks_per_s"])
    return bool(other["condition"] == row["condition"] and better and differs)


BENCH = Bench("horizon", parts={"front": front}, options=options, smoke="--seeds 1 --horizons static:8 all")

if __name__ == "__main__":
    sys.exit(main(BENCH))
