"""A robot's stream of frames, stepped by hand: what a lane's thread would do, without one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from wishes import counted

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import Act, Request, Waits
from vla_accel_ros.types import Chunk, Observation


class FrameStream:
    """Frames of one robot and the action requests that want the newest.

    finished: requests, in the order in which they were; dropped: requests that nobody wants any more.
    """

    def __init__(self, engine: Engine, robot: str = "") -> None:
        self.engine, self.robot = engine, robot
        self.finished: list[Request] = []
        self.errors: list[Exception] = []
        self.dropped: list[Request] = []
        self.counts = counted(engine.scheduler)

    @property
    def chunks(self) -> list[Chunk]:
        """What came of those that are finished."""
        return [one.result for one in self.finished if isinstance(one.result, Chunk)]

    @property
    def under_way(self) -> list[Request]:
        """Its requests that have begun."""
        return [one for one in self.engine.scheduler.requests if one.robot == self.robot and one.begun]

    @property
    def waiting(self) -> list[Request]:
        """Its requests that have not."""
        return [one for one in self.engine.scheduler.requests if one.robot == self.robot and not one.begun]

    def see(self, observation: Observation) -> None:
        """A frame is observed; nothing acts on it yet."""
        self.engine.observe(replace(observation, robot=self.robot)).release()

    def want(self, prefix: Prefix | None = None, **given: Any) -> Request:
        """An action is wanted when there is something new to act on."""
        request = Request(Act(**given), self.robot, on_progress=self._progressed, waits=Waits.NEWS)
        request.prefix = prefix
        return self.engine.scheduler.submit(request)

    def frame(self, observation: Observation, state: np.ndarray | None = None) -> tuple[Request, ...]:
        """A frame is seen, an action on it wanted, and one micro-batch computed."""
        self.see(observation)
        self.want(state=state)
        return self.engine.scheduler.step()

    def frames(self, observations: Iterable[Observation]) -> list[list[Chunk]]:
        """Frames, after each of which all runs that may run: the chunks that each brought."""
        brought = []
        for observation in observations:
            before = len(self.chunks)
            self.frame(observation)
            self.run()
            brought.append(self.chunks[before:])
        return brought

    def run(self) -> None:
        """All that may run without another frame."""
        while self.engine.scheduler.step():
            pass

    def _progressed(self, request: Request) -> None:
        if not request.finished:
            return
        if request.error is not None:
            self.errors.append(request.error)
        elif request.cancelled:
            self.dropped.append(request)
        else:
            self.finished.append(request)


def held_slots(engine: Engine, robots: int = 1) -> int:
    """Slots that somebody holds, besides each robot's newest frame's."""
    return engine.runner.pool.slots - engine.runner.pool.free - robots
