"""Episodes of the bundled policy, in simulation time: what is played, by how many processes, and where it is
stored.

An episode is a function of its job and the weights, so a stored one need not be played again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.data import one_thread_each
from vla_accel_ros.tools.demo_policy.events import Event, MovedTarget, SwitchedTarget
from vla_accel_ros.tools.demo_policy.recipe import DENOISE_STEPS
from vla_accel_ros.tools.demo_policy.rollout import Episode, Handover, Session, Timing

CONDITIONS: dict[str, Event | None] = {"static": None, "moved": MovedTarget(), "switched": SwitchedTarget()}


@dataclass(frozen=True)
class Job:
    """One episode: a family of tasks, what happens in it, when chunks are made and how they follow."""

    family: str
    condition: str
    timing: Timing
    handover: Handover
    seed: int


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
                one = json.loads(line)
                self._known[one["job"]] = Episode(**one["episode"])
        if lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]))

    def of(self, job: Job) -> Episode | None:
        """The episode, if it was played before."""
        return self._known.get(_name(job))

    def add(self, job: Job, episode: Episode) -> None:
        self._known[_name(job)] = episode
        with self._path.open("a") as file:
            file.write(json.dumps({"job": _name(job), "episode": asdict(episode)}) + "\n")


def _name(job: Job) -> str:
    return json.dumps(asdict(job), sort_keys=True)


def open_policy(policy: Path, contract: Path) -> tuple[Engine, SimRobot, Contract]:
    """The engine, the robot and its contract."""
    one_thread_each()
    known = Contract.load(contract)
    loaded = load_policy(policy, delta_mask=known.delta_mask)
    return Engine(loaded, steps=DENOISE_STEPS, step_dt_s=known.chunk.step_dt_s), SimRobot(), known


def played(
    jobs: Sequence[Job], policy: Path, contract: Path, processes: int = 1, log: Log | None = None
) -> Iterator[Episode]:
    """Yields the episodes of the jobs as they finish; they do not depend on the number of processes."""
    if log is None:
        yield from _playing(jobs, policy, contract, processes)
        return
    missing = [job for job in jobs if log.of(job) is None]
    new = _playing(missing, policy, contract, processes)
    for job in jobs:
        episode = log.of(job)
        if episode is None:
            log.add(job, episode := next(new))
        yield episode


_open: tuple[Engine, SimRobot, Contract] | None = None


def _open_worker(policy: Path, contract: Path) -> None:
    global _open
    _open = open_policy(policy, contract)


def _play(job: Job) -> Episode:
    assert _open is not None
    choices = tasks(job.family)
    task, event = choices[job.seed % len(choices)], CONDITIONS[job.condition]
    return Session(*_open, job.timing, job.handover).play(task, job.seed, ask_every=None, event=event)


def _playing(jobs: Sequence[Job], policy: Path, contract: Path, processes: int) -> Iterator[Episode]:
    if not jobs:
        return
    given = (policy, contract)
    with ProcessPoolExecutor(processes, get_context("spawn"), _open_worker, given) as pool:
        yield from pool.map(_play, jobs)
