"""Models of the published sizes or tiny ones, options of an engine, and frames in page-locked memory."""

from __future__ import annotations

import argparse
import mmap
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.stages.memory.host_memory import Registration
from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.tools.bench.tiny import tiny_pi
from vla_accel_ros.types import Observation

KINDS = {"pi0": PI0, "pi05": PI05}
NAMES = {
    "pi0": "pi0", "pi05": "pi0.5", "smolvla": "SmolVLA", "openvla": "OpenVLA", "groot_n1_7": "GR00T N1.7",
    "groot_n1_5": "GR00T N1.5", "xvla": "X-VLA", "openvla_oft": "OpenVLA-OFT", "pi0_fast": "pi0-FAST",
    "fastwam": "Fast-WAM", "mimic_video": "mimic-video",
}  # fmt: skip
"""Kinds of policies, in the order of tables."""


def config_of(kind: str, tiny: bool) -> PiConfig:
    """Of KINDS, or a tiny one of that kind with three cameras."""
    return tiny_pi(kind, ("base", "left", "right")) if tiny else KINDS[kind]


def read_options(words: Sequence[str], setting: str) -> dict[str, Any]:
    """Engine options "name=value" by their names in EngineConfig. Raises ValueError, which names the setting,
    for an invalid word."""
    types: dict[str, Any] = {option.name: type(option.default) for option in fields(EngineConfig)}
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in types:
            raise ValueError(f"'{word}' in '{setting}' is no option of an engine with a value.")
        if types[name] is bool and value not in ("true", "false"):
            raise ValueError(f"'{word}' in '{setting}' is neither true nor false.")
        options[name] = value == "true" if types[name] is bool else types[name](value)
    return options


def setting_of(check: Any) -> Any:
    """An argparse type: a setting that `check` accepts, as it was typed."""

    def setting(word: str) -> str:
        try:
            check(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return word

    return setting


def page_locked(observation: Observation) -> tuple[Observation, Registration]:
    """The same frame in memory that is registered with CUDA, if there is a GPU, until `end`."""
    images = observation.images
    size = sum(image.nbytes for image in images.values())
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    placed, start = {}, 0
    for name, image in images.items():
        placed[name] = memory[start : start + image.nbytes].reshape(image.shape)
        placed[name][:] = image
        start += image.nbytes
    return replace(observation, images=placed), Registration(memory.ctypes.data, size)
