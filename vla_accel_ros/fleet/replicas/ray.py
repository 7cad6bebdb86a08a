"""A replica in another process, on this host or another: a Ray actor that is restarted when it is lost.

Each call has its own deadline, and only these deadlines are waited for. An actor that does not answer a
liveness check is killed. A lost replica fails its calls with ReplicaLost, restarts after a pause that grows,
describes its robots again, and has no room until then. Data is checked before it is sent, and answers are
checked before they are used (`fleet.replicas.ray_data`).

Ray is imported when the first replica is made.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.replicas import ray_data as data
from vla_accel_ros.fleet.replicas.ray_cluster import USUAL, Deadlines, Pauses, Where
from vla_accel_ros.fleet.replicas.ray_server import Make, Server
from vla_accel_ros.fleet.replicas.replica import ReplicaLost, Served

ECHOES = 5
"""Round trips whose median is the network time."""
CONCURRENT = 1024
"""Concurrent calls of an actor; they wait for its engine."""

NOTHING = np.zeros(1, np.uint8)

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Call:
    """One call of the actor. alive: if it times out, the actor is taken to be dead."""

    number: int
    what: str
    future: Future[Any]
    until_s: float
    alive: bool = False


class RayReplica:
    """A Replica in a Ray actor. make: makes the engine, in the actor's process. `ready` completes when the
    replica first serves, or raises ValueError if the engine does not fit, ReplicaLost otherwise.

    Needs a ray.init. network_s: round trip to the actor with an observation, measured at each start, as the
    profile is. pid: of the actor's process. starts: number of actors so far. updates: see LocalReplica.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        where: Where,
        deadlines: Deadlines = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        import ray

        self._ray: Any = ray
        self.name, self.where, self.profile, self.limit, self.network_s = name, where, Profile(), 0, 0.0
        self.ready: Future[None] = Future()
        self.pid, self.starts, self.updates, self.answers = 0, 0, 0, 0
        self.config: EngineConfig | None = None
        self._make, self._deadlines, self._clock = make, deadlines, clock
        self._actor: Any = None
        self._ending: list[Any] = []  # actors to kill
        self._serving = self._placed = self._closed = False
        self._calls: dict[int, _Call] = {}
        self._robots: dict[str, RobotDescription] = {}
        self._numbers = 0
        self._changed = threading.Condition(threading.RLock())
        self._threads = [
            threading.Thread(target=target, name=f"replica {name}: {target.__name__}", daemon=True)
            for target in (self._keep, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the actor and the threads. Unfinished calls raise ReplicaLost."""
        with self._changed:
            self._closed = True
            self._lose(self._actor, "it was closed")
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def room(self) -> int:
        with self._changed:
            if not self._serving:
                return 0
            return self.limit - sum(call.what == "serve" for call in self._calls.values())

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        with self._changed:
            self._robots[robot.robot] = robot
            return self._describe(robot)

    def forget(self, robot: str) -> None:
        with self._changed:
            if self._robots.pop(robot, None) is not None and self._serving:
                self._call("forget", data.nothing, self._deadlines.describe, robot)

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        read = partial(data.served, self.name, round, observation)
        return self._compute("serve", read, self._deadlines.serve, round, observation)

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        return self._compute("ask", data.text, self._deadlines.ask, round, observation)

    def cancel(self, served: Future[Any]) -> None:
        with self._changed:
            call = next((call for call in self._calls.values() if call.future is served), None)
            if call is not None:
                del self._calls[call.number]
                self._call("cancel", data.nothing, self._deadlines.alive, call.number, alive=True)
        served.cancel()

    def _describe(self, robot: RobotDescription) -> Future[Session | None]:
        return self._call("describe", data.session, self._deadlines.describe, robot, numbered=True)

    def _compute(
        self,
        what: str,
        read: Callable[[Any], Any],
        within_s: float,
        round: Round,
        observation: EncodedObservation,
    ) -> Future[Any]:
        """Call the actor with an observation."""
        future: Future[Any] = Future()
        try:
            frame = data.plain(observation)
        except ValueError as error:
            future.set_exception(error)
            return future
        with self._changed:
            if not self._serving:
                future.set_exception(ReplicaLost(f"{self.name} is lost"))
                return future
            return self._call(what, read, within_s, round, frame, numbered=True)

    def _call(
        self,
        what: str,
        read: Callable[[Any], Any],
        within_s: float,
        *arguments: object,
        numbered: bool = False,
        alive: bool = False,
    ) -> Future[Any]:
        """Call the actor. read: converts its answer to the result; raises if the answer is invalid."""
        future: Future[Any] = Future()
        with self._changed:
            actor, self._numbers = self._actor, self._numbers + 1
            if actor is None:
                future.set_exception(ReplicaLost(f"{self.name} is lost"))
                return future
            call = _Call(self._numbers, what, future, self._clock() + within_s, alive)
            self._calls[call.number] = call
            prefix = (call.number,) if numbered else ()
            try:
                reply = getattr(actor, what).remote(*prefix, *arguments).future()
            except self._ray.exceptions.RayError as error:
                self._lose(actor, f"{type(error).__name__}")
                return future
            self._changed.notify_all()
        reply.add_done_callback(partial(self._came, actor, call, read))
        return future

    def _came(self, actor: Any, call: _Call, read: Callable[[Any], Any], came: Future[Any]) -> None:
        """Settle a call with its answer. Runs in one of Ray's threads."""
        try:
            answer = came.result()
        except Exception as error:  # Ray's own error: the actor raises none
            with self._changed:
                self._lose(actor, f"{call.what} came to {type(error).__name__}: {_end(error)}")
            return
        with self._changed:
            expected = self._calls.pop(call.number, None) is not None
            self._changed.notify_all()
        if not expected:
            return
        try:
            result = read(answer)
        except Exception as error:
            _settle(call.future, error=error)
        else:
            _settle(call.future, result)

    def _lose(self, actor: Any, why: str) -> None:
        """Give up this actor: fail its calls, and have it killed."""
        with self._changed:
            if actor is None or actor is not self._actor:
                return
            self._actor, self._serving = None, False
            self._ending.append(actor)  # this may be one of Ray's threads, which must not wait for Ray
            calls, self._calls = list(self._calls.values()), {}
            self._changed.notify_all()
        if not self._closed:
            _LOG.warning("replica %s is lost: %s", self.name, why)
        for call in calls:
            _settle(call.future, error=ReplicaLost(f"replica {self.name} is lost: {why}"))

    def _nowhere(self) -> str:
        """Return the sentence about an actor that no Ray node began to run."""
        gpus = f" and {self.where.gpus:g} GPUs" if self.where.gpus else ""
        return f"is there a Ray node with a free {self.where.tier!r}{gpus}? None took it in time"

    def _watch(self) -> None:
        """Thread: fail each call at its deadline, and check whether the actor lives."""
        while True:
            with self._changed:
                if self._closed:
                    return
                now_s = self._clock()
                overdue = [call for call in self._calls.values() if call.until_s <= now_s]
                if not overdue:
                    due_s = min((call.until_s for call in self._calls.values()), default=None)
                    self._changed.wait(None if due_s is None else due_s - now_s)
                    continue
                for call in overdue:
                    del self._calls[call.number]
                actor = self._actor
            for call in overdue:
                reason = f"it did not answer {call.what} in time"
                if not self._placed:
                    reason = self._nowhere()
                elif call.what == "start":
                    reason += f": it loads or measures for longer than start_s, {self._deadlines.start:g} s"
                if call.alive:
                    self._lose(actor, reason)
                else:  # the actor may be busy or dead
                    self._call("echo", data.count, self._deadlines.alive, NOTHING, alive=True)
                _settle(call.future, error=ReplicaLost(f"replica {self.name}: {reason}"))

    def _keep(self) -> None:
        """Thread: start the actor, and restart it whenever it is lost."""
        pauses = Pauses(self._deadlines.again, self._deadlines.longest_again)
        while not self._closed:
            since_s = 0.0
            try:
                self._start()
            except Exception as error:  # any error: the next start may succeed
                _settle(self.ready, error=error)
                with self._changed:
                    self._lose(self._actor, f"it did not start: {error}")
            else:
                _settle(self.ready)
                since_s = self._clock()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._actor is None)
                ending, self._ending = self._ending, []
            lived_s = self._clock() - since_s if since_s else 0.0
            for actor in ending:
                with suppress(Exception):  # the actor is already dead
                    self._ray.kill(actor, no_restart=True)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pauses.after(lived_s))

    def _start(self) -> None:
        """Start and measure an actor, and describe its robots. Raises ValueError if the engine does not fit,
        ReplicaLost if the actor is lost."""
        options = {
            "num_cpus": self.where.cpus,
            "num_gpus": self.where.gpus,
            "resources": {self.where.tier: 1},
            "max_restarts": 0,  # we restart it ourselves, since its robots must be described again
            "max_task_retries": 0,
            "max_concurrency": CONCURRENT,
        }
        with self._changed:
            if self._closed:
                return
            self._actor = actor = self._ray.remote(Server).options(**options).remote(self._make)
            self.starts += 1
            self._placed = False
        self._call("echo", data.count, self._deadlines.start, NOTHING, alive=True).result()
        self._placed = True
        started = self._call("start", data.started, self._deadlines.start, alive=True).result()
        sent = np.zeros(max(1, started.observation_bytes), np.uint8)
        times = []
        for _ in range(ECHOES):
            began_s = self._clock()
            self._call("echo", data.count, self._deadlines.describe, sent, alive=True).result()
            times.append(self._clock() - began_s)
        with self._changed:
            robots = [self._describe(robot) for robot in self._robots.values()]
        for robot in robots:
            with suppress(ValueError):  # the robot's owner learns it from the next describe
                robot.result()
        with self._changed:
            if actor is not self._actor:
                raise ReplicaLost(f"replica {self.name} was lost while it started")
            self.pid, self.limit, self.updates = started.pid, started.limit, started.updates
            self.profile, self.answers, self.config = started.profile, started.answers, started.config
            told_s = self.where.network_s
            self.network_s = statistics.median(times) if told_s is None else told_s
            self._serving = True
            self._changed.notify_all()


def _end(error: Exception) -> str:
    """Return the last line of an error, which says what went wrong."""
    return ([line.strip() for line in str(error).splitlines() if line.strip()] or [""])[-1][:300]


def _settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Complete a future, unless it was cancelled."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
