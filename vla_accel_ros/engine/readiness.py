"""Which requests may run next: there is room, and for a stream something that is new to act on.

What is new: a frame that was not acted on; for a policy that is given the joints at each chunk (a state
token, as pi0 has), joints with another stamp; and where chunks are guided, newly committed points: at least
one whole action more than the last chunk of that frame was made to agree with. Without guidance a policy that
has the joints in its prompt (pi0.5) acts once on each frame: a second chunk would differ by its noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vla_accel_ros.engine.kv.pool import Prefix, Prefixes
from vla_accel_ros.engine.request import ACT, OBSERVE, Request

SENSE_AGAIN_S = 0.005
"""How soon at most to look again whether there are newer joints, or more committed points, to act on."""
LEAST_AGAIN_S = 0.0005
"""How soon at least."""


@dataclass
class _Robot:
    """Of a robot's stream: the version that was acted on last and when it was captured, the newest that is
    never acted on, the stamp of the joints that were given last, how many leading actions the last chunk was
    made to agree with, and whether chunks are guided now."""

    acted: int = -1
    skipped: int = -1
    stamp_ns: int = 0
    sensed_ns: int = 0
    committed: int = 0
    guided: bool = False


class Readiness:
    """Of one scheduler's requests. room: whether there is room to begin one."""

    def __init__(self, prefixes: Prefixes, room: Callable[[Request], bool]) -> None:
        self._prefixes, self._room = prefixes, room
        self._robots: dict[str, _Robot] = {}

    def is_ready(self, request: Request, now_s: float) -> bool:
        """Whether its next micro-request may run. Sets what the policy is to know of one that has not begun:
        instruction and fresh."""
        if request.begun or (request.want == OBSERVE and not request.waits):
            return True
        if request.want == OBSERVE:
            return self._room(request)
        if request.prefix is None:
            request.instruction = self._prefixes.newest_words(request.robot)
        else:
            request.instruction = request.prefix.instruction
        if request.stream:
            return self._is_new(request, now_s) and self._room(request)
        return not request.waits or self._room(request)

    def begun(self, request: Request, prefix: Prefix) -> None:
        """A stream acts on a frame now, with the joints and the agreement that the request has."""
        robot, agreement = self._robots.setdefault(request.robot, _Robot()), request.agreement
        robot.acted, robot.stamp_ns = prefix.version, prefix.stamp_ns
        robot.sensed_ns = request.sensed_ns
        robot.committed = 0 if agreement is None else agreement.delay

    def skip(self, robot: str) -> None:
        """Act on no frame that there is already."""
        newest = self._prefixes.newest_version(robot)
        self._robots[robot] = _Robot(newest, newest)

    def due_again_s(self, requests: Sequence[Request], now_s: float) -> float:
        """When one of these may be ready without a change: when its time has come, newer joints, or the time
        at which one more action is committed."""
        waiting = [r for r in requests if not r.begun]
        later_s = [r.not_before_s for r in waiting if r.not_before_s > now_s]
        sensing = [r for r in waiting if self._senses(r) and r.not_before_s <= now_s]
        return min([*later_s, *(now_s + _again_s(request) for request in sensing)], default=math.inf)

    def _is_new(self, request: Request, now_s: float) -> bool:
        """Whether there is something to begin with that was not there for the last of its kind."""
        given = request.prefix
        newest = self._prefixes.newest_version(request.robot) if given is None else given.version
        robot = self._robots.setdefault(request.robot, _Robot())
        if newest <= robot.skipped or request.want != ACT:
            return newest > robot.skipped
        request.fresh = newest != robot.acted
        if request.first is not None and request.first != request.fresh:
            return False
        if request.fresh or now_s < request.not_before_s:
            return request.fresh
        try:
            return _has_newer_joints(request, robot) or _has_more_committed(request, robot)
        except Exception:  # it begins, and fails with that
            return True

    def _senses(self, request: Request) -> bool:
        """Whether what is new to it comes without anybody's word."""
        robot = self._robots.get(request.robot, _Robot())
        return request.sense is not None or (request.commits is not None and robot.guided)


def _has_newer_joints(request: Request, robot: _Robot) -> bool:
    sensed = None if request.sense is None else request.sense()
    return sensed is not None and sensed[1] != robot.sensed_ns


def _has_more_committed(request: Request, robot: _Robot) -> bool:
    committed = None if request.commits is None else request.commits(robot.stamp_ns)
    robot.guided = committed is not None
    return committed is not None and committed > robot.committed


def _again_s(request: Request) -> float:
    """A quarter of the period in which it is wanted, within bounds."""
    period_s = request.period_s or math.inf
    return min(SENSE_AGAIN_S, max(LEAST_AGAIN_S, period_s / 4.0))
