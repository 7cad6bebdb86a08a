"""Recorded tasks: JSON lines, one for each round, which `vla fleet-trace` makes from bags.

    {"task": "/left/4f1c/3", "kind": "fold the towel", "actions": 22, "chunk": 50, "robot": "/left",
     "round": 0, "asked_s": 12.31, "left_s": 0.21, "queued_s": 0.05, "served_s": 0.11, "age_s": 0.24,
     "step_s": 0.0333}

task: of one robot. The rounds of a task are in order; those of several tasks may alternate. kind: the
instruction. actions: how many of the chunk were executed. chunk: how many it had. The other fields are
optional. robot, round: whose, and its number in the task. asked_s: arrival of its first attempt after the
first request of all. left_s: motion left then. queued_s: until its dispatch. served_s: from dispatch to
answer. age_s: of its observation at the answer. step_s: between two actions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from vla_accel_ros.fleet.simulator.workloads import Script

_SECONDS = ("asked_s", "left_s", "queued_s", "served_s", "age_s", "step_s")


@dataclass(frozen=True)
class RecordedRound:
    """One line; see the module. Raises ValueError if a value is out of range."""

    task: str
    kind: str
    actions: int
    chunk: int
    robot: str = ""
    round: int = 0
    asked_s: float | None = None
    left_s: float | None = None
    queued_s: float | None = None
    served_s: float | None = None
    age_s: float | None = None
    step_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.actions <= self.chunk:
            raise ValueError(f"{self.actions} actions of a chunk of {self.chunk}")
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}")
        for name in ("served_s", "step_s"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0")


@dataclass(frozen=True)
class Trace:
    """Tasks in order of their starts. arrived_s: start of each; None if a line lacks it. step_s, lead_s,
    served_s: medians of the time between actions, the motion left when a robot asked for another chunk, and
    the duration of a chunk; None if no line has it."""

    scripts: tuple[Script, ...]
    arrived_s: tuple[float, ...] | None = None
    step_s: float | None = None
    lead_s: float | None = None
    served_s: float | None = None


def load(path: Path) -> Trace:
    """Read the tasks of a file. Raises ValueError if it has none, or if a line is no round."""
    rounds = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                rounds.append(_round(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(
                    f"{path}, line {number}: {type(error).__name__}: {error}; let it have a task, its kind, "
                    "and how many actions of a chunk were executed."
                ) from error
    if not rounds:
        raise ValueError(f"{path} has no round; record one or more.")
    return of_rounds(rounds)


def of_rounds(rounds: Iterable[RecordedRound]) -> Trace:
    """Group one or more rounds into tasks."""
    tasks: dict[str, list[RecordedRound]] = {}
    for record in rounds:
        tasks.setdefault(record.task, []).append(record)
    start_s = {name: _known([series[0].asked_s]) for name, series in tasks.items()}
    timed = all(start_s.values())
    names = sorted(tasks, key=lambda name: start_s[name]) if timed else list(tasks)
    every = [record for series in tasks.values() for record in series]
    later = [record.left_s for series in tasks.values() for record in series[1:]]
    return Trace(
        tuple(_script(tasks[name]) for name in names),
        tuple(start_s[name][0] for name in names) if timed else None,
        _median(record.step_s for record in every),
        _median(later),
        _median(record.served_s for record in every),
    )


def save(path: Path, rounds: Iterable[RecordedRound]) -> None:
    """Write a file; unknown fields are left out."""
    with path.open("w") as file:
        for record in rounds:
            fields = {name: value for name, value in asdict(record).items() if value is not None}
            file.write(json.dumps(fields) + "\n")


def _round(found: dict[str, Any]) -> RecordedRound:
    seconds = {name: float(found[name]) for name in _SECONDS if found.get(name) is not None}
    return RecordedRound(
        str(found["task"]), str(found["kind"]), int(found["actions"]), int(found["chunk"]),
        str(found.get("robot", "")), int(found.get("round", 0)), **seconds,
    )  # fmt: skip


def _script(rounds: list[RecordedRound]) -> Script:
    actions = tuple(record.actions for record in rounds)
    served = _known(record.served_s for record in rounds)
    chunk = max(record.chunk for record in rounds)
    whole = tuple(served) if len(served) == len(rounds) else ()
    return Script(rounds[0].kind, sum(actions), actions, chunk, whole)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    finite = _known(values)
    return median(finite) if finite else None
