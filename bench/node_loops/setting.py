"""What the processes of a run agree on: the robot's contract, and the names of slots and rings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CAMERA_HZ, JOINTS_HZ = 30.0, 500.0
JOINTS = tuple(f"joint_{number}" for number in range(7))
MAX_AGE_S = 0.5
TOPICS = {"ring": "frame", "raw": "image_raw"}
"""Transport of images -> the last part of a camera's topic."""


@dataclass(frozen=True)
class Setting:
    """The setting of one run. name: unique to this run. size: height and width of the cameras' images.
    commands_hz: of the controller. motion: share of their motion that actions ask for. engine: options of
    EngineConfig. rates: Hz of vision, action, language."""

    name: str
    contract: Path
    size: tuple[int, int]
    commands_hz: float
    lead_s: float
    kind: str
    small: bool
    prompt: int
    motion: float = 1.0
    engine: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def joints(self) -> str:
        """The slot of measured joints, float64 [D] each."""
        return f"{self.name}-joints"

    @property
    def commands(self) -> str:
        """The slot of commands, float64 [D] each."""
        return f"{self.name}-commands"

    @property
    def chunks(self) -> str:
        """The slot of chunks."""
        return f"{self.name}-chunks"

    def ring(self, camera: str) -> str:
        """A camera's ring."""
        return f"{self.name}-{camera}"


def write_contract(
    path: Path,
    images: Sequence[str],
    commands_hz: float,
    step_dt_s: float,
    transport: str = "ring",
    camera_hz: float = CAMERA_HZ,
    joints_hz: float = JOINTS_HZ,
) -> Path:
    """A robot whose joints are all told where to be, seen by a camera for each of these images.

    Actions are in degrees: random weights then ask for small motion, not for nonsense. transport: of images,
    one of TOPICS.
    """
    one = {"lower": -3.14, "upper": 3.14, "velocity": 3.0, "acceleration": 20.0, "action": "absolute"}
    camera = {"rate_hz": camera_hz, "max_age_s": MAX_AGE_S, "transport": transport}
    controller = {"topic": "positions/commands", "kind": "forward_command", "rate_hz": commands_hz}
    topic = TOPICS[transport]
    fields = {
        "robot": "loops",
        "cameras": {name: {"topic": f"camera/{name}/{topic}", "image": name, **camera} for name in images},
        "max_skew_s": 0.05,
        "joint_states": {"topic": "joint_states", "rate_hz": joints_hz, "max_age_s": MAX_AGE_S},
        "joints": [{"name": name, **one, "unit": "deg"} for name in JOINTS],
        "controllers": [{**controller, "joints": list(JOINTS)}],
        "chunk": {"step_dt_s": step_dt_s, "max_age_s": MAX_AGE_S},
    }
    path.write_text(yaml.safe_dump(fields))
    return path
