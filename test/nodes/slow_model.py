"""A policy that is slow by what it computes: an action expert that is wide for what it does."""

from __future__ import annotations

from pathlib import Path

from builders import CALM, make_checkpoint, make_config

from vla_accel_ros.models.config import GemmaConfig

SLOW_STEPS = 20
"""Steps of denoising with which a chunk takes some half a second of one core."""


def make_slow_model(folder: Path) -> Path:
    """Its checkpoint folder; give inference steps = SLOW_STEPS, or fewer for a faster one."""
    expert = GemmaConfig(width=512, depth=2, mlp=2048, heads=4, kv_heads=1, head_dim=8)
    return make_checkpoint(folder / "slow_policy", make_config(horizon=50, expert=expert), reach=CALM)
