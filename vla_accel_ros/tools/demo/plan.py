"""Which episodes the demo plays: the families in turn, every fourth with a change of mind on the way.

Everything follows from the seed. Episode n plays scene seed + n; the evaluation's seeds start at 0 and the
training's at a million, so no scene was trained on. In a change of mind another block is named first, and
the words that count are said while the arm is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from vla_accel_ros.sim.tasks import FAMILIES, Task, tasks

CHANGE_EVERY = 4
CHANGE_AFTER_S = 1.2


@dataclass(frozen=True)
class Plan:
    """One episode to play. task: what counts in the end. first: said before it, for change_after_s."""

    index: int
    seed: int
    task: Task
    first: Task | None = None
    change_after_s: float = CHANGE_AFTER_S


def episodes(families: Sequence[str], seed: int) -> Iterator[Plan]:
    """Plans without end; the second has a change of mind.

    Raises ValueError, in one sentence, for an unknown family, none, or a negative seed.
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
