"""The robots of a fleet: who is described and served, which replicas are ready for it, who has gone.

A robot is judged when it tells who it is, before anything is computed for it (fleet.admission.verdict), or
as soon as the forecast for that is there; those that came later wait behind it, and nobody else waits. It
is told that it is served once a replica is ready for it. Those that were refused or slowed are judged again
when a robot goes and from time to time; those that were admitted, where chunks come late or replicas got
slower (fleet.admission.punctuality): the last that came are slowed or refused first, and told why. One that
says nothing for `gone_s` is forgotten. Only what has not settled is looked at in a step: replicas that get
ready, and who was silent for longest.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vla_accel_ros.fleet.admission.forecast import MOST_ROBOTS, Forecast, Forecasting, Room, at_once, room
from vla_accel_ros.fleet.admission.punctuality import Punctuality
from vla_accel_ros.fleet.admission.replica_model import Measured
from vla_accel_ros.fleet.admission.verdict import (
    UNTOLD_HZ,
    InTime,
    Verdict,
    admit,
    capacity_hz,
    in_time_of,
    taken_share,
)
from vla_accel_ros.fleet.protocol import Admission, RobotDescription
from vla_accel_ros.fleet.replicas.replica import Replica, ReplicaLost
from vla_accel_ros.fleet.serving.records import NOT_JUDGED, Robot
from vla_accel_ros.fleet.serving.rhythms import rhythm_of
from vla_accel_ros.fleet.serving.settings import ASK_AGAIN_S, Cut, Ports, Settings, whole

JUDGE_AGAIN_S = 2.0
"""How often is looked whether there is room now for robots that were refused or slowed."""
SEEN_AGAIN_S = 10.0
"""How often such a robot is judged by how the others ask now."""
SEEN = 0.5
"""Of the robots that are served: how many must have been seen to ask, so that they are simulated as they do."""
FITS = 1.02
"""Times as much as is possible may be promised before a robot is slowed: what is measured varies."""


class Members:
    """Of one scheduler. name, ports, settings, horizon, forecast: its own. left: called for a robot that is
    forgotten; failed: for one that cannot be served any more, with the reason."""

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        ports: Ports,
        settings: Settings,
        horizon: Callable[[RobotDescription], Cut],
        left: Callable[[Robot, float], None],
        failed: Callable[[Robot, str], None],
        forecast: Forecast = at_once,
    ) -> None:
        self.name, self.replicas, self._settings = name, tuple(replicas), settings
        self._ports, self._horizon, self._left, self._failed = ports, horizon, left, failed
        self._forecast = forecast
        self.robots: dict[str, Robot] = {}
        self._new: dict[str, Robot] = {}  # not judged yet, in the order in which they came
        self._keep = self._again = (
            False  # whether robots are to be slowed, or taken, once forecasts are there
        )
        self._in_time_hz = math.inf
        self._heard: OrderedDict[str, Robot] = OrderedDict()  # who was silent for longest comes first
        self._unsettled: dict[str, Robot] = {}  # some replica is not ready for it
        self._lowered: dict[str, Robot] = {}  # refused, or at a lower rate
        self._again_s: dict[str, float] = {}  # when a lost replica is tried again
        self._judge_s = -math.inf
        self._taken: Counter[float] = Counter()  # how many robots were promised each rate
        self._granted, self._widened = 1.0, False  # see _grant
        self._pace = 1.0  # by which the replica was found to be slower than measured
        self._asking: dict[str, tuple[Any, ...]] = {}  # forecasts that are waited for, by robot
        self.punctuality = Punctuality(settings.rules.within_s)

    @property
    def capacity_hz(self) -> float:
        """Chunks a second that the replicas make."""
        return capacity_hz(self._measured())

    def described(self, description: RobotDescription, now_s: float) -> None:
        """A robot told who it is. Another process under its name, or another description, begins anew. One
        that tells it again has not heard whether it is served, or has heard another scheduler since."""
        known = self.robots.get(description.robot)
        if known is not None and known.description == description:
            self.heard(known, now_s)
            if known.told is not None:
                known.told = None
                self._tell_ready(known)
            return
        if known is not None:
            self.forget(known, now_s)
        robot = Robot(description, NOT_JUDGED, whole(description), now_s, now_s)
        if len(self.robots) < 2 * self._settings.rules.most_robots:
            name = robot.name
            self.robots[name] = self._heard[name] = self._new[name] = robot
        else:
            robot.verdict = Verdict(False, reason=f"{len(self.robots)} robots are known; raise most_robots")
            self._tell(robot)
        self._again |= known is not None
        self._review(now_s)
        self.step(now_s)

    def heard(self, robot: Robot, now_s: float) -> None:
        """There was a sign of it."""
        robot.heard_s = now_s
        if robot.name in self._heard:
            self._heard.move_to_end(robot.name)

    def gone(self, robot: str, now_s: float) -> None:
        """A robot is not there any more: forget all of it."""
        if (known := self.robots.get(robot)) is not None:
            self.forget(known, now_s)
            self._again = True
            for lowered in self._lowered.values():
                lowered.judged_s = -math.inf
            self._review(now_s)

    def forget(self, robot: Robot, now_s: float) -> None:
        """Nothing of it is left, here and with the replicas."""
        known = self.robots.pop(robot.name, None)
        for place in (self._heard, self._new, self._unsettled, self._lowered):
            place.pop(robot.name, None)
        if known is robot:
            self._asking.pop(robot.name, None)
            self._promise(robot, Verdict(False))
            self.punctuality.forget()
        self._left(robot, now_s)
        for one in self.replicas:
            if (future := robot.ready.pop(one.name, None)) is not None:
                future.cancel()
            one.forget(robot.name)

    def look(self, now_s: float) -> None:
        """Who was silent for too long has gone; there may be room for others."""
        while self._heard:
            first = next(iter(self._heard.values()))
            if now_s - first.heard_s <= self._settings.gone_s:
                break
            self.gone(first.name, now_s)
        if now_s >= self._judge_s:
            self._judge_s = now_s + JUDGE_AGAIN_S
            self.punctuality.judge()
            self._keep = self._again = True
        self._review(now_s)

    def step(self, now_s: float) -> None:
        """Have replicas get ready for the robots that were admitted, and tell those for which one is."""
        for robot in tuple(self._unsettled.values()):
            if robot.name not in self._unsettled:
                continue
            settled = True
            for one in self.replicas:  # what is ready now is told before its first chunk
                future = robot.ready.get(one.name)
                if future is not None and future.done() and isinstance(error_of(future), ReplicaLost):
                    robot.ready.pop(one.name)
                    self.lost(one, now_s)
                    future = None
                if future is None and now_s >= self._again_s.get(one.name, -math.inf):
                    robot.ready[one.name] = future = one.describe(robot.description)
                    future.add_done_callback(self._wake)
                if future is None or not future.done() or isinstance(error_of(future), ReplicaLost):
                    settled = False
                elif robot.is_ready(one.name) and robot.introduced.get(one.name) is not future:
                    robot.introduced[one.name] = future
                    if (session := future.result()) is not None:
                        self._ports.session(robot.name, one.name, session)
            self._tell_ready(robot)
            if settled and robot.told == robot.verdict:
                self._unsettled.pop(robot.name, None)

    def lost(self, one: Replica, now_s: float) -> None:
        """What a replica knew of robots it may know no longer."""
        self._again_s[one.name] = now_s + ASK_AGAIN_S
        for robot in self.robots.values():
            robot.ready.pop(one.name, None)
            if robot.verdict.admitted:
                self._unsettled[robot.name] = robot

    def not_served(self, replica: str, now_s: float) -> set[Robot]:
        """Robots that may be served by other replicas only, or later."""
        found = {robot for robot in self._unsettled.values() if not robot.is_ready(replica)}
        return found | {robot for robot in self._lowered.values() if now_s < robot.next_s}

    def promised_hz(self) -> float:
        """Chunks a second of all robots that are served."""
        return sum(rate_hz * count for rate_hz, count in self._taken.items())

    def in_time_hz(self) -> float:
        """Chunks a second that are expected in time, of robots that ask as often as those that are served do
        on average; inf where nothing is known or asked."""
        robots = self._taken.total()
        with suppress(Forecasting):  # until it is there, what was known last
            self._in_time_hz = self._in_time()(self.promised_hz() / robots) if robots else math.inf
        return self._in_time_hz

    def _review(self, now_s: float) -> None:
        """Judge whom there is to judge, as far as the forecasts for it are there."""
        with suppress(Forecasting):
            for robot in tuple(self._new.values()):
                self._judge_new(robot, now_s)
            if self._keep:
                self._keep_what_fits()
                self._keep = False
            if self._again:
                self._reconsider(now_s)
                self._again = False

    def _judge_new(self, robot: Robot, now_s: float) -> None:
        verdict = self._judge(robot.description, self._seen(robot, now_s))
        del self._new[robot.name]
        if verdict.admitted:
            try:
                robot.cut = self._horizon(robot.description)
            except ValueError as error:
                verdict = Verdict(False, reason=str(error))
        self._judged(robot, verdict)
        if not verdict.admitted:
            self._tell(robot)

    def _judged(self, robot: Robot, verdict: Verdict) -> None:
        self._promise(robot, verdict)
        if verdict.admitted:
            self._unsettled[robot.name] = robot
        if verdict.reason:
            self._lowered[robot.name] = robot
        else:
            self._lowered.pop(robot.name, None)

    def _promise(self, robot: Robot, verdict: Verdict) -> None:
        before, robot.verdict = robot.verdict, verdict
        if before.chunks_per_s != verdict.chunks_per_s:
            self.punctuality.changed()
        for each, count in ((before, -1), (verdict, 1)):
            if each.admitted:
                self._taken[each.chunks_per_s] += count
                if not self._taken[each.chunks_per_s]:
                    del self._taken[each.chunks_per_s]

    def _in_time(self) -> InTime:
        rules, slower = self._settings.rules, self.punctuality.slower
        return in_time_of(self._measured(), rules, slower, self._forecast)

    def _measured(self) -> list[Measured]:
        return [Measured.of(one) for one in self.replicas]

    def _seen(self, robot: Robot, now_s: float) -> Room | None:
        """Beside those that are served, as they were seen to ask; None where too few were, or several replicas
        share them. Raises Forecasting."""
        (first, *others), rules = self._measured(), self._settings.rules
        if robot.name not in self._asking:
            served = [one for one in self.robots.values() if one is not robot and one.verdict.admitted]
            seen = sum(one.asked.rhythm(now_s) is not None for one in served)
            known = first.serve and math.isfinite(rules.within_s) and not others
            if not known or not served or seen < SEEN * len(served) or len(served) >= MOST_ROBOTS:
                return None
            rhythms = tuple(rhythm_of(one.asked, one.verdict.chunks_per_s, now_s) for one in served)
            wanted_hz = robot.description.chunks_per_s or UNTOLD_HZ
            if not 0.0 < wanted_hz < math.inf:
                return None
            late = self.punctuality
            asked = wanted_hz, rules.least, rules.within_s
            self._asking[robot.name] = (
                first.slower(1.0),
                rhythms,
                *asked,
                late.took_s,
                max(late.slower, self._pace),
            )
        found: Room = self._forecast(room, *self._asking[robot.name])
        del self._asking[robot.name]
        self._pace, self._widened = found.pace, found.rate_hz > 0.0
        return found

    def _judge(self, description: RobotDescription, room: Room | None = None) -> Verdict:
        """Beside all others. Raises Forecasting."""
        taken, own = self._taken, self.robots.get(description.robot)
        if own is not None and own.verdict.admitted:
            taken = taken - Counter([own.verdict.chunks_per_s])
        capacity = self.capacity_hz / self.punctuality.slower
        return admit(description.chunks_per_s, taken, capacity, self._settings.rules, self._in_time(), room)

    def _keep_what_fits(self) -> None:
        """Slow or refuse those that came last until what is promised is possible again."""
        rules, in_time = self._settings.rules, self._in_time()
        most_hz = rules.load * self.capacity_hz / self.punctuality.slower
        self._granted = self._grant(in_time)
        for robot in reversed(tuple(self.robots.values())):
            timely = self._taken.total() < 2 or taken_share(self._taken, in_time) <= FITS * self._granted
            if timely and self.promised_hz() <= FITS * most_hz:
                return
            if robot.verdict.admitted:
                verdict = self._judge(robot.description)
                found = self.punctuality.found or "the replicas are slower than they were"
                reason = f"it was served, but {found}: {verdict.reason}"
                self._judged(robot, replace(verdict, reason=reason))
                if not verdict.admitted:
                    self._failed(robot, reason)
                self._tell_ready(robot)

    def _reconsider(self, now_s: float) -> None:
        """There may be room for those that were refused for want of it, or were given a lower rate."""
        for robot in tuple(self._lowered.values()):
            if any(f.done() and f.exception() is not None for f in robot.ready.values()):
                continue
            if now_s - robot.judged_s < SEEN_AGAIN_S:
                continue
            room = self._seen(robot, now_s)
            verdict = self._judge(robot.description, room)
            if room is not None:
                self._refused_alike(robot, verdict, now_s)
            if verdict.admitted and verdict.chunks_per_s > robot.verdict.chunks_per_s:
                try:
                    robot.cut = self._horizon(robot.description)
                except ValueError:
                    continue
                self._judged(robot, verdict)
                self._tell_ready(robot)

    def _grant(self, in_time: InTime) -> float:
        """How much more than is expected in time may be promised: as much as fits as the robots ask."""
        share = taken_share(self._taken, in_time) if self._taken.total() > 1 else 1.0
        widened, self._widened = self._widened, False
        return max(1.0, max(self._granted, share) if widened else min(self._granted, share))

    def _refused_alike(self, robot: Robot, verdict: Verdict, now_s: float) -> None:
        """Who asks for as much as this one is judged no sooner."""
        robot.judged_s = now_s
        for other in self._lowered.values() if not verdict.admitted else ():
            if other.description.chunks_per_s >= robot.description.chunks_per_s:
                other.judged_s = now_s

    def _tell_ready(self, robot: Robot) -> None:
        """Tell a robot that it is served once a replica is ready, or that none can be."""
        futures = tuple(robot.ready.values())
        if not robot.verdict.admitted or any(map(robot.is_ready, robot.ready)):
            self._tell(robot)
        elif len(futures) == len(self.replicas) and all(future.done() for future in futures):
            error = error_of(futures[0])
            if error is not None and not isinstance(error, ReplicaLost):
                self._judged(robot, Verdict(False, reason=str(error) or type(error).__name__))
                self._failed(robot, robot.verdict.reason)
                self._tell(robot)

    def _tell(self, robot: Robot) -> None:
        verdict, description = robot.verdict, robot.description
        if robot.told != verdict:
            robot.told = verdict
            said = (verdict.admitted, verdict.reason, verdict.chunks_per_s)
            self._ports.admit(Admission(description.engine, robot.name, self.name, *said))

    def _wake(self, future: Future[Any]) -> None:
        self._ports.wake()


def error_of(future: Future[Any]) -> BaseException | None:
    """What a future that is done raised."""
    try:
        return future.exception()
    except CancelledError as error:
        return error
