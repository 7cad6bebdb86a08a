"""An engine that answers questions, its policy, and what it says alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from builders import make_config, make_observation, make_policy

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Ask, Request
from vla_accel_ros.models.policy import Policy

SIZES = make_config("pi05").prefix
LAYERS = 4
WORDS = 6


@cache
def policy_of(device: str) -> Policy:
    prefix = replace(SIZES, depth=LAYERS)
    expert = replace(make_config("pi05").expert, depth=LAYERS)
    return make_policy("pi05", device=device, prefix=prefix, expert=expert)


def make_engine(groups: int = LAYERS, device: str = "cpu", **options: Any) -> Engine:
    given = {"slots": 8, "answers": 3, "answer_tokens": 32, "steps": 3, "fast": True, **options}
    return Engine(policy_of(device), text_groups=groups, **given)


def asking(engine: Engine, seed: int, tokens: int = WORDS) -> Request:
    """A question that has begun."""
    with engine.observe(make_observation(seed)) as prefix:
        request = engine.scheduler.submit(Request(Ask(max_tokens=tokens), prefix=prefix))
        return engine.scheduler.wait(request, lambda one: one.begun)


@cache
def alone(seed: int, device: str, tokens: int = WORDS) -> list[int]:
    """By an engine that computes tokens at once, an answer by itself."""
    engine = make_engine(1, device)
    return engine.scheduler.wait(asking(engine, seed, tokens)).tokens
