"""The user's options, checked before any process starts, and the tasks that the robots play.

Each robot plays the families of tasks in turn. The first robot begins with reach, the second with place, the
third with follow, so that the scheduler serves different work at once. A missed task is repeated in another
scene, TRIES times in all: the policy is not perfect, and the demo shows the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from vla_accel_ros.extensions import FLEET_RULES, find
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools.demo.plan import Plan

ROBOT, SCHEDULER = "robot", "scheduler"
KILLS = (ROBOT, SCHEDULER)
TRIES = 3
MOST_ROBOTS = 16


@dataclass(frozen=True)
class Options:
    """The user's options. Raises ValueError, in one sentence, for a wrong value.

    episodes: tasks of each robot. kill: what to kill, in order, some of KILLS. rule: the scheduler's. svg:
    picture of the table, taken after the first kill. domain: ROS domain, or None for a free one.
    """

    robots: int
    episodes: int
    kill: tuple[str, ...]
    rule: str
    headless: bool
    json: Path | None
    svg: Path | None
    out: Path
    seed: int
    domain: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.robots <= MOST_ROBOTS:
            raise ValueError(f"--robots is {self.robots}: give 1 to {MOST_ROBOTS}")
        if self.episodes < 1:
            raise ValueError(f"--episodes is {self.episodes}: give at least 1")
        if self.seed < 0:
            raise ValueError(f"--seed is {self.seed}: give 0 or more")
        if self.domain is not None and not 0 <= self.domain <= 232:
            raise ValueError(f"--domain is {self.domain}: give 0 to 232")
        if unknown := [name for name in self.kill if name not in KILLS]:
            raise ValueError(f"--kill has {unknown[0]!r}: give some of {', '.join(KILLS)}, comma separated")
        find(FLEET_RULES, self.rule)

    @property
    def names(self) -> list[str]:
        """The robots' namespaces."""
        return [f"/robot_{number + 1}" for number in range(self.robots)]


def scenes(robot: int, turn: int, seed: int) -> Iterator[Plan]:
    """Yield scenes for a robot's turn-th task, without end: each has an instruction and a seed for where
    objects lie."""
    choices = tasks(FAMILIES[(robot + turn) % len(FAMILIES)])
    for attempt in count():
        number = 1000 * robot + 10 * turn + attempt
        yield Plan(turn, seed + number, choices[(seed + number) % len(choices)])
