"""What a robot and a fleet's scheduler tell each other; the messages vla_accel_msgs/Fleet*.msg say the same.

A round is one chunk of one task of one robot. `Round` names it; an answer for another is for nobody. Stamps
are the robot's own and only echoed: how long something takes or how old it is is told in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.types import Chunk

_U32 = 1 << 32
EMERGENCY = 100
"""Priority from which a request goes before everything that waits."""


@dataclass(frozen=True)
class Round:
    """engine: of the robot's process, another at each start. robot: its namespace. task: which of its tasks,
    grows. number: which round of it."""

    engine: str
    robot: str
    task: int
    number: int

    @property
    def request_id(self) -> int:
        """Of its chunk, in the robot's messages; grows with task and number. The chunk's noise is that of
        this number on whichever replica computes it, so that it can be computed again."""
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
    """An observation as it travels. images: of each camera, by the contract's name, as JPEG or PNG (bytes) or
    pixels (uint8 [H, W, 3], RGB). stamps_ns: by the same. state float32 [D] and stamp_ns: as of
    types.Observation."""

    images: Mapping[str, bytes | np.ndarray]
    stamps_ns: Mapping[str, int]
    state: np.ndarray
    instruction: str
    stamp_ns: int


@dataclass(frozen=True)
class ChunkRequest:
    """See FleetRequest.msg. sent_ns: by the robot's clock. observation: as it travelled. A question is such a
    request on a topic of its own: its instruction is the question, round.number a number that no other
    question of any process has."""

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
    """See FleetAnswer.msg. chunk: None when it is refused; in the policy's units where it was made, in ROS
    units at the robot. sent_ns: of the request, the robot's clock."""

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
    """What a question came to. round, prompt, stamp_ns: of its request, which is a question. text: the whole
    answer, or why there is none where it is refused. replica: which wrote it."""

    round: Round
    prompt: str
    stamp_ns: int
    text: str
    refused: bool = False
    replica: str = ""
