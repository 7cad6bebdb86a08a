"""The robots of a fleet: who is known and admitted, which replicas are ready for each, who has gone.

A robot is judged when it describes itself, before anything is computed for it (fleet.admission.verdict), as
soon as its forecast is ready; robots that came later wait for it, nobody else does. It is told that it is
admitted once a replica is ready for it. Refused and slowed robots are judged again when a robot goes, and
periodically. Admitted robots are judged again if chunks come late or replicas became slower
(fleet.admission.punctuality): the latest ones are slowed or refused first, and told why. A robot that is
silent for `gone_s` is forgotten. A step looks only at replicas that are getting ready and at the most silent
robot.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vla_accel_ros.fleet.admission.forecast import Forecast, Forecasting, at_once
from vla_accel_ros.fleet.admission.verdict import Verdict
from vla_accel_ros.fleet.protocol import Admission, RobotDescription
from vla_accel_ros.fleet.replicas.replica import Replica, ReplicaLost
from vla_accel_ros.fleet.serving.judging import Judge
from vla_accel_ros.fleet.serving.records import NOT_JUDGED, NOT_READY, NOTHING_ASKED, Robot
from vla_accel_ros.fleet.serving.settings import ASK_AGAIN_S, Cut, Ports, Settings, whole

JUDGE_AGAIN_S = 2.0
"""How often refused and slowed robots are judged again."""
ANSWER_S = 0.2
"""A robot that is not judged, or for which no replica is ready, after this long is told so."""
SEEN_AGAIN_S = 10.0
"""How often such a robot is judged by the others' observed rhythms."""


