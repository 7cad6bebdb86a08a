"""What a fleet's scheduler asks of whatever computes chunks: an engine of its own process, or a distant one.

Nothing here waits: what takes time returns a future. A replica that is lost says so by `ReplicaLost`, or by
silence; a scheduler gives each request its own time and asks another replica, it waits for no transport to
notice a death.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.profile import Profile
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round
from vla_accel_ros.types import Chunk

SERVE = "serve"
"""Stage of a micro-batch of whole requests, and what a replica's profile knows: (SERVE, batch) -> seconds of
so many requests that are served together."""
FRAMES = "frames"
"""Stage of frames alone: (FRAMES, batch) -> seconds of so many that are computed together."""
MEASURED = 4
"""How many chunks are measured, for each request that is there, but one before and one after."""


class ReplicaLost(RuntimeError):
    """A replica does not answer; what it computed comes to nothing, and another may compute it."""


@dataclass(frozen=True)
class Served:
    """What came of a request. round: of the request; took_s: from its begin to its chunk."""

    round: Round
    chunk: Chunk
    took_s: float


class Replica(Protocol):
    """Computes requests of several robots. name: of all replicas its own. profile: see SERVE, FRAMES. most:
    how many requests it computes at once. network_s: to it and back with an observation. answers: how many
    questions it answers at once, beside them; 0 where the model has no language head. config: of its engine,
    by which it is simulated; None where that is not known, or chunks are made of tokens."""

    name: str
    profile: Profile
    most: int
    network_s: float
    answers: int
    config: EngineConfig | None

    def room(self) -> int:
        """How many more requests it would begin now; 0 while it is lost."""
        ...

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        """Get ready for a robot, or for what it is now. The future gives what the robot's chunks are computed
        with, None where they cannot be computed again; it raises ValueError, one sentence, for one that
        cannot be served, ReplicaLost if nobody knows."""
        ...

    def forget(self, robot: str) -> None:
        """Serve a robot no longer, give back what is its own, if it is known. Never raises."""
        ...

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        """Compute a chunk for a robot that was described. The future raises ValueError for an observation
        that cannot be taken, ReplicaLost, also for a robot that it does not know (any longer), or whatever
        computing it raised."""
        ...

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        """Answer a question of a robot that was described: the observation's instruction, about its images.
        The future gives the whole answer, and raises as that of `serve` does."""
        ...

    def cancel(self, served: Future[Any]) -> None:
        """Nobody wants what `serve` or `ask` returned any more. Never raises."""
        ...
