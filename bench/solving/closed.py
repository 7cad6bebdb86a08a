"""Success of the bundled policy with other solvers and numbers of steps, in simulation time.

Reach, with a target that stays, one that jumps 6 to 14 cm during the motion, and another one that is asked
for after 1 s. A chunk begins in every third frame of 1/30 s and comes 4 frames later, however many steps it
takes, so only the chunks differ. Seed n is the same scene, event and noise for every variant, so differences
are paired. Intervals are 95 %: Wilson's for success, Newcombe's for its differences, bootstrap for medians.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from handovers import paired
from handovers.episodes import CONDITIONS
from solving.drafts import Counts, Drafting
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.data import one_thread_each
from vla_accel_ros.tools.demo_policy.rollout import Episode, Session, Timing

ROOT = Path(__file__).parents[2]
FAMILY = "reach"
TIMING = Timing(period=3, latency=4)


@dataclass(frozen=True)
class Way:
    """How chunks are sampled. draft: tolerance of solving.drafts; None = every step is computed. precision:
    of fast stages, None = plain torch; calibration: its file, in the repository. device: what computes the
    policy."""

    solver: str
    steps: int
    draft: float | None = None
    precision: str | None = None
    calibration: str = ""
    device: str = "cpu"

    def __str__(self) -> str:
        drafted = "" if self.draft is None else f", drafts within {self.draft:g}"
        calibrated = ", calibrated" if self.calibration else ""
        precision = "" if self.precision is None else f", {self.precision}{calibrated}"
        return f"{self.solver} {self.steps}{drafted}{precision}"


DEFAULT = Way(EULER, 10)


@dataclass(frozen=True)
class Played:
    """An episode, and what drafts came to in it."""

    episode: Episode
    drafts: Counts | None


_given: tuple[Path, Path] | None = None


def _open_worker(policy: Path, contract: Path) -> None:
    global _given
    one_thread_each()
    _given = policy, contract


@cache
def _opened() -> tuple[SimRobot, Contract]:
    assert _given is not None
    return SimRobot(), Contract.load(_given[1])


@cache
def _policy(device: str) -> AnyPolicy:
    """On a GPU in bfloat16, as engines have it there."""
    assert _given is not None
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return load_policy(_given[0], torch.device(device), dtype, _opened()[1].delta_mask)


@cache
def _engine(way: Way) -> tuple[Engine, Drafting | None]:
    policy, contract = _policy(way.device), _opened()[1]
    options: dict[str, Any] = {"steps": way.steps, "solver": way.solver}
    if way.precision is not None:
        calibration = str(ROOT / way.calibration) if way.calibration else ""
        options |= {"fast": True, "precision": way.precision, "calibration": calibration}
    engine = Engine(policy, step_dt_s=contract.chunk.step_dt_s, **options)
    return engine, None if way.draft is None else Drafting.of(engine, way.draft)


def _play(job: tuple[Way, str, int]) -> Played:
    way, condition, seed = job
    engine, drafting = _engine(way)
    if drafting is not None:
        drafting.begin()
    choices, (robot, contract) = tasks(FAMILY), _opened()
    session = Session(engine, robot, contract, TIMING)
    episode = session.play(choices[seed % len(choices)], seed, ask_every=None, event=CONDITIONS[condition])
    return Played(episode, None if drafting is None else drafting.counts)


def drafted(way: Way, policy: Path, contract: Path, seeds: int) -> Counts:
    """What drafts come to in so many episodes of each condition, with the errors of what was accepted."""
    _open_worker(policy, contract)
    _, drafting = _engine(way)
    assert drafting is not None
    drafting.compare = True
    jobs = [(way, condition, seed) for condition in CONDITIONS for seed in range(seeds)]
    counts = [_play(job).drafts for job in jobs]
    return Counts.total(one for one in counts if one is not None)


def play(
    ways: Mapping[Way, int], policy: Path, contract: Path, processes: int, log: Path
) -> list[tuple[Way, str, list[Played]]]:
    """The episodes of each way and condition, as many as the way's number; they do not depend on the
    processes. log: keeps each as it comes, and what it has of this policy is not played again."""
    known = _read(log, checksum(policy))
    jobs = [
        (way, condition, seed)
        for seed in range(max(ways.values()))
        for way, seeds in ways.items()
        for condition in CONDITIONS
        if seed < seeds
    ]
    missing = [job for job in jobs if job not in known]
    if missing:
        given = policy, contract
        with (
            ProcessPoolExecutor(processes, get_context("spawn"), _open_worker, given) as pool,
            log.open("a") as file,
        ):
            found = pool.map(_play, missing, chunksize=4)
            for job, played in zip(missing, tqdm(found, total=len(missing), mininterval=20), strict=True):
                known[job] = played
                print(
                    json.dumps({"job": [asdict(job[0]), *job[1:]], **asdict(played)}), file=file, flush=True
                )
    return [
        (way, condition, [known[way, condition, seed] for seed in range(seeds)])
        for way, seeds in ways.items()
        for condition in CONDITIONS
    ]


def _read(log: Path, policy: str) -> dict[tuple[Way, str, int], Played]:
    """Raises ValueError for a log of another policy."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if not log.exists():
        log.write_text(json.dumps({"policy": policy}) + "\n")
    first, *others = log.read_text().splitlines()
    if json.loads(first) != {"policy": policy}:
        raise ValueError(f"{log} has the episodes of another policy: remove it.")
    known = {}
    for one in map(json.loads, others):
        (way, condition, seed), drafts = one["job"], one["drafts"]
        counts = None if drafts is None else Counts(**drafts)
        known[Way(**way), condition, seed] = Played(Episode(**one["episode"]), counts)
    return known


