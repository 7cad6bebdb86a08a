"""The three families of instructions: their words, their success, and the true answer at any time.

    reach   "reach the red block"                  tip within 2.5 cm of the grasp-ready point for 0.3 s; 4 s
    place   "put the red block on the yellow pad"  centre within the pad's radius, released, at rest; 10 s
    follow  "follow the red block" (which moves)   tip above it for >= 80 % of the last 3 s of 8 s

The grasp-ready point is 3 cm above the block's top face. An answer depends on one instant that a viewer of
the images could judge, never on history; the first that holds is the answer:

    "holding the red block"    the task's block is between the closed fingers
    "done"                     reach: tip within 2.5 cm of the grasp-ready point; place: on the pad, released
    "following the red block"  follow: tip within 3.5 cm of that point horizontally and 2.5 cm vertically
    "moving to the red block"  otherwise
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from vla_accel_ros.sim.world import BLOCKS, PADS, View

REACH, PLACE, FOLLOW = "reach", "place", "follow"
FAMILIES = (REACH, PLACE, FOLLOW)
TIME_LIMIT_S = {REACH: 4.0, PLACE: 10.0, FOLLOW: 8.0}
FOLLOW_WINDOW_S = 3.0


@dataclass(frozen=True)
class Task:
    """One instruction: a family, the colour of its block and, for place, of its pad."""

    family: str
    block: str
    pad: str | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"Task.family is {self.family!r}; use one of {', '.join(FAMILIES)}.")
        if self.block not in BLOCKS:
            raise ValueError(f"Task.block is {self.block!r}; use one of {', '.join(BLOCKS)}.")
        if (self.pad is not None) != (self.family == PLACE) or (
            self.pad is not None and self.pad not in PADS
        ):
            raise ValueError(
                f"Task.pad is {self.pad!r}; place needs one of {', '.join(PADS)}, the others None."
            )

    @property
    def instruction(self) -> str:
        """The words of the task."""
        if self.family == PLACE:
            return f"put the {self.block} block on the {self.pad} pad"
        return f"{self.family} the {self.block} block"

    @property
    def time_limit_s(self) -> float:
        """Length of an episode [s]."""
        return TIME_LIMIT_S[self.family]

    @classmethod
    def parse(cls, text: str) -> Task:
        """The task that these words ask for. Raises ValueError that names the known ones."""
        task = _BY_INSTRUCTION.get(" ".join(text.lower().replace(".", " ").split()))
        if task is None:
            raise ValueError(
                f"instruction {text!r} is unknown; say 'reach the COLOUR block', 'follow the COLOUR block' "
                "or 'put the COLOUR block on the COLOUR pad'."
            )
        return task

    def done(self, view: View) -> bool:
        """Whether the goal is met at this instant (for follow: whether the tip is above the block)."""
        if self.family == PLACE:
            assert self.pad is not None
            return view.held != self.block and view.on_pad(self.block, self.pad)
        across, up = view.ready_offset(self.block)
        if self.family == REACH:
            return math.hypot(across, up) <= 0.025
        return across <= 0.035 and abs(up) <= 0.025

    def answer(self, view: View) -> str:
        """What the robot is truly doing at this instant, in words."""
        if view.held == self.block:
            return f"holding the {self.block} block"
        if self.done(view):
            return f"following the {self.block} block" if self.family == FOLLOW else "done"
        return f"moving to the {self.block} block"


def tasks(family: str | None = None) -> tuple[Task, ...]:
    """All tasks, or those of one family, in a fixed order."""
    everything = (
        *(Task(REACH, block) for block in BLOCKS),
        *(Task(PLACE, block, pad) for block in BLOCKS for pad in PADS),
        *(Task(FOLLOW, block) for block in BLOCKS),
    )
    return tuple(task for task in everything if family in (None, task.family))


_BY_INSTRUCTION = {task.instruction: task for task in tasks()}


def choose_task(asked: str, seed: int) -> Task:
    """The task of a family that belongs to a seed, or the task of an instruction.

    Raises ValueError, in one sentence, for unknown words and for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}: give 0 or more")
    if asked in FAMILIES:
        choices = tasks(asked)
        return choices[int(np.random.default_rng((seed, FAMILIES.index(asked))).integers(len(choices)))]
    try:
        return Task.parse(asked)
    except ValueError:
        raise ValueError(
            f"task is {asked!r}: give one of {', '.join(FAMILIES)}, or a whole instruction"
        ) from None


@dataclass
class Score:
    """Decides success of one task from a sequence of views; `update` it at a steady rate, 60 Hz in SimRobot.

    success latches for reach and place; for follow it is decided over the last FOLLOW_WINDOW_S of the
    episode.
    """

    task: Task
    start_s: float
    success: bool = False
    _good_since_s: float | None = None
    _last: tuple[float, float, float] | None = None
    _window: deque[tuple[float, bool]] = field(default_factory=deque)

    def update(self, time_s: float, view: View) -> None:
        """Take the view at time_s into account."""
        good = self.task.done(view)
        if self.task.family == FOLLOW:
            self._follow(time_s, good)
            return
        if self.task.family == PLACE:
            x, y, z, _ = view.blocks[self.task.block]
            last, self._last = self._last, (x, y, z)
            good = good and last is not None and math.dist(last, (x, y, z)) < 0.0005  # < 3 cm/s
        if not good:
            self._good_since_s = None
        elif self._good_since_s is None:
            self._good_since_s = time_s
        if self._good_since_s is not None and time_s - self._good_since_s >= 0.3 - 1e-6:
            self.success = True

    def _follow(self, time_s: float, good: bool) -> None:
        end_s = self.start_s + self.task.time_limit_s
        if time_s > end_s + 1e-6:
            return
        self._window.append((time_s, good))
        while self._window[0][0] < time_s - FOLLOW_WINDOW_S:
            self._window.popleft()
        full = time_s >= end_s - 0.02
        self.success = full and sum(ok for _, ok in self._window) >= 0.8 * len(self._window)


@dataclass(frozen=True)
class Truth:
    """Ground truth for scoring, never for the policy."""

    time_s: float
    view: View
    task: Task
    held: str | None
    success: bool
    answer: str
