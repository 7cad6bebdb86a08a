"""The bundled tasks with chunks played as the policy timed them, and as fast as the limits allow.

    python bench/fast_motion.py [--seeds N] [--processes N]

The same scenes and noise with the option off and on, in simulated time: an observation every 0.1 s, whose
chunk comes 0.1 s later (shared/closed_loop.py). `time_s` runs to success, which is 0.3 s after the goal is
met; an episode that fails counts with its whole length. `share` is the mean time with the option over that
without, `moving` the same without what no speed changes: the first 0.1 s, and the last 0.3 s. `follow` lasts
8 s however fast the arm is; its success counts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from run import Bench, Given, Row, main
from shared import closed_loop
from shared.closed_loop import Job, play
from shared.paired import gain, median, success
from vla_accel_ros.control.chunking.tempo import FAST, USUAL
from vla_accel_ros.sim.tasks import FOLLOW, PLACE, REACH
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Timing

SEEDS = {REACH: 40, PLACE: 40, FOLLOW: 12}
FIXED_S = 0.4
TIMING = Timing()


def tasks(given: Given) -> Row:
    """Success and time of each family, with intervals at 95 %."""
    jobs = {
        (family, speed): [
            Job(family, "static", TIMING, seed, Handover(speed=speed)) for seed in range(given.seeds or count)
        ]
        for family, count in SEEDS.items()
        for speed in (USUAL, FAST)
    }
    episodes = play([job for group in jobs.values() for job in group], given, "fast_motion")
    rows = []
    for family in SEEDS:
        usual, fast = ([episodes[job] for job in jobs[family, speed]] for speed in (USUAL, FAST))
        won = gain([episode.success for episode in usual], [episode.success for episode in fast])
        row = {"family": family, USUAL: _row(usual), FAST: _row(fast), "success": won}
        if family != FOLLOW:
            row |= {"share": _share(usual, fast), "moving": _share(usual, fast, FIXED_S)}
        rows.append(row)
    usual, fast = (
        [episodes[job] for family in (REACH, PLACE) for job in jobs[family, speed]] for speed in (USUAL, FAST)
    )
    return {
        "denoise_steps": DENOISE_STEPS,
        "period_s": TIMING.period / 30,
        "latency_s": TIMING.latency / 30,
        "rows": rows,
        "share": _share(usual, fast),
        "moving": _share(usual, fast, FIXED_S),
        "aim": 0.6,
    }


def _row(episodes: Sequence[Episode]) -> dict[str, Any]:
    return {
        **success(episodes),
        "time_s": median([episode.time_s for episode in episodes if episode.success]),
        "jerk": median([episode.jerk for episode in episodes]),
        "tracking_rad": median([episode.tracking for episode in episodes]),
    }


def _share(usual: Sequence[Episode], fast: Sequence[Episode], fixed_s: float = 0.0) -> dict[str, Any]:
    """Mean time over mean time, with the interval of the paired bootstrap."""
    times_s = np.array([[episode.time_s - fixed_s for episode in group] for group in (usual, fast)])
    drawn = np.random.default_rng(0).integers(times_s.shape[1], size=(4000, times_s.shape[1]))
    means = times_s[:, drawn].mean(axis=2)
    low, high = np.quantile(means[1] / means[0], (0.025, 0.975))
    mean = times_s.mean(axis=1)
    return {"mean": float(mean[1] / mean[0]), "interval_95": (float(low), float(high))}


BENCH = Bench("fast_motion", parts={"tasks": tasks}, options=closed_loop.options, smoke="--seeds 1")

if __name__ == "__main__":
    sys.exit(main(BENCH))
