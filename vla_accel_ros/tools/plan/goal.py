"""The options that a goal sets for a model on a GPU that need not be there (engine.goals)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.goals import described, for_policy
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.policies import FLOW, TOKENS
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.stages import network
from vla_accel_ros.planning.work import Sizes


def toward_goal(sizes: Sizes, config: EngineConfig, answers: bool) -> tuple[EngineConfig, str]:
    """The config that an engine with captured stages has, and a line that says what the goal sets.

    answers: whether the policy answers questions. Raises ValueError for options that contradict each other.
    """
    plain = isinstance(sizes, SmolVLAConfig)
    policy: Any = SimpleNamespace(
        model=network(sizes),
        config=sizes,
        device=torch.device("meta"),
        kv_dtype=torch.bfloat16,
        acts=TOKENS if isinstance(sizes, OpenVLAConfig) else FLOW,
        decodes=not plain,
        answers=answers,
        takes_state=sizes.kind == "pi0",
        capturable=plain,
    )
    planned = for_policy(policy, config.but(fast=True))
    return planned, described(config, planned)
