"""How chunks replace each other: styles on a reference, late messages, and staggered chunks of the bundled
policy.

    python bench/handover.py [--parts styles staggered] [--seeds N] [--processes N]

Tables in simulation time: they depend on the weights, the seeds and the code, not on the speed of the
machine. `staggered` compares free with guided chunks that are begun in every step of 1/30 s and done
DENOISE_STEPS later; it plays the same scenes twice (shared/closed_loop.py), keeps each finished episode in
out/ and resumes from there. `noise`, of which the file has figures, was an experiment: chunks that begin with
coherent noise in every mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from handovers import delays, scene
from run import Bench, Given, Row, main
from shared import closed_loop
from shared.closed_loop import Job, play
from shared.paired import gain, median, success
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Timing
from vla_accel_ros.tools.options import chosen_contract, chosen_model

SEEDS = 20
UNITS = {"time_s": "s", "jerk": "rad/s^3", "seam": "rad"}


@dataclass(frozen=True)
class Case:
    """title: the setting of the comparison, such as a mode. without, with_: the two variants."""

    title: str
    family: str
    condition: str
    timing: Timing
    without: Handover
    with_: Handover

    def jobs(self, seed: int) -> tuple[Job, Job]:
        """Both ways of one scene."""
        scene_of = (self.family, self.condition, self.timing, seed)
        return Job(*scene_of, self.without), Job(*scene_of, self.with_)


@dataclass(frozen=True)
class Played:
    """The episodes of a case, seed by seed."""

    case: Case
    without: list[Episode]
    with_: list[Episode]


CASES = tuple(
    Case(
        "guided, not free (fresh)",
        "reach",
        condition,
        Timing(period=1, latency=DENOISE_STEPS),
        Handover("blend"),
        Handover("rtc"),
    )
    for condition in ("static", "moved", "switched")
)


def styles(given: Given) -> Row:
    """The comparisons that need no policy."""
    return {
        "styles": [asdict(row) for row in scene.table()],
        "styles_positions_upsampling": [asdict(row) for row in scene.table(positions_upsampling=True)],
        "delays": [asdict(row) for row in delays.table()],
    }


def staggered(given: Given) -> Row:
    """Two variants, scene by scene."""
    seeds = range(given.seeds or SEEDS)
    jobs = list(dict.fromkeys(job for seed in seeds for case in CASES for job in case.jobs(seed)))
    episodes = play(jobs, given, "handover_staggered")
    played = [
        Played(case, *([episodes[case.jobs(seed)[way]] for seed in seeds] for way in (0, 1)))
        for case in CASES
    ]
    plan = {
        "policy": chosen_model(given).name,
        "contract": chosen_contract(given).name,
        "seeds": [0, len(seeds) - 1],
        "denoise_steps": DENOISE_STEPS,
        "episodes": len(jobs),
        "units": UNITS,
        "cases": [asdict(case) for case in CASES],
    }
    rows = [summary(comparison) for comparison in played]
    pool, episodes_played = pooled(played), list(as_json(played))
    return {"staggered": {"pooled": pool, "cases": rows, "plan": plan, "episodes": episodes_played}}


def pooled(played: Sequence[Played]) -> list[Row]:
    """One row a title, of all its cases: success, and how much more a measure is, as a share.

    The share is a median over scenes of the mean over cases, because cases of one scene are alike. Scenes in
    which a measure is 0 without, such as the seam of `block`, are left out.
    """
    rows = []
    for title in dict.fromkeys(comparison.case.title for comparison in played):
        same = [comparison for comparison in played if comparison.case.title == title]
        without = [episode for comparison in same for episode in comparison.without]
        with_ = [episode for comparison in same for episode in comparison.with_]
        row: Row = {"title": title, "without": success(without), "with": success(with_)}
        row["success"] = gain([a.success for a in without], [b.success for b in with_])
        rows.append(row | {name: median(list(_shares(same, name))) for name in UNITS})
    return rows


def _shares(same: Sequence[Played], name: str) -> Iterator[float]:
    for pairs in zip(*(zip(comparison.without, comparison.with_) for comparison in same)):
        counted = [
            (a, b) for a, b in pairs if getattr(a, name) and (name != "time_s" or (a.success and b.success))
        ]
        if counted:
            yield float(np.mean([getattr(b, name) / getattr(a, name) - 1.0 for a, b in counted]))


def summary(one: Played) -> Row:
    """Success and medians of both variants, and of their differences (with minus without)."""
    pairs, case = list(zip(one.without, one.with_)), one.case
    won = [(a, b) for a, b in pairs if a.success and b.success]
    row: Row = {
        "title": case.title,
        "family": case.family,
        "condition": case.condition,
        "delay": case.timing.latency,
        "without": _measures(one.without),
        "with": _measures(one.with_),
        "success": gain([a.success for a in one.without], [b.success for b in one.with_]),
    }
    for name in UNITS:
        counted = won if name == "time_s" else pairs
        row[name] = median([getattr(b, name) - getattr(a, name) for a, b in counted])
    return row


def _measures(episodes: Sequence[Episode]) -> Row:
    won = [episode for episode in episodes if episode.success]
    counted = {name: won if name == "time_s" else episodes for name in UNITS}
    medians = {name: median([getattr(episode, name) for episode in counted[name]]) for name in UNITS}
    return success(episodes) | medians


def as_json(played: Sequence[Played]) -> Iterator[Row]:
    """Every episode: one row a case, lists by seed."""
    for comparison in played:
        row: dict[str, Any] = {"title": comparison.case.title, "family": comparison.case.family}
        row |= {"condition": comparison.case.condition, "delay": comparison.case.timing.latency}
        for way, episodes in (("without", comparison.without), ("with", comparison.with_)):
            for name in ("success", *UNITS):
                row[f"{way} {name}"] = [round(float(getattr(episode, name)), 5) for episode in episodes]
        yield row


BENCH = Bench(
    "handover",
    parts={"styles": styles, "staggered": staggered},
    options=closed_loop.options,
    smoke="--parts styles",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
