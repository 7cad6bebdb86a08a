"""Chunks one after another against chunks begun one step apart: completed chunks a second, and the time of
each from its first step to its last.

Both are requests through the scheduler of an engine, from a held prefix to actions on the host, so every
figure includes scheduling, noise and conversion to joint units. Sequential: whole chunks, each a micro-batch.
Staggered: one is submitted before each step, and a step advances all that have begun.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from shared.policies import random_policy
from shared.subjects import random_observation, relative
from shared.timing import Window
from vla_accel_ros.engine.actors.flow import FRAME_SLOTS
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.request import Act, Request
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.types import Chunk, Observation

OBSERVATIONS = 3
SEEDS = f"weights 0, observations 0 to {OBSERVATIONS - 1}"
PATH = "requests through the engine's scheduler, from a held prefix to actions on the host"


def measure(
    config: PiConfig,
    steps: Sequence[int],
    chunks: int,
    device: torch.device,
    dtype: torch.dtype,
    views: int = 2,
    prompt: int = 20,
) -> list[dict[str, Any]]:
    """Two rows for each number of steps."""
    policy = random_policy(config, device, dtype)
    observations = [random_observation(policy, views, prompt, seed=seed) for seed in range(OBSERVATIONS)]
    rows = []
    for count in steps:
        sequential, alone = _sequential(policy, observations, count, chunks)
        gc.collect()  # its stages and slots are no longer in the device's memory
        staggered = _staggered(policy, observations, count, chunks, alone)
        gc.collect()
        staggered["gain"] = round(staggered["chunks_s"] / sequential["chunks_s"], 2)
        rows += [sequential | {"gain": 1.0, "actions_error": 0.0}, staggered]
    return rows


def _sequential(
    policy: Policy, observations: Sequence[Observation], steps: int, chunks: int
) -> tuple[dict[str, Any], dict[int, np.ndarray]]:
    """The row, and the actions of each observation."""
    engine = Engine(policy, fast=True, steps=steps)
    prefixes = [engine.observe(observation) for observation in observations]
    window, alone = Window(policy.device), dict[int, np.ndarray]()
    for number in range(-5, chunks):
        if number == 0:
            window = Window(policy.device).__enter__()
        begin, which = time.perf_counter(), number % OBSERVATIONS
        alone[which] = engine.act(prefixes[which], noise=which).actions
        window.ages_s.append(time.perf_counter() - begin)
    window.__exit__()
    return _row("sequential", steps, chunks, window), alone


def _staggered(
    policy: Policy, observations: Sequence[Observation], steps: int, chunks: int, alone: dict[int, np.ndarray]
) -> dict[str, Any]:
    engine = Engine(policy, fast=True, steps=steps, staggered=steps, slots=steps + FRAME_SLOTS)
    prefixes = [engine.observe(observation) for observation in observations]
    window, errors = Window(policy.device), list[float]()

    def finish(which: int, begin_s: float, request: Request) -> None:
        if request.error is not None:
            raise request.error
        if request.finished and isinstance(request.result, Chunk):
            window.ages_s.append(time.perf_counter() - begin_s)
            ours, want = (torch.from_numpy(actions) for actions in (request.result.actions, alone[which]))
            errors.append(relative(ours, want))

    for number in range(-2 * steps, chunks):
        if number == 0:
            window = Window(policy.device).__enter__()
        which = number % OBSERVATIONS
        on_progress = partial(finish, which, time.perf_counter())
        engine.scheduler.submit(Request(Act(noise=which), prefix=prefixes[which], on_progress=on_progress))
        engine.scheduler.step()
    window.__exit__()
    engine.scheduler.cancel(*engine.scheduler.requests)
    row = _row("staggered", steps, len(window.ages_s), window)
    return row | {"actions_error": max(errors)}


def _row(system: str, steps: int, chunks: int, window: Window) -> dict[str, Any]:
    return {
        "system": system,
        "steps": steps,
        "chunks_s": round(chunks / window.elapsed_s, 2),
        **window.ages(),
        "memory_gb": window.memory_gb,
        **window.energy(chunks),
    }
