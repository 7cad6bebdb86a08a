"""What LeRobot does with observations and actions around the policy: names, batches, devices."""

from __future__ import annotations

from typing import Any

from lerobot.processor import make_default_pre_post_processors

from lerobot_policy_vla_accel.configuration_vla_accel import VlaAccelConfig


def make_vla_accel_pre_post_processors(config: VlaAccelConfig, dataset_stats: Any = None) -> tuple[Any, Any]:
    """LeRobot's own steps; the server normalises."""
    return make_default_pre_post_processors(config, dataset_stats, normalizer_device=config.device)
