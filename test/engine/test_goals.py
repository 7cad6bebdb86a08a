"""What a goal sets depends on the policy; what the caller sets stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import make_policy
from openvla_builders import make_openvla_folder

from vla_accel_ros.engine.config import GOALS, EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.goals import before_loading, described, toward_goal
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.option import options

GROUPS = {"prefill_groups": 2, "text_groups": 2}
"""As many as the tiny models have; a goal wants those of the published sizes."""
FRESH = {"staggered": 10, "staggering": "fresh", "seats_by_load": True}
TEXT = {"text_groups": 2, "text_share": 0.08}
FLEET = {"scheduling": "batches", "staggered": 16, "seats_by_load": True, "frames_together": 4}
SMALL = {"precision": "w8a8", "keep_exact": False}


def by_goal(policy: AnyPolicy, goal: str, **given: Any) -> dict[str, Any]:
    """The options that are not their defaults."""
    config, usual = toward_goal(policy, EngineConfig(goal=goal, **given)), EngineConfig()
    names = [name for name in options(EngineConfig) if getattr(config, name) != getattr(usual, name)]
    return {name: getattr(config, name) for name in names if name not in ("goal", "fast")}


@pytest.mark.parametrize(
    ("kind", "goal", "expected"),
    [
        ("pi0", "first_chunk", {**FRESH, **TEXT}),
        ("pi05", "first_chunk", TEXT),
        ("pi0", "rate", {"staggered": 10, **GROUPS}),
        ("pi05", "rate", {"text_groups": 2}),
        ("pi0", "memory", {**SMALL, "slots": 4, "answers": 1}),
        ("pi05", "many_robots", FLEET),
    ],
)
def test_goal_sets_what_pays_for_policy_with_kernels(kind: str, goal: str, expected: dict[str, Any]) -> None:
    groups = {name: GROUPS[name] for name in GROUPS.keys() & expected.keys()}
    assert by_goal(make_policy(kind), goal, fast=True, **groups) == expected


@pytest.mark.parametrize(
    ("goal", "prefer"), [("first_chunk", "freshness"), ("rate", "rate"), ("many_robots", "rate")]
)
def test_goal_sets_token_mode_for_policy_that_acts_by_tokens(tmp_path: Path, goal: str, prefer: str) -> None:
    policy = load_policy(make_openvla_folder(tmp_path))
    config = toward_goal(policy, EngineConfig(goal=goal, fast=False))
    assert (config.token_mode, config.token_prefer, config.staggered) == ("auto", prefer, 0)


@pytest.mark.parametrize("goal", GOALS)
def test_goal_leaves_plain_torch_as_it_is_but_for_memory(goal: str) -> None:
    expected = {"slots": 4, "answers": 1} if goal == "memory" else {}
    assert by_goal(make_policy("pi0"), goal) == expected


def test_caller_overrides_goal_and_seats_follow_steps() -> None:
    policy = make_policy("pi0")
    assert by_goal(policy, "many_robots", fast=True, staggered=4, steps=3) == {
        **FLEET,
        "staggered": 4,
        "steps": 3,
    }
    assert by_goal(policy, "many_robots", fast=True, staggered=0) == {"frames_together": 4}
    assert by_goal(policy, "rate", fast=True, steps=5, **GROUPS) == {"staggered": 5, "steps": 5, **GROUPS}
    settings = by_goal(policy, "memory", fast=True, keep_exact=True, slots=5)
    assert settings == {"answers": 1}


def test_engine_with_goal_has_slots_for_it_and_one_without_is_unchanged() -> None:
    policy = make_policy("pi0")
    engine = Engine(policy, goal="many_robots", fast=True)
    assert engine.config.staggered == 16 and engine.runner.pool.slots == engine.config.slots == 5 + 16 + 3 + 3
    assert Engine(policy, goal="many_robots", fast=True, slots=30).config.slots == 30
    assert Engine(policy, steps=3).config == EngineConfig(steps=3)


def test_goal_decides_what_is_loaded_in_fewer_bits() -> None:
    config = EngineConfig(goal="memory")
    assert not before_loading(config, "pi05", "cuda").keep_exact
    for same in (("smolvla", "cuda"), ("pi05", "cpu")):
        assert before_loading(config, *same) is config
    needs_exact = EngineConfig(goal="memory", staggered=4)
    assert before_loading(needs_exact, "pi05", "cuda") is needs_exact
    assert before_loading(EngineConfig(goal="rate"), "pi05", "cuda").keep_exact


def test_line_for_log_names_goal_what_it_sets_and_what_was_given() -> None:
    policy, user_config = (
        make_policy("pi0"),
        EngineConfig(goal="many_robots", fast=True, seed=3, action_hz=5.0),
    )
    line = described(user_config, toward_goal(policy, user_config))
    by_the_goal, _, by_user = line.partition(";")
    for name in FLEET:
        assert name in by_the_goal
    assert "many_robots" in by_the_goal and "seed 3" in by_user and "action_hz" not in line
    assert "staggered" not in described(EngineConfig(), EngineConfig())
