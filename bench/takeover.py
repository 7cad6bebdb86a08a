"""A person and the policy take the arm from each other at random, and what the controllers execute is judged.

    python bench/takeover.py [--switches N] [--processes N]

Simulated time, so the figures do not depend on the machine: robots with random limits and parameters, whose
arm changes hands several times a second, by services and by a button, while chunks leap and are wild, the
person's commands are late, wild, frozen or doubled, the person dies, and the node stalls or starts anew.
control.Motion, the object of the node, decides; test/control/executed.py, which knows nothing of it, judges.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "test" / "control"))

from adversary_faults import Episode
from adversary_person import PERSON
from adversary_scene import Case, S

from run import Bench, Given, Row, main

KINDS = ("joint_trajectory", "forward_command", "servo_joint", "servo_twist")
FAULTS = (*PERSON, "stall", "held up", "no chunks", "jumps", "wild", "hold", "resume", "restart")
FIRST, OFTEN_S = 1_000_000, (0.02, 0.3)


class Outcome(NamedTuple):
    """Of one episode. switches: how often the arm changed hands. human_s: how long a person had it. speed,
    acceleration: the greatest that was executed, over the limits, of a joint_trajectory controller."""

    seconds: float
    switches: int
    human_s: float
    speed: float
    acceleration: float
    broken: tuple[str, ...]


class Wrestling(Episode):
    """A person who takes the arm over and gives it back all the time."""

    human_s = 0.0

    def _start(self, go_on: bool = True) -> Any:
        process = super()._start(go_on)
        holds = process.motion.holds
        hand_to = holds.hand_to

        def counted(human: bool) -> None:
            self.switches += 1
            hand_to(human)

        holds.hand_to = counted  # type: ignore[method-assign]
        return process

    def _meet_person(self) -> None:
        super()._meet_person()
        self._at(self.t_ns, self._change_hands)
        self._every(S // 100, self._time_person)

    def _change_hands(self) -> None:
        self._at(self.t_ns + round(self.person.uniform(*OFTEN_S) * S), self._change_hands)
        name = self.person.choice(("take over", "give back"))
        self.table[name](self, name)

    def _time_person(self) -> None:
        self.human_s += 0.01 * (self.node.motion.takeover.state != "")


def play(kind: str, seed: int) -> Outcome:
    """One episode."""
    episode = Wrestling(Case(seed, FAULTS, kind))
    episode.run()
    speed = acceleration = 0.0
    if kind == "joint_trajectory" and episode.robot.stamped:
        times, positions = episode.controller.path(episode.end_ns)
        judged = np.ones(len(times) - 2, bool)
        for begin, end in episode.controller.spared:  # the controller moves its setpoint by itself
            judged[max(np.searchsorted(times, begin) - 2, 0) : np.searchsorted(times, end)] = False
        limits = episode.robot.limits
        velocity = np.diff(positions, axis=0) * 500.0
        change = np.diff(velocity, axis=0) * 500.0
        speed = float((np.abs(velocity[1:]) / limits.velocity)[judged].max(initial=0.0))
        acceleration = float((np.abs(change) / limits.acceleration)[judged].max(initial=0.0))
    broken = tuple(f"{kind} {seed}: {broken}" for broken in episode.broken)
    return Outcome(episode.end_ns / S, episode.switches, episode.human_s, speed, acceleration, broken)


def measure(given: Given) -> Iterator[Row]:
    """A row for each kind of controller."""
    with get_context("spawn").Pool(given.processes) as pool:
        for kind in KINDS:
            outcomes = list[Outcome]()
            while sum(outcome.switches for outcome in outcomes) * len(KINDS) < given.switches:
                first = FIRST + len(outcomes)
                outcomes += pool.map(partial(play, kind), range(first, first + 4 * given.processes), 1)
            broken = [sentence for outcome in outcomes for sentence in outcome.broken]
            seconds = sum(outcome.seconds for outcome in outcomes)
            yield {
                "kind": kind,
                "episodes": len(outcomes),
                "simulated_s": round(seconds, 1),
                "switches": sum(outcome.switches for outcome in outcomes),
                "human_share": round(sum(outcome.human_s for outcome in outcomes) / seconds, 3),
                "peak_speed": round(max(outcome.speed for outcome in outcomes), 4),
                "peak_acceleration": round(max(outcome.acceleration for outcome in outcomes), 4),
                "broken": len(broken),
                "sentences": broken[:10],
            }


def _options(add: Any) -> None:
    add("--switches", type=int, default=10_000, help="in all (default: %(default)s)")
    add("--processes", type=int, default=1)


BENCH = Bench(
    name="takeover",
    measure=measure,
    options=_options,
    about={"first_seed": FIRST, "faults": FAULTS, "seconds_between_switches": OFTEN_S},
    rows="kinds",
    key=("kind",),
    smoke="--switches 6",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
