"""What a person or another node asks of the motion, from the call to its answer.

An order may take several steps: come to rest, wait for the disk, move. Its steps are a generator that yields
wherever it waits for something; every tick lets it go on.
"""

from __future__ import annotations

from collections.abc import Generator

from vla_accel_ros.control.following.watchdog import RELEASED
from vla_accel_ros.control.holds import LATE, WRITTEN_S
from vla_accel_ros.control.robot import Robot

Answer = tuple[bool, str]
"""Whether it was done, and a sentence."""
Steps = Generator[bool | None, None, Answer]
"""Yields whether it waits for the disk, and else for a tick."""


class Order:
    """One order. answer: None until there is one. writes: whether it waits for the disk."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self.writes = steps, False
        self.answer: Answer | None = None
        self.step()

    def step(self) -> None:
        """Go on as far as possible now."""
        if self.answer is not None:
            return
        try:
            self.writes = bool(next(self._steps))
        except StopIteration as end:
            self.answer = end.value


def until_at_rest(robot: Robot, streams: bool = False) -> Generator[bool | None, None, bool]:
    """Wait until a held robot is at rest, braking included; False if it is not active. streams: until streams
    of commands have come to their end, too, which may be behind what was decided."""
    while robot.active and not (robot.at_rest() and (not streams or robot.outputs.at_rest())):
        yield None
    return robot.active


def come_to_rest(robot: Robot, reason: str, moves: bool = False) -> Generator[bool | None, None, bool]:
    """Hold, and wait until the robot is at rest and gets no commands; False if it is not active. moves: a
    move of this node follows, which continues from the last command."""
    if not robot.active:
        return False
    robot.holds.hold(reason, passing=reason != RELEASED)
    if moves:
        robot.settle()  # a move begins at the measured position
    rests = yield from until_at_rest(robot)
    robot.outputs.rest()  # a stream that is corrected by measured joints may never come to its end
    if not rests or not (yield from until_at_rest(robot, streams=True)):
        robot.holds.resume(reason)
        return False
    if not moves:
        robot.outputs.begin()
    return True


def kept(robot: Robot) -> Generator[bool | None, None, str]:
    """Wait until the holds are on the disk; returns words for an answer if they are not."""
    written, until_ns = robot.holds.written, robot.clock.monotonic_ns() + round(WRITTEN_S * 1e9)
    while written is not None and not written.done():
        if robot.clock.monotonic_ns() > until_ns:
            return _unwritten(LATE)
        yield True
    return _unwritten("" if written is None else written.result())


def _unwritten(why: str) -> str:
    return f"; a restart would forget it, because {why}" if why else ""