def summary(cells: Iterable[tuple[Way, str, list[Played]]], default: Way = DEFAULT) -> list[dict[str, Any]]:
    """A row for each way: all conditions together, and success in each. default: it is paired with."""
    by: dict[Way, dict[str, list[Played]]] = {}
    for way, condition, played in cells:
        by.setdefault(way, {})[condition] = played
    return [_row(way, conditions, by[default]) for way, conditions in by.items()]


def _episodes(conditions: dict[str, list[Played]]) -> list[Episode]:
    return [one.episode for played in conditions.values() for one in played]


def _row(way: Way, conditions: dict[str, list[Played]], default: dict[str, list[Played]]) -> dict[str, Any]:
    """default: at least as many episodes of each condition, in the same order."""
    episodes = _episodes(conditions)
    same = _episodes({name: default[name][: len(played)] for name, played in conditions.items()})
    pairs = list(zip(episodes, same, strict=True))
    row: dict[str, Any] = {
        "way": str(way),
        **asdict(way),
        **paired.success(episodes),
        "conditions": {
            name: paired.success([one.episode for one in played]) for name, played in conditions.items()
        },
        "time_s": paired.median([e.time_s for e in episodes if e.success]),
        "jerk": paired.median([e.jerk for e in episodes]),
        "seam_rad": paired.median([e.seam for e in episodes]),
        "against_default": paired.gain([d.success for _, d in pairs], [e.success for e, _ in pairs]),
    }
    counted = [one.drafts for played in conditions.values() for one in played if one.drafts is not None]
    if counted:
        row["drafts"] = Counts.total(counted).as_dict(way.steps)
    return row


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown."""
    yield "| way | " + " | ".join(CONDITIONS) + " | all | more than the default % | time s | jerk rad/s^3 |"
    yield "|" + "---|" * (len(CONDITIONS) + 5)
    for row in rows:
        each = " | ".join(f"{row['conditions'][name]['won']}" for name in CONDITIONS)
        low, high = (100 * bound for bound in row["interval_95"])
        less, more = (100 * bound for bound in row["against_default"]["interval_95"])
        yield (
            f"| {row['way']} | {each} | {row['won']} of {row['n']} ({low:.1f} to {high:.1f} %) | "
            f"{100 * row['against_default']['difference']:+.1f} ({less:+.1f} to {more:+.1f}) | "
            f"{paired.shown(row['time_s'], '{:.2f}')} | {paired.shown(row['jerk'], '{:.0f}')} |"
        )
