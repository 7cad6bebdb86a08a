"""What a fleet has promised, whether its replicas can keep it, and so the verdict on each robot.

If requests of enough robots were observed, the forecast for one more robot simulates those robots with their
observed rhythms and the pace that their requests show. Otherwise it assumes robots at unknown phases
(fleet.admission.forecast). Robots that were admitted by an observed rhythm are not slowed by the more
pessimistic estimate later, unless chunks really come late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from vla_accel_ros.fleet.admission.forecast import MOST_ROBOTS, Forecast, Forecasting, Room, room
from vla_accel_ros.fleet.admission.punctuality import Punctuality
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import (
    UNTOLD_HZ,
    InTime,
    Limits,
    Verdict,
    admit,
    capacity_hz,
    in_time_of,
    taken_share,
)
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.fleet.serving.records import Robot

SEEN = 0.5
"""Share of the served robots whose rhythm must be known before they are simulated."""
FITS = 1.02
"""A robot is slowed only if the promised rate exceeds the possible one by this factor, since measurements
vary."""


class Judge:
    """The judge of one scheduler. punctuality: lateness of its answers."""

    def __init__(self, replicas: Sequence[Replica], limits: Limits, forecast: Forecast) -> None:
        self._replicas, self._limits, self._forecast = tuple(replicas), limits, forecast
        self.punctuality = Punctuality(limits.within_s)
        self._taken: Counter[float] = Counter()  # number of robots with each promised rate
        self._asking: dict[str, tuple[Any, ...]] = {}  # arguments of unfinished forecasts, by robot
        self._pace = 1.0  # factor by which the replica was found slower than measured
        self._share, self._more = 1.0, False  # share of the expected rate that may be promised; may it grow?
        self._in_time_hz = math.inf

    @property
    def capacity_hz(self) -> float:
        """Chunks a second that the replicas can compute."""
        return capacity_hz(self._measured())

    def promised_hz(self) -> float:
        """Chunks a second promised to all served robots."""
        return sum(rate_hz * count for rate_hz, count in self._taken.items())

    def in_time_hz(self) -> float:
        """Return the chunks a second expected in time for a fleet like the served one; inf if nothing is
        measured or promised."""
        with suppress(Forecasting):  # keeps the last value until the forecast is ready
            share = taken_share(self._taken, self._in_time())
            self._in_time_hz = self.promised_hz() / share if share else math.inf
        return self._in_time_hz

    def promise(self, robot: Robot, verdict: Verdict) -> None:
        """Set a robot's verdict and count its promised rate."""
        previous, robot.verdict = robot.verdict, verdict
        if previous.chunks_per_s != verdict.chunks_per_s:
            self.punctuality.changed()
        for state, count in ((previous, -1), (verdict, 1)):
            if state.admitted:
                self._taken[state.chunks_per_s] += count
                if not self._taken[state.chunks_per_s]:
                    del self._taken[state.chunks_per_s]

    def forget(self, robot: Robot) -> None:
        """Remove a robot; punctuality starts again."""
        self._asking.pop(robot.name, None)
        self.promise(robot, Verdict(False))
        self.punctuality.forget()

    def room(self, robot: Robot, robots: Iterable[Robot], now_s: float) -> Room | None:
        """Return the room for `robot` beside the served ones, simulated with their observed rhythms. None if
        too few are known, or if several replicas share the robots. Raises Forecasting."""
        if robot.name not in self._asking:
            asking = self._as_they_ask(robot, robots, now_s)
            if asking is None:
                return None
            self._asking[robot.name] = asking
        result: Room = self._forecast(room, *self._asking[robot.name])
        del self._asking[robot.name]
        self._pace, self._more = result.pace, self._more or result.rate_hz > 0.0
        return result

    def verdict(self, robot: Robot, room: Room | None = None) -> Verdict:
        """Return the verdict on a robot beside all others. Raises Forecasting."""
        promises, current = self._taken, robot.verdict
        if current.admitted:
            promises = promises - Counter([current.chunks_per_s])
        capacity = self.capacity_hz / self.punctuality.slower
        return admit(robot.description.chunks_per_s, promises, capacity, self._limits, self._in_time(), room)

    def look(self) -> None:
        """Update the share that may be promised; to be called periodically. Raises Forecasting."""
        share = self._promised_share()
        more, self._more = self._more, False
        self._share = max(1.0, share if more else min(self._share, share))

    def keeps(self) -> bool:
        """Return whether the promised rates are possible. Raises Forecasting."""
        most_hz = self._limits.load * self.capacity_hz / self.punctuality.slower
        return self._promised_share() <= FITS * self._share and self.promised_hz() <= FITS * most_hz

    def _promised_share(self) -> float:
        """Return the promised share of the rate expected in time; 0 for a single robot, which is always
        tried."""
        return taken_share(self._taken, self._in_time()) if self._taken.total() > 1 else 0.0

    def _in_time(self) -> InTime:
        return in_time_of(self._measured(), self._limits, self.punctuality.slower, self._forecast)

    def _measured(self) -> list[Measured]:
        return Measured.all(self._replicas)

    def _as_they_ask(self, robot: Robot, robots: Iterable[Robot], now_s: float) -> tuple[Any, ...] | None:
        """Return the arguments of the forecast `room`, or None."""
        (measured, *further), limits, punctuality = self._measured(), self._limits, self.punctuality
        wanted_hz = robot.description.chunks_per_s or UNTOLD_HZ
        if further or not measured.serve or math.isinf(limits.within_s) or not 0.0 < wanted_hz < math.inf:
            return None
        served = [candidate for candidate in robots if candidate is not robot and candidate.verdict.admitted]
        if not 0 < len(served) < MOST_ROBOTS:
            return None
        rhythms = tuple(candidate.rhythm(now_s) for candidate in served)
        if sum(candidate.next_s is not None for candidate in rhythms) < SEEN * len(rhythms):
            return None
        request = wanted_hz, limits.least, limits.within_s
        return (
            measured.slower(1.0),
            rhythms,
            *request,
            punctuality.took_s,
            max(punctuality.slower, self._pace),
        )
