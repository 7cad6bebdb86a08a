"""The code inside a Ray actor: a replica in that process, which answers in plain values.

An answer is ("ok", value), or "refused", "lost", "cancelled" or "failed" with a sentence. No exception and no
object of ours is returned, so the caller can check every value (`fleet.replicas.ray_data`). This module does
not import Ray.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.replicas.replica import Replica, ReplicaLost
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.types import Chunk, Observation

OK, REFUSED, LOST, CANCELLED, FAILED = "ok", "refused", "lost", "cancelled", "failed"
OF_A_CHUNK = (
    "actions",
    "stamp_ns",
    "step_dt_s",
    "kv_version",
    "request_id",
    "update_magnitudes",
    "state",
    "step_magnitudes",
)
"""Fields of a Chunk that are returned, in this order."""

Answer = tuple[str, Any]


class Measured(Replica, Protocol):
    """A replica that can be measured. updates: see LocalReplica."""

    updates: int

    def measure(self, observation: Observation) -> Profile:
        """See LocalReplica.measure."""


Make = Callable[[], tuple[Measured, Observation]]
"""Makes a replica and an observation to measure it with. Runs in the actor's process, so it must be picklable
and importable there. Raises ValueError, with one sentence, if the engine does not fit."""


class Server:
    """The actor. Calls begin in the order in which they arrive."""

    def __init__(self, make: Make) -> None:
        self._make, self._running = make, dict[int, Future[Any]]()
        self._replica: Measured | None = None

    async def start(self) -> Answer:
        """Make the replica and measure it, in a process that runs as a node's does. Returns its process id,
        `most`, `updates`, `answers`, the measurements, the bytes of an observation, and the options of its
        engine."""
        sys.setswitchinterval(SWITCH_S)  # the engine's thread waits for what Ray's thread reads
        try:
            replica, observation = await asyncio.to_thread(self._make)
            keep_loaded()
            profile = await asyncio.to_thread(replica.measure, observation)
        except (ValueError, OSError) as error:
            return REFUSED, _sentence(error)
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}"
        durations = [(stage, batch, float(seconds)) for (stage, batch), seconds in profile.known().items()]
        self._replica = replica
        size = sum(image.nbytes for image in observation.images.values())
        options = None if replica.config is None else plain_options(replica.config)
        return OK, (os.getpid(), replica.limit, replica.updates, replica.answers, durations, size, options)

    async def echo(self, data: np.ndarray) -> Answer:
        """Return the size of `data` in bytes; measures the network, and shows that the process lives."""
        return OK, int(data.nbytes)

    async def describe(self, number: int, robot: RobotDescription) -> Answer:
        """See Replica.describe. Returns the fields of the session, or None."""
        return await self._done(number, lambda replica: replica.describe(robot), plain_session)

    async def forget(self, robot: str) -> Answer:
        """See Replica.forget."""
        if self._replica is not None:
            self._replica.forget(robot)
        return OK, None

    async def serve(self, number: int, round: Round, observation: EncodedObservation) -> Answer:
        """See Replica.serve. Returns how long it took [s] and the chunk's fields."""

        def plain(served: Any) -> tuple[float, tuple[Any, ...]]:
            return served.took_s, plain_chunk(served.chunk)

        return await self._done(number, lambda replica: replica.serve(round, observation), plain)

    async def ask(self, number: int, round: Round, observation: EncodedObservation) -> Answer:
        """See Replica.ask."""
        return await self._done(number, lambda replica: replica.ask(round, observation), str)

    async def cancel(self, number: int) -> Answer:
        """Cancel the call with this number."""
        if (future := self._running.get(number)) is not None and self._replica is not None:
            self._replica.cancel(future)
        return OK, None

    async def _done(
        self, number: int, begin: Callable[[Replica], Future[Any]], plain: Callable[[Any], Any]
    ) -> Answer:
        if self._replica is None:
            return LOST, "it has not started"
        try:
            future = begin(self._replica)
            self._running[number] = future
            return OK, plain(await asyncio.wrap_future(future))
        except ReplicaLost as error:
            return LOST, _sentence(error)
        except (ValueError, OSError) as error:
            return REFUSED, _sentence(error)
        except (CancelledError, asyncio.CancelledError):
            return CANCELLED, "it was cancelled"
        except Exception as error:
            return FAILED, f"{type(error).__name__}: {error}"
        finally:
            self._running.pop(number, None)


def plain_chunk(chunk: Chunk) -> tuple[Any, ...]:
    """Return a chunk's fields, in the order of OF_A_CHUNK. Other fields, such as `agreement`, are not
    sent."""
    return tuple(getattr(chunk, name) for name in OF_A_CHUNK)


def plain_session(session: Session | None) -> tuple[Any, ...] | None:
    """Return a session's fields, in order."""
    return None if session is None else tuple(vars(session).values())


def _sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__


def plain_options(config: EngineConfig) -> tuple[tuple[str, Any], ...]:
    """Return the options by name, each of the type of its default."""
    usual = {option.name: type(option.default) for option in fields(EngineConfig)}
    return tuple((name, kind(getattr(config, name))) for name, kind in usual.items())  # type: ignore[misc]