class Members:
    """The robots of one scheduler. name, ports, settings, horizon, forecast: the scheduler's. left: called
    when a robot is forgotten. failed: called with the reason when a robot can no longer be served."""

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
        self.robots: dict[str, Robot] = {}
        self._new: dict[str, Robot] = {}  # not judged yet, in order of arrival
        self._keep = self._again = False  # whether to slow or admit robots once the forecasts are ready
        self._heard: OrderedDict[str, Robot] = OrderedDict()  # most silent first
        self._unsettled: dict[str, Robot] = {}  # some replica is not ready for these
        self._lowered: dict[str, Robot] = {}  # refused or slowed
        self._again_s: dict[str, float] = {}  # when to try a lost replica again
        self._judge_s = -math.inf
        self.judge = Judge(self.replicas, settings.limits, forecast)

    def described(self, description: RobotDescription, now_s: float) -> None:
        """Add a robot that described itself. Another process under its name, or another description, starts
        it over. A robot that repeats its description may not have received its admission, may have heard
        another scheduler since, or may be refused because of the numbers of its requests: it is told again,
        and its numbers start anew."""
        previous = self.robots.get(description.robot)
        if previous is not None and previous.description == description:
            self.heard(previous, now_s)
            previous.newest = NOTHING_ASKED if previous.pending is None else previous.pending.order
            if previous.told is not None:
                previous.told = None
                self._tell_ready(previous)
            return
        if previous is not None:
            self.forget(previous, now_s)
        robot = Robot(description, NOT_JUDGED, whole(description), now_s, now_s)
        if len(self.robots) < 2 * self._settings.limits.most_robots:
            name = robot.name
            self.robots[name] = self._heard[name] = self._new[name] = robot
        else:
            robot.verdict = Verdict(False, reason=f"{len(self.robots)} robots are known; raise most_robots")
            self._tell(robot)
        self._again |= previous is not None
        self._review(now_s)
        self.step(now_s)

    def heard(self, robot: Robot, now_s: float) -> None:
        """Record a sign of life."""
        robot.heard_s = now_s
        if robot.name in self._heard:
            self._heard.move_to_end(robot.name)

    def gone(self, robot: str, now_s: float) -> None:
        """Forget a robot that has gone, and judge the others again."""
        if (member := self.robots.get(robot)) is not None:
            self.forget(member, now_s)
            self._again = True
            for lowered in self._lowered.values():
                lowered.judged_s = -math.inf
            self._review(now_s)

    def forget(self, robot: Robot, now_s: float) -> None:
        """Remove every trace of a robot, here and in the replicas."""
        member = self.robots.pop(robot.name, None)
        for group in (self._heard, self._new, self._unsettled, self._lowered):
            group.pop(robot.name, None)
        if member is robot:
            self.judge.forget(robot)
        self._left(robot, now_s)
        for replica in self.replicas:
            if (future := robot.ready.pop(replica.name, None)) is not None:
                future.cancel()
            replica.forget(robot.name)

    def look(self, now_s: float) -> None:
        """Forget robots that were silent for too long, and judge others again when it is time."""
        while self._heard:
            first = next(iter(self._heard.values()))
            if now_s - first.heard_s <= self._settings.gone_s:
                break
            self.gone(first.name, now_s)
        if now_s >= self._judge_s:
            self._judge_s = now_s + JUDGE_AGAIN_S
            self.judge.punctuality.judge()
            self._keep = self._again = True
        self._review(now_s)

    def step(self, now_s: float) -> None:
        """Describe admitted robots to the replicas, and tell each robot once a replica is ready."""
        for robot in tuple(self._unsettled.values()):
            if robot.name not in self._unsettled:
                continue
            settled = True
            for replica in self.replicas:  # announce the session of a ready replica before its first chunk
                future = robot.ready.get(replica.name)
                if future is not None and future.done() and isinstance(error_of(future), ReplicaLost):
                    robot.ready.pop(replica.name)
                    self.lost(replica, now_s)
                    future = None
                if future is None and now_s >= self._again_s.get(replica.name, -math.inf):
                    robot.ready[replica.name] = future = replica.describe(robot.description)
                    future.add_done_callback(self._wake)
                if future is None or not future.done() or isinstance(error_of(future), ReplicaLost):
                    settled = False
                elif robot.is_ready(replica.name) and robot.introduced.get(replica.name) is not future:
                    robot.introduced[replica.name] = future
                    if (session := future.result()) is not None:
                        self._ports.session(robot.name, replica.name, session)
            self._tell_ready(robot)
            if settled and robot.told == robot.verdict:
                self._unsettled.pop(robot.name, None)
        self._tell_late(now_s)

    def lost(self, one: Replica, now_s: float) -> None:
        """A replica was lost: describe its robots to it again."""
        self._again_s[one.name] = now_s + ASK_AGAIN_S
        for robot in self.robots.values():
            robot.ready.pop(one.name, None)
            if robot.verdict.admitted:
                self._unsettled[robot.name] = robot

    def not_served(self, replica: str, now_s: float) -> set[Robot]:
        """Return the robots that this replica cannot serve yet, or that had the chunks of their rate."""
        unready = {robot for robot in self._unsettled.values() if not robot.is_ready(replica)}
        return unready | {robot for robot in self.robots.values() if now_s < robot.next_s}

    def _review(self, now_s: float) -> None:
        """Judge all robots that are due, as far as their forecasts are ready."""
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
        room = self.judge.room(robot, self.robots.values(), now_s)
        verdict = self.judge.verdict(robot, room)
        if room is not None:
            robot.judged_s = now_s
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
        self.judge.promise(robot, verdict)
        if verdict.admitted:
            self._unsettled[robot.name] = robot
        if verdict.reason:
            self._lowered[robot.name] = robot
        else:
            self._lowered.pop(robot.name, None)

    def _keep_what_fits(self) -> None:
        """Slow or refuse the latest robots until the promised rates are possible."""
        self.judge.look()
        for robot in reversed(tuple(self.robots.values())):
            if self.judge.keeps():
                return
            if robot.verdict.admitted:
                verdict = self.judge.verdict(robot)
                cause = self.judge.punctuality.found or "the replicas have become slower"
                reason = f"its service was reduced because {cause}: {verdict.reason}"
                self._judged(robot, replace(verdict, reason=reason))
                if not verdict.admitted:
                    self._failed(robot, reason)
                self._tell_ready(robot)

    def _reconsider(self, now_s: float) -> None:
        """Judge refused and slowed robots again; there may be room now."""
        for robot in tuple(self._lowered.values()):
            if any(f.done() and f.exception() is not None for f in robot.ready.values()):
                continue
            if now_s - robot.judged_s < SEEN_AGAIN_S:
                continue
            room = self.judge.room(robot, self.robots.values(), now_s)
            verdict = self.judge.verdict(robot, room)
            if room is not None:
                self._refused_alike(robot, verdict, now_s)
            if verdict.admitted and verdict.chunks_per_s > robot.verdict.chunks_per_s:
                try:
                    robot.cut = self._horizon(robot.description)
                except ValueError:
                    continue
                self._judged(robot, verdict)
                self._tell_ready(robot)

    def _refused_alike(self, robot: Robot, verdict: Verdict, now_s: float) -> None:
        """Delay the next judgement of this robot and, if it was refused, of all that ask for at least as
        much."""
        robot.judged_s = now_s
        for other in self._lowered.values() if not verdict.admitted else ():
            if other.description.chunks_per_s >= robot.description.chunks_per_s:
                other.judged_s = now_s

    def _tell_ready(self, robot: Robot) -> None:
        """Tell a robot that it is admitted once a replica is ready, or that no replica can serve it."""
        futures = tuple(robot.ready.values())
        if not robot.verdict.admitted or any(map(robot.is_ready, robot.ready)):
            self._tell(robot)
        elif len(futures) == len(self.replicas) and all(future.done() for future in futures):
            error = error_of(futures[0])
            if error is not None and not isinstance(error, ReplicaLost):
                self._judged(robot, Verdict(False, reason=str(error) or type(error).__name__))
                self._failed(robot, robot.verdict.reason)
                self._tell(robot)

    def _tell_late(self, now_s: float) -> None:
        """Tell robots why they have no admission yet, if that takes long."""
        for robot in (*self._new.values(), *self._unsettled.values()):
            if robot.told is None and now_s - robot.since_s >= ANSWER_S:
                self._tell(robot, NOT_READY if robot.judged else NOT_JUDGED)

    def _tell(self, robot: Robot, verdict: Verdict | None = None) -> None:
        """Tell a robot its verdict, or another one that is true until then."""
        verdict, description = verdict or robot.verdict, robot.description
        if robot.told != verdict:
            robot.told = verdict
            reason = verdict.reason or self._lower_priority(description)
            values = (verdict.admitted, reason, verdict.chunks_per_s)
            self._ports.admit(Admission(description.engine, robot.name, self.name, *values))

    def _lower_priority(self, description: RobotDescription) -> str:
        """Return a sentence if less than the robot's priority is granted, else an empty one."""
        robot, priority = description.robot, description.priority
        granted = self._settings.granted(robot, priority)
        if priority <= granted:
            return ""
        return (
            f"its priority {priority} counts as {granted}; the operator of the scheduler can grant more with "
            f"priorities: {robot}:{priority}"
        )

    def _wake(self, future: Future[Any]) -> None:
        self._ports.wake()


def error_of(future: Future[Any]) -> BaseException | None:
    """Return the exception of a finished future, None without one."""
    try:
        return future.exception()
    except CancelledError as error:
        return error
