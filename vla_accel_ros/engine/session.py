"""Everything that an engine's numbers for a robot depend on: enough to build the same engine again.

A chunk is a function of an observation, the number of its request, and the session. Equal sessions give equal
bits; `differences` names what differs between two. Robots that share an engine have a session each, with
their own settings: a chunk is bit for bit the same in an engine that serves no other robot. A robot of a
fleet has one session for each replica, and needs no torch to pass it on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vla_accel_ros
from vla_accel_ros.engine.config import AUTO, renamed

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.policies import AnyPolicy

ROBOT, REPLICA = "robot", "replica"
"""Settings: the name of a robot that shares its engine, and the scheduler and replica of its fleet as
"SCHEDULER/NAME"."""
JPEG, JPEG_BY = "jpeg_quality", "jpeg_opencv"
"""Settings of a robot whose pixels went to a fleet as JPEG: the quality, and the version of OpenCV that
encoded them."""
TRAINED = "trained_state"
"""Setting of a robot of a fleet: its joints in the training of the scheduler's checkpoint."""
PIXELS = "pixels"
"""Setting: how the network's pictures are resized (PixelRule.described), for who shows them."""
OWN = (ROBOT, REPLICA, JPEG, JPEG_BY, TRAINED, "statistics", "prompt_state", "step_dt_s", "statistics_sha256")
"""Settings that robots of one engine do not share."""


@dataclass(frozen=True)
class Session:
    """See msg/Session.msg, which has the same fields. checksum: empty while unknown."""

    id: str
    model: str
    checksum: str
    contract: str
    urdf: str
    cameras: tuple[str, ...]
    topics: tuple[str, ...]
    settings: str
    device: str
    versions: tuple[str, ...]
    build: str

    @classmethod
    def from_message(cls, message: Any) -> Session:
        """The session of a message, or of one that was decoded from a bag."""
        values: dict[str, Any] = {field.name: getattr(message, field.name) for field in fields(cls)}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)

    def by_name(self) -> dict[str, Any]:
        """The settings, options by their present names. Raises ValueError if they are damaged."""
        settings = None
        with suppress(ValueError, RecursionError):
            settings = json.loads(self.settings)
        if not isinstance(settings, dict):
            raise ValueError(
                f"the settings of session {self.id[:8]} are no JSON object but {self.settings[:50]!r}: the "
                "recording is damaged; record again"
            )
        return renamed(settings)

    def differences(self, other: Session) -> list[str]:
        """What may make the other session's numbers differ, one phrase each: "seed 0, here 1"."""
        facts, others_facts = self._facts(), other._facts()
        return [
            f"{name} {_short(facts.get(name))}, here {_short(others_facts.get(name))}"
            for name in dict.fromkeys((*facts, *others_facts))
            if facts.get(name) != others_facts.get(name)
        ]

    def shares_engine(self, other: Session) -> bool:
        """Whether one engine can serve both robots."""
        return self._of_engine() == other._of_engine()

    def _of_engine(self) -> tuple[object, ...]:
        settings = self.by_name()
        return self.model, self.checksum, {name: settings[name] for name in settings if name not in OWN}

    def _facts(self) -> dict[str, object]:
        """Everything that the numbers depend on, by name."""
        facts = {"checkpoint": self.checksum, "runs on": self.device, "code of vla_accel_ros": self.build}
        versions = dict(version.split(" ", 1) for version in self.versions)
        settings = self.by_name()
        for name in (ROBOT, REPLICA, JPEG, TRAINED, PIXELS, "goal"):  # do not change the numbers of a replay
            settings.pop(name, None)
        return {**facts, **settings, **versions}


def session_of(
    engine: Engine,
    settings: Mapping[str, object],
    *,
    model: str | Path,
    contract: str,
    urdf: str,
    topics: Mapping[str, str],
    checksum: str = "",
    robot: str = "",
) -> Session:
    """The session of an engine that was just made, or of a robot that it just began to serve.

    settings: what it was made with besides the options of its config, by name. model: the checkpoint's
    folder. contract, urdf: their texts, empty if there is none. topics: camera -> topic of its
    images. robot: the robot of the session; settings, contract and topics are then the robot's. Make a new
    session when the robot is described again. Raises ValueError for an unknown robot.
    """
    from vla_accel_ros.models.flow.sampling import TIME_RULES  # needs torch, as the engine does

    device, embodiment = engine.policy.device, engine.runner.robots.of(robot)
    facts = {
        **({ROBOT: robot} if robot else {}),
        "step_dt_s": embodiment.step_dt_s,
        "statistics_sha256": statistics_checksum(embodiment.policy),
        "device": device.type,
        "dtype": str(engine.policy.kv_dtype).removeprefix("torch."),
        # a family's own rule is no value of the option
        "time_rule": rule if (rule := engine.runner.time_rule) in TIME_RULES else AUTO,
        PIXELS: engine.policy.pixel_rule.described(engine.policy.image_size),
    }
    return Session(
        id=uuid.uuid4().hex,
        model=str(model),
        checksum=checksum,
        contract=contract,
        urdf=urdf,
        cameras=tuple(topics),
        topics=tuple(topics.values()),
        settings=json.dumps({**asdict(engine.config), **settings, **facts}, sort_keys=True),
        device=device_name(device),
        versions=versions(device),
        build=build(),
    )


def statistics_checksum(policy: AnyPolicy) -> str:
    """SHA-256 over the numbers between a policy's network and the robot's units: everything in the policy but
    its network and tokenizer. Empty if the policy is not a dataclass."""
    if not is_dataclass(policy):
        return ""
    total = hashlib.sha256()
    for piece in _numbers(policy):
        total.update(piece + b"\0")
    return total.hexdigest()


def _numbers(value: object) -> Iterator[bytes]:
    import torch

    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, torch.Tensor):
        yield from _numbers(value.detach().cpu().numpy())
    elif is_dataclass(value):
        for field in fields(value):
            yield field.name.encode()
            yield from _numbers(getattr(value, field.name))
    elif isinstance(value, str | int | float | tuple):
        yield repr(value).encode()


def device_name(device: torch.device) -> str:
    """Name of the GPU, or of the CPU and the instruction set that torch uses."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}"


def versions(device: torch.device) -> tuple[str, ...]:
    """Versions of everything that the numbers depend on, "name version" each."""
    import cv2
    import torch

    facts = [f"vla_accel_ros {_version()}", f"python {platform.python_version()}"]
    facts += [f"torch {torch.__version__}", f"numpy {np.__version__}", f"opencv {cv2.__version__}"]
    if device.type == "cuda":
        facts += [f"cuda {torch.version.cuda}", f"cudnn {torch.backends.cudnn.version()}"]
        try:
            import triton
        except ImportError:
            return tuple(facts)
        facts.append(f"triton {triton.__version__}")
    return tuple(facts)


@cache
def build() -> str:
    """SHA-256 over the package's code and data on disk."""
    root = Path(vla_accel_ros.__file__).parent
    total = hashlib.sha256()
    for folder in ("engine", "kernels", "models", "control", "sensing", "contract"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".json"):
                total.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()


def _version() -> str:
    try:
        return metadata.version("vla_accel_ros")
    except metadata.PackageNotFoundError:  # not installed
        return "of its sources"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _short(value: object) -> str:
    """The first digits of a checksum; any other value unchanged."""
    text = "unknown" if value in (None, "") else str(value)
    return text[:12] if len(text) == 64 else text
