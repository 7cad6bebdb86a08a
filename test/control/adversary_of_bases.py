"""A random adversary of robots with a mobile base: `python test/control/adversary_of_bases.py --events N`.

It plays what adversary.py does with a base beside the joints. What the base is sent is judged as a base
executes it: each velocity until the next, and none for longer than its timeout. A process that is killed is
not judged by what its last command leads to: nothing but the timeout ends that.
"""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from adversary import main
from adversary_faults import Episode
from adversary_scene import EPOCH, MS, Case, S
from executed import judge_velocities
from world import Process, StreamLine

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Base, Controller, Joint
from vla_accel_ros.contract.sections.base import AXES
from vla_accel_ros.types import Chunk

SLACK_NS = 100 * MS
KINDS_OF_BASES = ("joint_trajectory", "forward_command", "servo_joint")


class EpisodeOfBases(Episode):
    """With what is above. Attributes: `rolled`, commands of the base [6] with their times, of one process
    each; `rolling`, share of them that are not zero."""

    rolling = 0.0

    def __init__(self, case: Case) -> None:
        rng = self._of_base = random.Random(f"base {case.seed}")
        axes = rng.sample(tuple(AXES), rng.randint(1, 3))
        speeds = rng.choice((0.2, 0.6, 1.5)), rng.choice((0.5, 2.0))
        changes = speeds[0] / rng.choice((0.2, 0.6)), speeds[1] / rng.choice((0.1, 0.5))
        self._base = Base(
            axes=tuple(Joint(f"base.{axis}", -1.0, 1.0, 1.0, 1.0, "velocity") for axis in axes),
            places=tuple(AXES[axis][1] for axis in axes),
            controller=Controller(
                "base/cmd_vel", (), "TwistStamped", rng.choice((20.0, 50.0)), frame="base_link"
            ),
            speeds=speeds,
            accelerations=changes,
            timeout_s=rng.choice((0.2, 0.5, 1.0)),
        )
        self.ramp_s = max(speed / change for speed, change in zip(speeds, changes))
        self.rolled: list[list[tuple[int, np.ndarray]]] = []
        self._fresh_ns = 0
        super().__init__(replace(case, kind=case.kind or rng.choice(KINDS_OF_BASES)))
        self._every(round(S / self._base.controller.rate_hz), self._roll)

    def _contract(self) -> Contract:
        return replace(super()._contract(), base=self._base)

    def _start(self, go_on: bool = True) -> Process:
        self.rolled.append([])
        return super()._start(go_on)

    def _line(self, controller: Controller) -> Any:
        if controller.kind == "TwistStamped":
            return StreamLine(self._rolls)
        return super()._line(controller)

    @property
    def _longest_s(self) -> float:
        return max(super()._longest_s, self.ramp_s)

    def _roll(self) -> None:
        """The timer of the base; `_tick` has that of the joints."""
        if self.robot.kind == "joint_trajectory":
            self._tick()

    def _rolls(self, command: np.ndarray) -> None:
        self._check_silence()
        age_ns, commands = self.now_ns() - self.newest_chunk_ns, self.rolled[-1]
        late = bool(commands) and self.t_ns - commands[-1][0] > SLACK_NS
        if late or age_ns <= self.robot.chunk_age_s * S:
            self._fresh_ns = self.t_ns
        if command.any() and self.t_ns - self._fresh_ns > self.ramp_s * S + SLACK_NS:
            self._break("the base moves by a chunk that is too old")
        commands.append((self.t_ns, command.copy()))

    def _end_stream(self) -> None:
        super()._end_stream()
        if self.rolled[-1] and self.rolled[-1][-1][1].any():
            self._break("the base moves, and is released")
        self.rolled.append([])

    def _made(self) -> Chunk:
        chunk, base = super()._made(), self._base
        times_s = (chunk.stamp_ns - EPOCH) * 1e-9 + np.arange(chunk.horizon)[:, None] * chunk.step_dt_s
        places = np.array(base.places)
        size = np.where(places < 3, *base.speeds) * self._of_base.choice((0.3, 1.0, 3.0))
        columns = size * np.sin(times_s * 2.0 + places)
        if self.active("jumps"):
            columns += size * self.array.uniform(-1.0, 1.0, len(size))
        if self.active("wild"):
            columns = self._wild(columns)
        return replace(chunk, actions=np.hstack([chunk.actions, columns]).astype(np.float32))

    def _judge(self) -> None:
        super()._judge()
        longest_s, base = 2.0 * self._period_s, self._base
        for half, speed, change in zip((slice(0, 3), slice(3, 6)), base.speeds, base.accelerations):
            for commands in self.rolled:
                sizes = [(t_ns, np.array([np.linalg.norm(velocity[half])])) for t_ns, velocity in commands]
                fast = judge_velocities(sizes, np.array([speed]), np.array([np.inf]), longest_s)
                axes = [(t_ns, velocity[half]) for t_ns, velocity in commands]
                hard = judge_velocities(
                    axes, np.full(3, np.inf), np.full(3, change), longest_s, base.timeout_s
                )
                self.broken += [replace(broken, what=f"{broken.what} of the base") for broken in fast + hard]
        every = [command for commands in self.rolled for command in commands]
        self.rolling = float(np.mean([bool(velocity.any()) for _, velocity in every] or [False]))
        unmoved = set(range(6)) - set(base.places)
        if any(velocity[list(unmoved)].any() for _, velocity in every):
            self._break("an axis moves that the policy does not know")
        for (begin, end), (t_ns, velocity) in itertools.product(self.still, every):
            if begin <= t_ns < end and velocity.any():
                self._break("the base moved while held")

    @property
    def _period_s(self) -> float:
        """Of the timer by which the base is ticked."""
        return (
            1.0 / self._base.controller.rate_hz
            if self.robot.kind == "joint_trajectory"
            else self.robot.period_s
        )


if __name__ == "__main__":
    sys.exit(main(EpisodeOfBases, __doc__))
