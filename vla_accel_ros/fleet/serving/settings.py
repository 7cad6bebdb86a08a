"""Settings of a fleet's scheduler, and the ports through which it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.admission.verdict import Limits
from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, RobotDescription, Round, TextAnswer
from vla_accel_ros.option import option
from vla_accel_ros.types import Chunk

ASK_AGAIN_S = 0.5
"""Delay before an unserved robot may ask again, and before a lost replica is tried again."""

Cut = Callable[[Chunk, str], Chunk]
"""Limits a chunk to its horizon, for a task with this instruction."""


ANYONE = "*"


@dataclass(frozen=True)
class Settings:
    """lost: how many replicas may be lost over one request. burst: how many chunks a robot may get at once;
    then it gets those of its promised rate. priorities: the highest priority that the operator grants a
    robot, by name or for ANYONE else; 0 for others. limits: of admission. Raises ValueError if gone_s is not
    above serve_s."""

    stale_s: float = option(
        0.2,
        "An observation that is older than this when its turn comes is taken again [s].",
        minimum=0.01,
        maximum=60.0,
    )
    call_s: float = option(
        0.1,
        "How long to wait for a new observation [s]; others are served meanwhile.",
        minimum=0.001,
        maximum=10.0,
    )
    gone_s: float = option(
        10.0,
        "A robot that is silent for this long is forgotten until its next request [s]. An idle one says "
        "every 2 s that it is there.",
        minimum=5.0,
        maximum=3600.0,
    )
    serve_s: float = option(
        5.0,
        "A chunk that takes longer than this to compute is given up [s].",
        minimum=0.05,
        maximum=600.0,
    )
    lost: int = 2
    burst: int = 2
    priorities: Mapping[str, int] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.gone_s <= self.serve_s:
            raise ValueError(
                f"gone_s is {self.gone_s} and serve_s {self.serve_s}: robots would be removed while they "
                "wait for a chunk; give more for gone_s"
            )

    def granted(self, robot: str, priority: int) -> int:
        """Return the priority that counts when a robot asks for this one."""
        return min(priority, self.priorities.get(robot, self.priorities.get(ANYONE, 0)))


def read_priorities(text: str) -> dict[str, int]:
    """Parse the parameter priorities. Raises ValueError for a word that is not ROBOT:PRIORITY."""
    granted = {}
    for word in text.split():
        robot, _, number = word.rpartition(":")
        if not (robot == ANYONE or robot.startswith("/")) or not number.lstrip("-").isdecimal():
            raise ValueError(f"priorities has {word!r}; give NAMESPACE:PRIORITY, such as /left:100 or *:10")
        granted[robot] = int(number)
    return granted


USUAL = Settings()


@dataclass(frozen=True)
class Ports:
    """Where the scheduler sends. admit: admissions. call: requests to observe again. answer: chunks and
    refusals. wake: `step` has something to read; called in any thread. text: answers to questions. session:
    how a robot's chunks are computed, with the names of robot and replica, each time that a replica gets
    ready."""

    admit: Callable[[Admission], None]
    call: Callable[[Round], None]
    answer: Callable[[ChunkAnswer], None]
    wake: Callable[[], None] = lambda: None
    text: Callable[[TextAnswer], None] = lambda answer: None
    session: Callable[[str, str, Session], None] = lambda robot, replica, session: None


def whole(description: RobotDescription) -> Cut:
    """Return chunks unchanged."""
    return lambda chunk, words: chunk
