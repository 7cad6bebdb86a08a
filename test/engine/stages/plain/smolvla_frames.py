"""Frames for the recorded SmolVLA as a family without kernels, and what makes two chunks the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from builders import make_observation

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.types import Chunk, Observation

BOTH, TOP = ("top", "wrist"), ("top",)
FRAMES = (  # cameras, letters of the instruction, height and width
    (BOTH, 5, (48, 64)),
    (TOP, 5, (48, 64)),
    (BOTH, 31, (90, 33)),
    (BOTH, 1, (48, 64)),
)
COMMITTED = 5
"""Most actions that it says it was trained to be given."""


class Unknown(SmolVLA):
    """A network that the engine has no kernels for."""


def load(folder: Path, device: str, dtype: torch.dtype = torch.float32) -> SmolVLAPolicy:
    policy = load_policy(folder, device, dtype)
    assert isinstance(policy, SmolVLAPolicy)
    policy.model.__class__ = Unknown
    return replace(policy, trained_delay=COMMITTED)


def frame(
    seed: int, cameras: tuple[str, ...] = BOTH, letters: int = 5, size: tuple[int, int] = (48, 64)
) -> Observation:
    """Its prompt has a token more than letters."""
    return make_observation(seed, cameras, "x" * letters, size=size)


def assert_same(ours: Chunk, plain: Chunk) -> None:
    """To the bit."""
    np.testing.assert_array_equal(ours.actions, plain.actions)
    np.testing.assert_array_equal(ours.update_magnitudes, plain.update_magnitudes)
    np.testing.assert_array_equal(ours.step_magnitudes, plain.step_magnitudes)
    assert np.isfinite(plain.actions).all()
