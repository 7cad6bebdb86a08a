"""What a fleet was promised, what its replicas can keep of it, and so what a robot is told.

Where enough of the robots that are served were seen to ask, a further one is judged by simulating them as
they ask, at the pace that their requests show; else by what is expected of robots that nobody has seen
(fleet.admission.forecast). Where more fit as they ask than were expected, they are not slowed for it later,
unless chunks truly come late.
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
    Rules,
    Verdict,
    admit,
    capacity_hz,
    in_time_of,
    taken_share,
)
from vla_accel_ros.fleet.replicas.replica import Replica
from vla_accel_ros.fleet.serving.records import Robot

SEEN = 0.5
"""Of the robots that are served, how many must have been seen to ask, so that they are simulated."""
FITS = 1.02
"""Times as much as is possible may be promised before a robot is slowed: what is measured varies."""


class Judge:
    """Of one scheduler, whose replicas, rules and forecast these are. punctuality: of its answers."""

    def __init__(self, replicas: Sequence[Replica], rules: Rules, forecast: Forecast) -> None:
        self._replicas, self._rules, self._forecast = tuple(replicas), rules, forecast
        self.punctuality = Punctuality(rules.within_s)
        self._taken: Counter[float] = Counter()  # how many robots were promised each rate
        self._asking: dict[str, tuple[Any, ...]] = {}  # forecasts that are waited for, by robot
        self._pace = 1.0  # by which the replica was found to be slower than it was measured
        self._share, self._more = 1.0, False  # of what is expected that may be promised; it may grow
        self._in_time_hz = math.inf

    @property
    def capacity_hz(self) -> float:
        """Chunks a second that the replicas make."""
        return capacity_hz(self._measured())

    def promised_hz(self) -> float:
        """Chunks a second of all robots that are served."""
        return sum(rate_hz * count for rate_hz, count in self._taken.items())

    def in_time_hz(self) -> float:
        """Chunks a second that are expected in time, of robots as those that are served; inf where nothing is
        known or asked."""
        with suppress(Forecasting):  # until it is there, what was known last
            share = taken_share(self._taken, self._in_time())
            self._in_time_hz = self.promised_hz() / share if share else math.inf
        return self._in_time_hz

    def promise(self, robot: Robot, verdict: Verdict) -> None:
        """A robot is told this from now on."""
        before, robot.verdict = robot.verdict, verdict
        if before.chunks_per_s != verdict.chunks_per_s:
            self.punctuality.changed()
        for each, count in ((before, -1), (verdict, 1)):
            if each.admitted:
                self._taken[each.chunks_per_s] += count
                if not self._taken[each.chunks_per_s]:
                    del self._taken[each.chunks_per_s]

    def forget(self, robot: Robot) -> None:
        """It has gone: the fleet is another one."""
        self._asking.pop(robot.name, None)
        self.promise(robot, Verdict(False))
        self.punctuality.forget()

    def room(self, robot: Robot, robots: Iterable[Robot], now_s: float) -> Room | None:
        """For it beside those of these robots that are served, as they were seen to ask; None where too few
        were, or where several replicas share them. Raises Forecasting."""
        if robot.name not in self._asking:
            asking = self._as_they_ask(robot, robots, now_s)
            if asking is None:
                return None
            self._asking[robot.name] = asking
        found: Room = self._forecast(room, *self._asking[robot.name])
        del self._asking[robot.name]
        self._pace, self._more = found.pace, self._more or found.rate_hz > 0.0
        return found

    def verdict(self, robot: Robot, room: Room | None = None) -> Verdict:
        """Of a robot beside all others. Raises Forecasting."""
        taken, told = self._taken, robot.verdict
        if told.admitted:
            taken = taken - Counter([told.chunks_per_s])
        capacity = self.capacity_hz / self.punctuality.slower
        return admit(robot.description.chunks_per_s, taken, capacity, self._rules, self._in_time(), room)

    def look(self) -> None:
        """Think again about what may be promised, from time to time. Raises Forecasting."""
        share = self._promised_share()
        more, self._more = self._more, False
        self._share = max(1.0, share if more else min(self._share, share))

    def keeps(self) -> bool:
        """Whether what was promised is possible. Raises Forecasting."""
        most_hz = self._rules.load * self.capacity_hz / self.punctuality.slower
        return self._promised_share() <= FITS * self._share and self.promised_hz() <= FITS * most_hz

    def _promised_share(self) -> float:
        """Of what is expected in time; one robot alone is always tried."""
        return taken_share(self._taken, self._in_time()) if self._taken.total() > 1 else 0.0

    def _in_time(self) -> InTime:
        return in_time_of(self._measured(), self._rules, self.punctuality.slower, self._forecast)

    def _measured(self) -> list[Measured]:
        return [Measured.of(one) for one in self._replicas]

    def _as_they_ask(self, robot: Robot, robots: Iterable[Robot], now_s: float) -> tuple[Any, ...] | None:
        """What `room` is asked."""
        (one, *others), rules, late = self._measured(), self._rules, self.punctuality
        wanted_hz = robot.description.chunks_per_s or UNTOLD_HZ
        if others or not one.serve or math.isinf(rules.within_s) or not 0.0 < wanted_hz < math.inf:
            return None
        served = [each for each in robots if each is not robot and each.verdict.admitted]
        if not 0 < len(served) < MOST_ROBOTS:
            return None
        rhythms = tuple(each.rhythm(now_s) for each in served)
        if sum(each.next_s is not None for each in rhythms) < SEEN * len(rhythms):
            return None
        asked = wanted_hz, rules.least, rules.within_s
        return one.slower(1.0), rhythms, *asked, late.took_s, max(late.slower, self._pace)
