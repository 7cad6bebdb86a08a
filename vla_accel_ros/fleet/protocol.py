"""Messages between a robot and a fleet's scheduler, as in vla_accel_msgs/Fleet*.msg.

A round is one chunk of one task of one robot, named by a `Round`; answers for any other round are ignored.
Stamps are the robot's own and only echoed: durations and ages are sent in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.types import Chunk

_U32 = 1 << 32
MOST_WORDS = 65536
"""Limit for the letters of an instruction or a question."""
MOST_LETTERS = {"contract": 16 << 10, "urdf": 1 << 20, "statistics": 256, "horizon": 256}
"""Limits for the texts of a description. Contracts have some 4 kB."""
EMERGENCY = 100
"""Requests of this priority or above go before all others."""


@dataclass(frozen=True)
class Round:
    """engine: id of the robot's process, new at each start. robot: its namespace. task: number of the task,
    grows. number: of the round in the task."""

    engine: str
    robot: str
    task: int
    number: int

    @property
    def request_id(self) -> int:
        """Id of the round's chunk in the robot's messages; grows with task and number. It also seeds the
        chunk's noise on any replica, so that the chunk can be computed again."""
        return self.task % _U32 << 32 | self.number % _U32


@dataclass(frozen=True)
class RobotDescription:
    """See FleetRobot.msg."""

    engine: str
    robot: str
    contract: str
    urdf: str = ""
    statistics: str = ""
    horizon: str = ""
    priority: int = 0
    chunks_per_s: float = 0.0

    def check_lengths(self) -> None:
        """Raises ValueError if a text is too long to be read."""
        for name, limit in MOST_LETTERS.items():
            if len(text := getattr(self, name)) > limit:
                raise ValueError(
                    f"the contract of {self.robot} cannot be read: `{name}` of fleet/robot has {len(text)} "
                    f"letters, more than {limit} letters; shorten it"
                )


@dataclass(frozen=True)
class Admission:
    """See FleetAdmission.msg."""

    engine: str
    robot: str
    scheduler: str
    admitted: bool
    reason: str = ""
    chunks_per_s: float = 0.0


@dataclass(frozen=True)
class EncodedObservation:
    """An observation as it is sent. images: by the contract's name of the picture, JPEG or PNG (bytes) or
    pixels (uint8 [H, W, 3], RGB). stamps_ns: by the same names. state float32 [D] and stamp_ns: as in
    types.Observation."""

    images: Mapping[str, bytes | np.ndarray]
    stamps_ns: Mapping[str, int]
    state: np.ndarray
    instruction: str
    stamp_ns: int

    @property
    def size(self) -> int:
        """Bytes of its images."""
        return sum(len(image) if isinstance(image, bytes) else image.nbytes for image in self.images.values())


@dataclass(frozen=True)
class ChunkRequest:
    """See FleetRequest.msg. sent_ns: by the robot's clock. A question is such a request on its own topic: its
    instruction is the question, and round.number is unique among the questions of all processes."""

    round: Round
    attempt: int
    sent_ns: int
    observation: EncodedObservation
    executed_s: float = -1.0
    remaining: int = 0
    stalled_s: float = 0.0
    within_s: float = float("inf")
    priority: int = 0


@dataclass(frozen=True)
class ChunkAnswer:
    """See FleetAnswer.msg. chunk: None if refused; in the policy's units at the replica, in ROS units at the
    robot. sent_ns: of the request, by the robot's clock."""

    round: Round
    attempt: int
    scheduler: str
    sent_ns: int
    chunk: Chunk | None = None
    refusal: str = ""
    retry_s: float = 0.0
    queued_s: float = 0.0
    served_s: float = 0.0
    replica: str = ""


@dataclass(frozen=True)
class TextAnswer:
    """The answer to a question. round, prompt, stamp_ns: of the question. text: the whole answer, or the
    reason if refused. replica: the one that wrote it."""

    round: Round
    prompt: str
    stamp_ns: int
    text: str
    refused: bool = False
    replica: str = ""
