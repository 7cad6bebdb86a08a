"""Compares two variants, scene by scene, in several situations: fresh or coherent noise, and guidance of
staggered chunks.

Seed n is the same scene and event in every cell. Scenes are the outer loop, so that after an interruption the
first scenes are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from handovers.episodes import Job, Log, played
from handovers.modes import MODES, SHORTEST_PERIOD
from handovers.paired import gain, median, shown, success
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.flow.noise import COHERENT, FRESH
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Timing

UNITS = {"time_s": "s", "jerk": "rad/s^3", "seam": "rad"}
MEASURES = tuple(UNITS)


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
        given = (self.family, self.condition, self.timing)
        return Job(*given, self.without, seed), Job(*given, self.with_, seed)


@dataclass(frozen=True)
class Played:
    """The episodes of a case, seed by seed."""

    case: Case
    without: list[Episode]
    with_: list[Episode]


@dataclass(frozen=True)
class Plan:
    """What to play, each case with `seeds` scenes."""

    policy: Path
    contract: Path
    cases: tuple[Case, ...]
    seeds: int

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; play at least 1.")

    @property
    def jobs(self) -> list[Job]:
        """In the order of playing, each once."""
        pairs = (case.jobs(seed) for seed in range(self.seeds) for case in self.cases)
        return list(dict.fromkeys(job for pair in pairs for job in pair))

    def as_dict(self) -> dict[str, Any]:
        """For the JSON: what was played, without the machine's paths."""
        return {
            "policy": self.policy.name,
            "contract": self.contract.name,
            "seeds": [0, self.seeds - 1],
            "denoise_steps": DENOISE_STEPS,
            "episodes": len(self.jobs),
            "units": UNITS,
            "cases": [asdict(case) for case in self.cases],
        }


NOISE_MODES = ("block", "async", "blend", "rtc")
SITUATIONS = (
    ("reach", "static", 4),
    ("reach", "moved", 4),
    ("reach", "switched", 4),
    ("reach", "static", 8),
    ("reach", "switched", 8),
    ("place", "moved", 4),
    ("follow", "static", 4),
)
"""Family, condition, delay in steps of 1/30 s, for the noises: what `reach` makes easy, `place` does not."""


def noises() -> tuple[Case, ...]:
    """Fresh and coherent noise in every mode and situation."""
    return tuple(
        Case(
            mode,
            family,
            condition,
            Timing(max(SHORTEST_PERIOD, delay), delay),
            replace(MODES[mode], noise=FRESH),
            replace(MODES[mode], noise=COHERENT),
        )
        for family, condition, delay in SITUATIONS
        for mode in NOISE_MODES
    )


def staggered() -> tuple[Case, ...]:
    """A chunk is begun in every step of 1/30 s and done DENOISE_STEPS later: free or guided, both noises."""
    timing = Timing(period=1, latency=DENOISE_STEPS)
    free, guided = MODES["blend"], MODES["rtc"]
    ways = {
        "guided, not free (fresh)": (replace(free, noise=FRESH), replace(guided, noise=FRESH)),
        "guided, not free (coherent)": (replace(free, noise=COHERENT), replace(guided, noise=COHERENT)),
        "free and coherent, not fresh": (replace(free, noise=FRESH), replace(free, noise=COHERENT)),
    }
    return tuple(
        Case(title, "reach", condition, timing, *way)
        for condition in ("static", "moved", "switched")
        for title, way in ways.items()
    )


def play(plan: Plan, processes: int = 1, log: Path | None = None) -> list[Played]:
    """Play everything in the plan that the log lacks; the result does not depend on the number of
    processes."""
    jobs = plan.jobs
    kept = None if log is None else Log(log, checksum(plan.policy))
    episodes = played(jobs, plan.policy, plan.contract, processes, kept)
    found = dict(zip(jobs, tqdm(episodes, total=len(jobs), mininterval=20)))
    return [
        Played(case, *([found[case.jobs(seed)[way]] for seed in range(plan.seeds)] for way in (0, 1)))
        for case in plan.cases
    ]


def summary(cases: Iterable[Played]) -> list[dict[str, Any]]:
    """One row a case: success and medians of both variants, and of their differences (with minus without)."""
    return [_row(one) for one in cases]


