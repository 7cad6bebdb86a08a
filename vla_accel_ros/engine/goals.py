"""What each value of EngineConfig.goal sets, and why.

A goal sets groups of options that belong together. It leaves out what the caller sets, and a group that the
policy, its device or the caller's options refuse, such as seats in plain torch or token modes of a policy
that acts by flow. `steps` below is the number of denoising steps. Figures without a device are of one H200
with random weights.

first_chunk: the first chunk of each frame as early as possible.
    staggered: steps, staggering: fresh, seats_by_load, for pi0, which acts on newer joints: a frame's first
        chunk is denoised whole and before further ones. Image to first chunk 11.6 ms, p99 12.8, beside 262
        chunks a second; 26.5 and 30.7 with staggering: stream (docs/lab/streaming.md).
    text_groups: 4, text_share: 0.08: a frame waits for a quarter of a token; 72 tokens a second, where whole
        tokens come to 16 and p99 is 16.7 ms.
    token_mode: auto, token_prefer: freshness, for OpenVLA: 7 tokens after 8 to 35 ms, by how many draft
        tokens are right; after 35 one frame at a time (docs/lab/pipeline.md).
rate: as many chunks a second as possible.
    staggered: steps, prefill_groups: 9, text_groups: 4, for pi0: 516 chunks a second and 72 tokens, of 415 to
        435 and 5 to 15 with whole frames and tokens; the same bits. A frame's first chunk comes after 37 ms
        instead of 26 (docs/lab/streaming.md). Policies without a state token act once a frame, so seats only
        delay them.
    token_mode: auto, token_prefer: rate, for OpenVLA: 115 to 125 frames a second instead of 29.
memory: to fit on a small GPU. It changes the actions.
    precision: w8a8, keep_exact: false, on a GPU: pi0.5 takes 5.0 GB instead of 7.6 (computed for an RTX
        4090, docs/lab/plan.md). Calibrated, the bundled policy's actions differ by 0.7 % and 600 of 600
        episodes succeed; a chunk of pi0 takes 10.4 ms instead of 10.0 on an H100 (docs/lab/precision.md).
        int8 and int4 leave the prefix stack exact, and fp8 refuses questions. offload is not set: it frees
        0.7 GB but costs 14 ms in every frame (docs/lab/offload.md).
    slots: 4, answers: 1: the least that streams frames and answers questions.
many_robots: one engine for a fleet.
    scheduling: batches, staggered: 16, seats_by_load, for flow policies, with frames_together: 4: 40 robots
        that ask 3 times a second wait 34 ms, p99 78; without batches 54 and 105
        (docs/lab/fleet_scheduler.md). Chunks differ by rounding with what is computed beside them.
    token_mode: auto, token_prefer: rate, for OpenVLA.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vla_accel_ros.engine.config import (
    AUTO,
    FRESH_FIRST,
    FRESHNESS,
    MOST_SEATS,
    RATE,
    W8A8,
    EngineConfig,
)
from vla_accel_ros.engine.options import check_options, has_stages
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.option import options

Group = dict[str, Any]
FEWER_BITS: Group = {"precision": W8A8, "keep_exact": False}
IN_FEWER_BITS = ("pi0", "pi05", "openvla")
"""Families whose stages compute in fewer bits."""


def for_policy(policy: AnyPolicy, config: EngineConfig) -> EngineConfig:
    """The config of an engine: with what its goal sets, and then with the slots that this needs, unless
    slots is given."""
    adapted = toward_goal(policy, config)
    return with_slots(policy, adapted) if config.goal and "slots" not in config.given else adapted


def toward_goal(policy: AnyPolicy, config: EngineConfig) -> EngineConfig:
    """The config with what its goal sets for this policy; unchanged without a goal. A goal takes captured
    stages where there are any, unless fast is given."""
    if not config.goal:
        return config
    adapted = config.but(**{"fast": has_stages(policy), **config.given})
    for group in _groups(config, policy.chain.takes_state):
        try:
            trial = adapted.but(**{**group, **config.given})
            check_options(policy, trial)
        except ValueError:
            continue
        adapted = trial
    return adapted


def before_loading(config: EngineConfig, kind: str, device: str) -> EngineConfig:
    """The config with what its goal sets while the weights of a family are loaded: layers in fewer bits.
    device: its type."""
    if config.goal != "memory" or device != "cuda" or kind not in IN_FEWER_BITS:
        return config
    group, _ = _groups(config, takes_state=False)
    try:
        return config.but(**{**group, **config.given})
    except ValueError:  # the caller's options need the exact weights
        return config


def with_slots(policy: AnyPolicy, config: EngineConfig) -> EngineConfig:
    """The config with the slots that its options need beyond `slots`."""
    return replace(config, slots=config.slots + config.further_slots(policy.chain.answers))


def described(asked: EngineConfig, config: EngineConfig) -> str:
    """A line for the log: the goal, what it set in an engine's config, and what was asked for besides."""
    table = {name: option for name, option in options(EngineConfig).items() if option.parameter}
    usual = EngineConfig()
    by_goal = {
        name: getattr(config, name)
        for name in table.keys() - asked.given.keys() - {"fast", "slots"}
        if getattr(config, name) != getattr(usual, name)
    }
    by_user = {name: value for name, value in asked.given.items() if name in table and name != "goal"}
    goal = (
        f"goal {config.goal} sets {_listed(by_goal) or 'nothing for this model'}"
        if config.goal
        else "no goal"
    )
    return f"{goal}; set by you: {_listed(by_user) or 'nothing'}"


def _listed(settings: Group) -> str:
    return ", ".join(f"{name} {settings[name]}" for name in options(EngineConfig) if name in settings)


def _groups(config: EngineConfig, takes_state: bool) -> tuple[Group, ...]:
    tokens = {"token_mode": AUTO, "token_prefer": FRESHNESS if config.goal == "first_chunk" else RATE}
    seats = {"staggered": max(2, min(MOST_SEATS, config.steps))}
    if config.goal == "first_chunk":
        fresh = {**seats, "staggering": FRESH_FIRST, "seats_by_load": True} if takes_state else {}
        return fresh, {"text_groups": 4, "text_share": 0.08}, tokens
    if config.goal == "rate":
        return {**seats, "prefill_groups": 9} if takes_state else {}, {"text_groups": 4}, tokens
    if config.goal == "memory":
        return {} if config.given.get("keep_exact") else FEWER_BITS, {"slots": 4, "answers": 1}
    batches = {"staggered": 16, "seats_by_load": True, "scheduling": "batches"}
    return batches, {"frames_together": 4}, tokens
