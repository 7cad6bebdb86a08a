"""The contract of a robot whose joints are all told where to be, for any number of cameras."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

CAMERA_HZ, JOINTS_HZ = 30.0, 500.0
JOINTS = tuple(f"joint_{number}" for number in range(7))
MAX_AGE_S = 0.5
TOPICS = {"ring": "frame", "raw": "image_raw"}
"""Transport of images -> the last part of a camera's topic."""


def write_contract(
    path: Path,
    images: Sequence[str],
    commands_hz: float,
    step_dt_s: float,
    transport: str = "ring",
    camera_hz: float = CAMERA_HZ,
    joints_hz: float = JOINTS_HZ,
) -> Path:
    """Write it, with a camera for each of these images.

    Actions are in degrees: random weights then ask for small motion, not for nonsense. transport: of images,
    one of TOPICS.
    """
    limits = {"lower": -3.14, "upper": 3.14, "velocity": 3.0, "acceleration": 20.0, "action": "absolute"}
    camera = {"rate_hz": camera_hz, "max_age_s": MAX_AGE_S, "transport": transport}
    controller = {"topic": "positions/commands", "kind": "forward_command", "rate_hz": commands_hz}
    topic = TOPICS[transport]
    fields = {
        "robot": "loops",
        "cameras": {name: {"topic": f"camera/{name}/{topic}", "image": name, **camera} for name in images},
        "max_skew_s": 0.05,
        "joint_states": {"topic": "joint_states", "rate_hz": joints_hz, "max_age_s": MAX_AGE_S},
        "joints": [{"name": name, **limits, "unit": "deg"} for name in JOINTS],
        "controllers": [{**controller, "joints": list(JOINTS)}],
        "chunk": {"step_dt_s": step_dt_s, "max_age_s": MAX_AGE_S},
    }
    path.write_text(yaml.safe_dump(fields))
    return path
