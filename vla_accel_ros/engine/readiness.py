"""Decides which requests may run next: there must be room, and for a stream something new to act on.

New is: a frame that was not acted on; for a policy that takes the joints with each chunk (a state token, as
pi0 has), joints with another stamp; and for guided chunks newly committed points: at least one whole action
more than the last chunk of that frame agrees with. Without guidance a policy with the joints in its prompt
(pi0.5) acts once on each frame: a second chunk would differ by its noise alone.

If joints come regularly but late (engine.grid), a chunk that is due begins with those of the one before, but
at most MOST_AGAIN in a row do: joints that no longer come bring no chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.request import ACT, OBSERVE, WAITING, Request, Waits

SENSE_AGAIN_S = 0.005
"""Longest time until the next check for more committed points, and for newer joints of somebody who does not
wake the scheduler for them."""
MOST_AGAIN = 2
"""Most chunks in a row that begin with the joints of the one before."""
LEAST_AGAIN_S = 0.0005
"""Shortest time until the next check for committed points."""


@dataclass
class _Robot:
    """State of a robot's stream. acted, stamp_ns: version and capture time of the frame that was acted on
    last; skipped: newest version that is never acted on; sensed_ns: stamp of the joints that were used last;
    repeats: chunks in a row that had them, but the first; committed: number of leading actions that the last
    chunk agrees with; guided: whether chunks are guided now."""

    acted: int = -1
    skipped: int = -1
    stamp_ns: int = 0
    sensed_ns: int = 0
    repeats: int = 0
    committed: int = 0
    guided: bool = False


class Readiness:
    """Readiness of one scheduler's requests. room: whether there is room to begin a request."""

    def __init__(self, prefixes: Prefixes, room: Callable[[Request], bool]) -> None:
        self._prefixes, self._room = prefixes, room
        self._robots: dict[str, _Robot] = {}

    def is_ready(self, request: Request, now_s: float) -> bool:
        """Whether the request's next micro-request may run. Sets `instruction` and `fresh` of a request that
        has not begun, for the scheduling rules."""
        if request.status is not WAITING or (request.want == OBSERVE and request.waits is Waits.NOTHING):
            return True
        if request.want == OBSERVE:
            return self._room(request)
        if request.prefix is None:
            request.instruction = self._prefixes.newest_instruction(request.robot)
        else:
            request.instruction = request.prefix.instruction
        if request.stream:
            return self._is_new(request, now_s) and self._room(request)
        return request.waits is Waits.NOTHING or self._room(request)

    def begun(self, request: Request, prefix: Prefix) -> None:
        """Note that a stream acts on a frame now, with the request's joints and agreement."""
        robot, agreement = self._robots.setdefault(request.robot, _Robot()), request.act.agreement
        robot.acted, robot.stamp_ns = prefix.version, prefix.stamp_ns
        robot.repeats = robot.repeats + 1 if request.act.sensed_ns == robot.sensed_ns else 0
        robot.sensed_ns = request.act.sensed_ns
        robot.committed = 0 if agreement is None else agreement.delay

    def skip(self, robot: str) -> None:
        """Act on none of the robot's present frames."""
        newest = self._prefixes.newest_version(robot)
        self._robots[robot] = _Robot(newest, newest)

    def due_again_s(self, requests: Sequence[Request], now_s: float) -> float:
        """When to check these requests again without another event: when a chunk is due, or soon if one waits
        for newer joints or committed points; inf if never."""
        due_s = math.inf
        for request in requests:
            if request.want == ACT and request.status is WAITING:
                grid, again_s = request.act.grid, now_s + self._again_s(request)
                due_s = min(due_s, again_s if grid is None or grid.due_s <= now_s else grid.due_s)
        return due_s

    def _is_new(self, request: Request, now_s: float) -> bool:
        """Whether there is something to act on that the last request of its kind did not have."""
        prefix = request.prefix
        newest = self._prefixes.newest_version(request.robot) if prefix is None else prefix.version
        robot = self._robots.setdefault(request.robot, _Robot())
        if newest <= robot.skipped or request.want != ACT:
            return newest > robot.skipped
        request.fresh = newest != robot.acted
        if request.act.first not in (None, request.fresh):
            return False
        grid = request.act.grid
        if request.fresh or (grid is not None and now_s < grid.due_s):
            return request.fresh
        try:
            return _has_joints(request, robot) or _has_more_committed(request, robot)
        except Exception:  # let it begin, and fail with this error
            return True

    def _again_s(self, request: Request) -> float:
        """Time until new input for the request is polled: committed points, which come without an event, four
        times in its period, within bounds; joints rarely; inf without either."""
        robot = self._robots.get(request.robot)
        if request.act.commits is not None and robot is not None and robot.guided:
            return min(SENSE_AGAIN_S, max(LEAST_AGAIN_S, (request.pace.period_s or math.inf) / 4.0))
        return math.inf if request.act.sense is None else SENSE_AGAIN_S


def _has_joints(request: Request, robot: _Robot) -> bool:
    sensed, grid = None if request.act.sense is None else request.act.sense(), request.act.grid
    repeated = grid is not None and grid.is_regular and robot.repeats < MOST_AGAIN
    return sensed is not None and (repeated or sensed[1] != robot.sensed_ns)


def _has_more_committed(request: Request, robot: _Robot) -> bool:
    committed = None if request.act.commits is None else request.act.commits(robot.stamp_ns)
    robot.guided = committed is not None
    return committed is not None and committed > robot.committed
