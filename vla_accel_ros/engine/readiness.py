"""Which requests may run next: there is room, and for a stream something that is new to act on.

What is new: a frame that was not acted on, or, for a policy that is given the joints at each chunk (a state
token, as pi0 has), joints with another stamp. A policy that has them in its prompt (pi0.5) acts once on each
frame: a second chunk would differ by its noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vla_accel_ros.engine.kv.prefixes import Prefixes
from vla_accel_ros.engine.request import ACT, OBSERVE, Request

SENSE_AGAIN_S = 0.005
"""How soon to look again whether there are newer joints to act on."""


@dataclass
class _Robot:
    """Of a robot's stream: the version that was acted on last, the newest that is never acted on, and the
    stamp of the joints that were given last."""

    acted: int = -1
    skipped: int = -1
    sensed_ns: int = 0


class Readiness:
    """Of one scheduler's requests. room: whether there is room to begin one."""

    def __init__(self, prefixes: Prefixes, room: Callable[[Request], bool]) -> None:
        self._prefixes, self._room = prefixes, room
        self._robots: dict[str, _Robot] = {}

    def is_ready(self, request: Request, now_s: float) -> bool:
        """Whether its next micro-request may run. Sets what the policy is to know of one that has not begun:
        instruction and fresh."""
        if request.begun or request.want == OBSERVE:
            return True
        if request.prefix is None:
            request.instruction = self._prefixes.newest_words(request.robot)
        else:
            request.instruction = request.prefix.instruction
        if request.stream:
            return self._is_new(request, now_s) and self._room(request)
        return not request.waits or self._room(request)

    def begun(self, request: Request, version: int) -> None:
        """A stream acts on a frame now, with the joints that the request has."""
        robot = self._robots.setdefault(request.robot, _Robot())
        robot.acted, robot.sensed_ns = version, request.sensed_ns

    def skip(self, robot: str) -> None:
        """Act on no frame that there is already."""
        newest = self._prefixes.newest_version(robot)
        self._robots[robot] = _Robot(newest, newest)

    def due_again_s(self, requests: Sequence[Request], now_s: float) -> float:
        """When one of these may be ready without a change: when its time has come, or newer joints."""
        waiting = [r for r in requests if not r.begun]
        later_s = [r.not_before_s for r in waiting if r.not_before_s > now_s]
        sensing = any(r.sense is not None and r.not_before_s <= now_s for r in waiting)
        return min([*later_s, now_s + SENSE_AGAIN_S if sensing else math.inf])

    def _is_new(self, request: Request, now_s: float) -> bool:
        """Whether there is something to begin with that was not there for the last of its kind."""
        given = request.prefix
        newest = self._prefixes.newest_version(request.robot) if given is None else given.version
        robot = self._robots.setdefault(request.robot, _Robot())
        if newest <= robot.skipped or request.want != ACT:
            return newest > robot.skipped
        request.fresh = newest != robot.acted
        if request.fresh or now_s < request.not_before_s or request.sense is None:
            return request.fresh
        try:
            sensed = request.sense()
        except Exception:  # it begins, and fails with that
            return True
        return sensed is not None and sensed[1] != robot.sensed_ns
