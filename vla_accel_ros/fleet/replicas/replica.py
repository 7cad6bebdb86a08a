"""The interface between a fleet's scheduler and its replicas: an engine in this process, or a remote one.

No call here blocks: anything that takes time returns a future. A lost replica raises `ReplicaLost`, or stays
silent. The scheduler gives each request its own deadline and then asks another replica; it does not wait for
the transport to notice a failure.
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
"""Stage of a micro-batch of whole requests. A replica's profile has (SERVE, batch) -> seconds of `batch`
requests that are served together."""
FRAMES = "frames"
"""Stage of frames alone: (FRAMES, batch) -> seconds of `batch` frames that are computed together."""
MEASURED = 4
"""How many chunks are measured for each waiting request, besides one before and one after."""


class ReplicaLost(RuntimeError):
    """A replica does not answer. Its results are discarded, and another replica may compute them."""


@dataclass(frozen=True)
class Served:
    """The result of a request. round: of the request. took_s: from its start to its chunk."""

    round: Round
    chunk: Chunk
    took_s: float


class Replica(Protocol):
    """Computes requests of several robots. name: unique. profile: see SERVE, FRAMES. most: concurrent
    requests. network_s: round trip with an observation. answers: concurrent questions besides the requests; 0
    if the model has no language head. config: of its engine, for simulation; None if unknown, or for a token
    policy."""

    name: str
    profile: Profile
    limit: int
    network_s: float
    answers: int
    config: EngineConfig | None

    def room(self) -> int:
        """Return how many more requests it would start now; 0 while it is lost."""

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        """Prepare for a robot, or for its changed description. The future returns the Session of the robot's
        chunks, or None if they cannot be computed again. It raises ValueError, with one sentence, if the
        robot cannot be served, ReplicaLost if the replica does not answer."""

    def forget(self, robot: str) -> None:
        """Stop serving a robot and free its resources, if the robot is known. Never raises."""

    def serve(self, round: Round, observation: EncodedObservation) -> Future[Served]:
        """Compute a chunk for a described robot. The future raises ValueError if the observation is invalid,
        ReplicaLost if the replica is lost or does not know the robot, or any error of the computation."""

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        """Answer a question of a described robot: the observation's instruction, about its images. The future
        returns the whole answer, and raises as that of `serve` does."""

    def cancel(self, served: Future[Any]) -> None:
        """Cancel what `serve` or `ask` returned. Never raises."""
