"""The options that a goal sets for a model on a GPU that need not be there (engine.goals)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.goals import described, for_policy
from vla_accel_ros.planning.networks import network
from vla_accel_ros.planning.work import Sizes


def toward_goal(sizes: Sizes, config: EngineConfig, answers: bool) -> tuple[EngineConfig, str]:
    """The config that an engine with captured stages has, and a line that says what the goal sets.

    answers: whether the policy answers questions. Raises ValueError for options that contradict each other.
    """
    chain = sizes.chain
    if chain.answers and not answers:
        silent = (replace(m, leaves=()) if m.stage == "decode" else m for m in chain.micro_requests)
        chain = replace(chain, micro_requests=tuple(silent))
    policy: Any = SimpleNamespace(
        model=network(sizes),
        config=sizes,
        device=torch.device("meta"),
        kv_dtype=torch.bfloat16,
        chain=chain,
    )
    planned = for_policy(policy, config.but(fast=True))
    return planned, described(config, planned)