def pooled(cases: Sequence[Played]) -> list[dict[str, Any]]:
    """One row a title, of all its cases: success, and how much more a measure is, as a share.

    The share is a median over scenes of the mean over cases, because cases of one scene are alike. Scenes in
    which a measure is 0 without, such as the seam of `block`, are left out.
    """
    rows = []
    for title in dict.fromkeys(one.case.title for one in cases):
        of = [one for one in cases if one.case.title == title]
        without = [e.success for one in of for e in one.without]
        with_ = [e.success for one in of for e in one.with_]
        row: dict[str, Any] = {
            "title": title,
            "without": success([e for one in of for e in one.without]),
            "with": success([e for one in of for e in one.with_]),
            "success": gain(without, with_),
        }
        rows.append(row | {name: median(list(_shares(of, name))) for name in MEASURES})
    return rows


def _shares(of: Sequence[Played], name: str) -> Iterator[float]:
    for pairs in zip(*(zip(one.without, one.with_) for one in of)):
        kept = [
            (a, b) for a, b in pairs if getattr(a, name) and (name != "time_s" or (a.success and b.success))
        ]
        if kept:
            yield float(np.mean([getattr(b, name) / getattr(a, name) - 1.0 for a, b in kept]))


def _row(one: Played) -> dict[str, Any]:
    pairs = list(zip(one.without, one.with_))
    won = [(a, b) for a, b in pairs if a.success and b.success]
    case = one.case
    row: dict[str, Any] = {
        "title": case.title,
        "family": case.family,
        "condition": case.condition,
        "delay": case.timing.latency,
        "without": _way(one.without),
        "with": _way(one.with_),
        "success": gain([a.success for a in one.without], [b.success for b in one.with_]),
    }
    for name in MEASURES:
        of = won if name == "time_s" else pairs
        row[name] = median([getattr(b, name) - getattr(a, name) for a, b in of])
    return row


def _way(episodes: Sequence[Episode]) -> dict[str, Any]:
    won = [e for e in episodes if e.success]
    of = {name: won if name == "time_s" else episodes for name in MEASURES}
    return success(episodes) | {name: median([getattr(e, name) for e in of[name]]) for name in MEASURES}


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown; differences with their intervals."""
    yield (
        "| family | condition | delay | way | success without, with | seam without, with, difference mrad | "
        "jerk without, with, difference rad/s^3 | time difference s |"
    )
    yield "|" + "---|" * 8
    for row in rows:
        a, b = row["without"], row["with"]
        seams = [f"{1e3 * way['seam']['median']:.0f}" for way in (a, b)]
        jerks = [f"{way['jerk']['median']:.0f}" for way in (a, b)]
        yield (
            f"| {row['family']} | {row['condition']} | {row['delay']} | {row['title']} | "
            f"{a['won']}, {b['won']} of {a['n']} | "
            f"{', '.join(seams)}, {shown(row['seam'], '{:+.0f}', 1e3)} | "
            f"{', '.join(jerks)}, {shown(row['jerk'], '{:+.0f}')} | {shown(row['time_s'], '{:+.2f}')} |"
        )


def pooled_lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown, in percent."""
    yield "| way | success without, with | difference | seam | jerk | time |"
    yield "|" + "---|" * 6
    for row in rows:
        low, high = row["success"]["interval_95"]
        shares = (shown(row[name], "{:+.0f}", 100.0) for name in ("seam", "jerk", "time_s"))
        yield (
            f"| {row['title']} | {row['without']['won']}, {row['with']['won']} of {row['without']['n']} | "
            f"{100 * row['success']['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | "
            f"{' | '.join(shares)} |"
        )


def as_json(cases: Iterable[Played]) -> list[dict[str, Any]]:
    """Every episode, for bench/results: one row a case, lists by seed."""
    ways = ("without", "with_")
    return [
        {"title": one.case.title, "family": one.case.family, "condition": one.case.condition}
        | {"delay": one.case.timing.latency}
        | {
            f"{way.rstrip('_')} {name}": [round(float(getattr(e, name)), 5) for e in getattr(one, way)]
            for way in ways
            for name in ("success", "time_s", "jerk", "seam")
        }
        for one in cases
    ]
