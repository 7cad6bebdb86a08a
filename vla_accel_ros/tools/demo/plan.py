"""Options of the demo, checked before anything starts, and its episodes.

The task families alternate. In every fourth episode the instruction changes: another block is named first,
and the final instruction follows while the arm moves. Everything depends on the seed. Episode n plays scene
seed + n; evaluation seeds start at 0 and training seeds at a million, so no scene was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.sim.tasks import FAMILIES, Task, tasks

DEMO_S = 60.0
CHANGE_EVERY = 4
CHANGE_AFTER_S = 1.2


@dataclass(frozen=True)
class Options:
    """The user's options. Raises ValueError, with one sentence, if one is invalid.

    seconds: begin no episode after this time; without it and without `episodes`, DEMO_S. model: None for the
    bundled policy. ring: cameras write into shared-memory rings instead of sending images. domain: None for
    an unused one.
    """

    headless: bool
    episodes: int | None
    seconds: float | None
    json: Path | None
    out: Path
    seed: int
    tasks: tuple[str, ...]
    mode: str
    goal: str
    model: Path | None
    contract: Path
    ring: bool
    domain: int | None

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise ValueError(f"--episodes is {self.episodes}: give at least 1")
        if self.seconds is not None and not 0.0 < self.seconds < float("inf"):
            raise ValueError(f"--seconds is {self.seconds}: give a time above 0")
        if self.domain is not None and not 0 <= self.domain <= 232:
            raise ValueError(f"--domain is {self.domain}: give 0 to 232")
        if self.model is not None and not (self.model / "model.safetensors").is_file():
            raise ValueError(f"--model {self.model} holds no model.safetensors: give a checkpoint folder")
        episodes(self.tasks, self.seed)
        joints = Contract.load(self.contract).joint_names
        if set(joints) != set(JOINTS):
            raise ValueError(
                f"--contract {self.contract} is of joints {', '.join(joints)} but the simulated arm has "
                f"{', '.join(JOINTS)}: give a contract of that arm"
            )

    @property
    def limit_s(self) -> float | None:
        """Time after which no episode begins; None without a limit."""
        return DEMO_S if self.seconds is None and self.episodes is None else self.seconds


@dataclass(frozen=True)
class Plan:
    """One episode. task: the final one, which is scored. first: the task named before it, for
    CHANGE_AFTER_S."""

    index: int
    seed: int
    task: Task
    first: Task | None = None


def episodes(families: Sequence[str], seed: int) -> Iterator[Plan]:
    """Yield plans without end; in the second one the instruction changes.

    Raises ValueError, with one sentence, if a family is unknown, there is none, or the seed is negative.
    """
    unknown = [family for family in families if family not in FAMILIES]
    if unknown or not families:
        raise ValueError(
            f"tasks has {(unknown or [''])[0]!r}: give some of {', '.join(FAMILIES)}, comma separated"
        )
    if seed < 0:
        raise ValueError(f"seed is {seed}: give 0 or more")
    return _plans(tuple(families), seed)


def _plans(families: tuple[str, ...], seed: int) -> Iterator[Plan]:
    for index in count():
        turn, place = divmod(index, len(families))
        choices = tasks(families[place])
        task = choices[(seed + turn) % len(choices)]
        first = None
        if index % CHANGE_EVERY == 1:
            others = [other for other in choices if other.block != task.block and other.pad == task.pad]
            first = others[(seed + turn) % len(others)]
        yield Plan(index, seed + index, task, first)
