"""What was seen of a robot's streams while somebody watched for a few seconds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arrival:
    """One message. stamp_ns: its own. now_ns: ROS time of the receiver. steady_s: when, by a clock that never
    jumps. size: of the message in bytes, 0 where that does not matter."""

    stamp_ns: int
    now_ns: int
    steady_s: float
    size: int = 0


@dataclass
class Watched:
    """A few seconds of every stream of a contract.

    ended_s: when watching ended, on the clock of steady_s. arrivals: by stream, `camera/<name>` and
    `joint_states`, in order. refused: sentences about messages that could not be used, by stream. mismatches:
    sentences about cameras whose CameraInfo has another size. joints: the newest position of every joint that
    was named. observations: how many could be made of all streams. waiting_for: what the last one lacked.
    """

    ended_s: float = 0.0
    arrivals: dict[str, list[Arrival]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    joints: dict[str, float] = field(default_factory=dict)
    observations: int = 0
    waiting_for: str = ""
