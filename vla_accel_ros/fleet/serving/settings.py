"""How a fleet's scheduler is set, and where what it tells goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.admission.verdict import Rules
from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, RobotDescription, Round, TextAnswer
from vla_accel_ros.types import Chunk

ASK_AGAIN_S = 0.5
"""When a robot that is not served yet may ask again, and a replica that was lost is tried again."""

Cut = Callable[[Chunk, str], Chunk]
"""Cuts a chunk, of a task of these words."""


@dataclass(frozen=True)
class Settings:
    """stale_s: older observations are taken anew before they are computed. call_s: how long that is waited
    for. gone_s: a robot without a sign for so long, since its last answer too, has gone. serve_s: a replica
    that computes longer is not waited for. lost: how many replicas may be lost over one request. hedge: what
    takes unusually long is begun on another replica, too. rules: of admission. Raises ValueError if who waits
    for a replica would have gone."""

    stale_s: float = 0.2
    call_s: float = 0.1
    gone_s: float = 10.0
    serve_s: float = 5.0
    lost: int = 2
    hedge: bool = False
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        if self.gone_s <= self.serve_s:
            raise ValueError(
                f"gone_s is {self.gone_s} and serve_s {self.serve_s}: robots would be forgotten while they "
                "wait for a chunk; give more for gone_s"
            )


USUAL = Settings()


@dataclass(frozen=True)
class Ports:
    """Where what is told goes. admit: whether a robot is served; call: observe anew; answer: to a request;
    wake: there is something for `step` to read, called in any thread. text: to a question; session: what a
    robot's chunks are computed with, by its name and the replica's, each time that a replica gets ready."""

    admit: Callable[[Admission], None]
    call: Callable[[Round], None]
    answer: Callable[[ChunkAnswer], None]
    wake: Callable[[], None] = lambda: None
    text: Callable[[TextAnswer], None] = lambda answer: None
    session: Callable[[str, str, Session], None] = lambda robot, replica, session: None


def whole(description: RobotDescription) -> Cut:
    """Chunks as they are."""
    return lambda chunk, words: chunk
