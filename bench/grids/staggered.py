"""Chunks one after another against chunks begun one step apart: completed chunks a second, and how long each
took from its first step to its last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from full_size.subjects import random_inputs, random_model, relative
from grids.measure import Window
from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.stages import Stages
from vla_accel_ros.engine.staggered import StaggeredDenoising
from vla_accel_ros.engine.staggered_stage import CapturedSeats
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.sampling import Flow

OBSERVATIONS = 3
SEEDS = f"weights 0, observations 0 to {OBSERVATIONS - 1}"


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
    model = random_model(config, device).set_precision(dtype)
    inputs = [random_inputs(config, views, prompt, device, seed) for seed in range(OBSERVATIONS)]
    tokens = views * config.vision.tokens + -(-prompt // 16) * 16
    pool = KVPool(config.prefix, OBSERVATIONS, tokens, device, dtype)
    stages = Stages(model, pool)
    lengths = [stages.observe([one.frames], [one.prompt], [slot])[0] for slot, one in enumerate(inputs)]
    rows = []
    for count in steps:
        window = Window(device)
        alone: dict[int, Flow] = {}
        for number in range(-5, chunks):
            if number == 0:
                window = Window(device).__enter__()
            begin, slot = time.perf_counter(), number % OBSERVATIONS
            one = inputs[slot]
            alone[slot] = stages.act(one.noise, one.state, [slot], [lengths[slot]], count)
            alone[slot].actions.cpu()
            window.ages_s.append(time.perf_counter() - begin)
        window.__exit__()
        rows.append(_row("sequential", count, chunks, window) | {"gain": 1.0, "actions_error": 0.0})

        batch = StaggeredDenoising[int](CapturedSeats(stages, count, count))
        begun: dict[int, float] = {}
        errors, finished, window = [], 0, Window(device)
        for number in range(-2 * count, chunks):
            if number == 0:
                window, finished = Window(device).__enter__(), 0
            slot = number % OBSERVATIONS
            begun[number] = time.perf_counter()
            one = inputs[slot]
            state = one.state if config.kind == "pi0" else None
            batch.begin(number, one.noise, state, pool.span(slot, 0, lengths[slot]))
            for done in batch.step():
                actions = done.flow.actions.cpu()
                window.ages_s.append(time.perf_counter() - begun[done.key])
                errors.append((actions, alone[done.key % OBSERVATIONS].actions))
                finished += 1
        window.__exit__()
        row = _row("staggered", count, finished, window)
        row["gain"] = round(row["chunks_s"] / rows[-1]["chunks_s"], 2)
        row["actions_error"] = max(relative(ours, want.cpu()) for ours, want in errors)
        rows.append(row)
    return rows


def _row(system: str, steps: int, chunks: int, window: Window) -> dict[str, Any]:
    return {
        "system": system,
        "steps": steps,
        "chunks_s": round(chunks / window.elapsed_s, 2),
        **window.ages(),
        "memory_gb": window.memory_gb,
        **window.energy(chunks),
    }
