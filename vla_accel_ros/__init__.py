"""Vision-Language-Action models in real time on one GPU, for ROS 2.

These are the names that a program needs to run a policy. Each is imported when it is first used:
`Observation`, `Chunk` and `Contract` need no torch, and nothing here but `Robot` needs ROS.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.engine.config import EngineConfig
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.engine.robots import Embodiment
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy, with_statistics
    from vla_accel_ros.nodes.clients.robot import Robot
    from vla_accel_ros.types import Chunk, Observation

_MODULES = {
    "Chunk": "vla_accel_ros.types",
    "Contract": "vla_accel_ros.contract.contract",
    "Embodiment": "vla_accel_ros.engine.robots",
    "Engine": "vla_accel_ros.engine.engine",
    "EngineConfig": "vla_accel_ros.engine.config",
    "Observation": "vla_accel_ros.types",
    "Robot": "vla_accel_ros.nodes.clients.robot",
    "load_policy": "vla_accel_ros.models.checkpoints.checkpoint",
    "with_statistics": "vla_accel_ros.models.checkpoints.checkpoint",
}
"""Public name -> the module that defines it."""

__all__ = [
    "Chunk",
    "Contract",
    "Embodiment",
    "Engine",
    "EngineConfig",
    "Observation",
    "Robot",
    "load_policy",
    "with_statistics",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
