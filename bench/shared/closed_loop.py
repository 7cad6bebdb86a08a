"""Episodes of the bundled policy in closed loop, in simulation time: what is played, by how many processes,
and where it is kept.

Reach and other tasks, in scenes that stay, in which the target jumps 6 to 14 cm during the motion, or another
one is asked for after 1 s. Seed n is the same scene, event and noise for every job, so differences are
paired. An episode is a function of its job and the weights, so one that is in the log need not be played
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from run import Given, scratch
from shared.events import MovedTarget, SwitchedTarget
from shared.paired import gain, median, success
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.flow.solver import EULER
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.evaluate import Plan, evaluate, one_thread_each
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import Episode, Event, Handover, Session, Timing
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option

CONDITIONS: dict[str, Event | None] = {"static": None, "moved": MovedTarget(), "switched": SwitchedTarget()}


@dataclass(frozen=True)
class Way:
    """How chunks are sampled. precision: of fast stages, None = plain torch; calibration: its file. device:
    what computes the policy."""

    solver: str = EULER
    steps: int = DENOISE_STEPS
    precision: str | None = None
    calibration: str = ""
    device: str = "cpu"

    def __str__(self) -> str:
        calibrated = ", calibrated" if self.calibration else ""
        precision = "" if self.precision is None else f", {self.precision}{calibrated}"
        return f"{self.solver} {self.steps}{precision}"


@dataclass(frozen=True)
class Job:
    """One episode: a family of tasks, what happens in it, when chunks are made and how they follow."""

    family: str
    condition: str
    timing: Timing
    seed: int
    handover: Handover = field(default_factory=Handover)
    way: Way = Way()


class Log:
    """Episodes in a file, one a line, as they finish; of one policy (its checksum) only.

    Raises ValueError for a file of another policy.
    """

    def __init__(self, path: Path, policy: str) -> None:
        self._path, self._known = path, dict[str, Episode]()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if not lines:
            path.write_text(json.dumps({"policy": policy}) + "\n")
        elif json.loads(lines[0]) != {"policy": policy}:
            raise ValueError(f"{path} has the episodes of another policy: remove it.")
        for line in lines[1:]:
            if line.endswith("\n"):  # else it was being written when the process was killed
                record = json.loads(line)
                self._known[record["job"]] = Episode(**record["episode"])
        if lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]))

    def get(self, job: Job) -> Episode | None:
        """The episode, if it was played before."""
        return self._known.get(_name(job))

    def add(self, job: Job, episode: Episode) -> None:
        self._known[_name(job)] = episode
        with self._path.open("a") as file:
            file.write(json.dumps({"job": _name(job), "episode": asdict(episode)}) + "\n")


def _name(job: Job) -> str:
    return json.dumps(asdict(job), sort_keys=True)


def options(add: Callable[..., Any]) -> None:
    """Of every bench that plays episodes."""
    add("--seeds", type=int, help="episodes a case (default: as many as were published)")
    add("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    parser: Any = add.__self__  # type: ignore[attr-defined]
    model_option(parser)
    contract_option(parser)


def play(jobs: Sequence[Job], given: Given, log: str) -> dict[Job, Episode]:
    """The episodes of all jobs, scene by scene; they do not depend on the number of processes. log: name of
    the file in out/ that keeps them, from which they are resumed."""
    policy, contract = chosen_model(given), chosen_contract(given)
    jobs = sorted(dict.fromkeys(jobs), key=lambda job: job.seed)
    episode_log = Log(scratch(given) / f"{log}.jsonl", checksum(policy))
    missing = [job for job in jobs if episode_log.get(job) is None]
    for job, episode in tqdm(_playing(missing, policy, contract, given.processes), total=len(missing)):
        episode_log.add(job, episode)
    return {job: episode for job in jobs if (episode := episode_log.get(job)) is not None}


_files: tuple[Path, Path] | None = None


def _open_worker(policy: Path, contract: Path) -> None:
    global _files
    one_thread_each()
    _files = policy, contract


@cache
def _opened() -> tuple[SimRobot, Contract]:
    assert _files is not None
    return SimRobot(), Contract.load(_files[1])


@cache
def _policy(device: str) -> AnyPolicy:
    """On a GPU in bfloat16, as engines have it there."""
    assert _files is not None
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return load_policy(_files[0], torch.device(device), dtype, _opened()[1].delta_mask)


@cache
def _engine(way: Way) -> Engine:
    options: dict[str, Any] = {"steps": way.steps, "solver": way.solver}
    if way.precision is not None:
        options |= {"fast": True, "precision": way.precision, "calibration": way.calibration}
    return Engine(_policy(way.device), step_dt_s=_opened()[1].chunk.step_dt_s, **options)


def _play(job: Job) -> Episode:
    choices = tasks(job.family)
    task, event = choices[job.seed % len(choices)], CONDITIONS[job.condition]
    session = Session(_engine(job.way), *_opened(), job.timing, job.handover)
    return session.play(task, job.seed, ask_every=None, event=event)


def _playing(
    jobs: Sequence[Job], policy: Path, contract: Path, processes: int
) -> Iterator[tuple[Job, Episode]]:
    if not jobs:
        return
    files = (policy, contract)
    with ProcessPoolExecutor(processes, get_context("spawn"), _open_worker, files) as pool:
        yield from zip(jobs, pool.map(_play, jobs, chunksize=4), strict=True)


REACH = Timing(period=3, latency=4)
"""A chunk begins in every third frame of 1/30 s and comes 4 frames later, however many steps it takes."""


def ways_compared(ways: Mapping[Way, int], given: Given, log: str) -> dict[str, Any]:
    """Success of each way in every condition of `reach`, and against the first. ways: how many episodes
    each."""
    jobs = {
        (way, condition): [
            Job("reach", condition, REACH, seed, way=way) for seed in range(given.seeds or count)
        ]
        for way, count in ways.items()
        for condition in CONDITIONS
    }
    episodes = play([job for group in jobs.values() for job in group], given, log)
    played = {key: [episodes[job] for job in group] for key, group in jobs.items()}
    first = next(iter(ways))
    rows = []
    for way in ways:
        episodes_of_way = [episode for condition in CONDITIONS for episode in played[way, condition]]
        pairs = [
            pair for condition in CONDITIONS for pair in zip(played[first, condition], played[way, condition])
        ]
        rows.append(
            {
                "way": str(way),
                **asdict(way),
                **success(episodes_of_way),
                "conditions": {condition: success(played[way, condition]) for condition in CONDITIONS},
                "time_s": median([episode.time_s for episode in episodes_of_way if episode.success]),
                "jerk": median([episode.jerk for episode in episodes_of_way]),
                "seam_rad": median([episode.seam for episode in episodes_of_way]),
                "against_default": gain([a.success for a, _ in pairs], [b.success for _, b in pairs]),
            }
        )
    return {"family": "reach", "timing": asdict(REACH), "rows": rows}


def bundled_success(given: Given, steps: int, precision: str | None = None) -> dict[str, Any]:
    """Of `vla eval`'s tasks with the setting of a latency: given.episodes of each family, on the CPU."""
    files = chosen_model(given), chosen_contract(given)
    plan = Plan(*files, given.episodes, ("normal",), steps=steps, precision=precision)
    return success(evaluate(plan, 1))
