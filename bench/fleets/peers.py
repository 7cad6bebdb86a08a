"""Other ways to serve the same model: one request at a time, batches in lock-step, eager plain torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from fleets.loads import times
from fleets.serving import STEPS, Robots, as_observation, make_engine, mixed
from shared.subjects import plain
from shared.timing import synchronize
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.subjects import random_inputs

WARM_UP = 3


def one_at_a_time(policy: Policy, robots: Robots, views: int, seconds: float, setting: str) -> dict[str, Any]:
    """Captured stages, each request whole before the next; from images to a chunk in host memory."""
    engine = make_engine(policy, setting, robots, views)
    observations = [as_observation(robots, name) for name in robots.names]
    for name, embodiment in robots.embodiments.items():
        engine.runner.robots.add(name, embodiment)
    number = 0

    def one() -> None:
        nonlocal number
        number += 1
        with engine.observe(observations[number % len(observations)]) as prefix:
            engine.act(prefix)
        engine.runner.prefixes.remove(prefix.robot)

    return _timed(one, 1, seconds, policy.device)


def in_lock_step(
    policy: Policy, robots: Robots, views: int, seconds: float, setting: str, batch: int
) -> dict[str, Any]:
    """The stages alone: so many frames and then so many chunks in one batch, again and again."""
    engine = make_engine(policy, ",".join(filter(None, (setting, f"slots={batch + 1}"))), robots, views)
    stages = engine.runner.stages
    assert isinstance(stages, Stages)
    inputs_of_robots = [
        (as_observation(robots, name), cast(Policy, robots.embodiments[name].policy))
        for name in mixed(robots, batch)
    ]
    frames = [embodiment.host_images(observation) for observation, embodiment in inputs_of_robots]
    prompts = [
        torch.tensor(embodiment.prompt(observation.instruction, observation.state))
        for observation, embodiment in inputs_of_robots
    ]
    config, slots = policy.config, list(range(batch))
    noise = torch.randn(batch, config.horizon, config.action_dim, generator=torch.Generator().manual_seed(0))
    state = torch.zeros(batch, config.state_dim)

    def all_of_them() -> None:
        lengths = stages.observe(frames, prompts, slots)
        stages.submit(noise, state, slots, lengths, STEPS).wait()

    return _timed(all_of_them, batch, seconds, policy.device)


def eager(policy: Policy, views: int, prompt: int, seconds: float) -> dict[str, Any]:
    """Plain torch, one request at a time, as openpi's server computes them: uint8 images in host memory to a
    chunk in host memory."""
    device, inputs = policy.device, random_inputs(policy.config, views, prompt, policy.device)

    @torch.inference_mode()
    def one() -> None:
        from vla_accel_ros.models.processing.conventions import to_unit

        images = to_unit(torch.from_numpy(inputs.frames)).to(device)
        plain(policy.model, inputs._replace(images=images), STEPS)().float().cpu()

    return _timed(one, 1, seconds, device)


def _timed(body: Callable[[], object], chunks: int, seconds: float, device: torch.device) -> dict[str, Any]:
    for _ in range(WARM_UP):
        body()
    synchronize(device)
    spans_s, began_s = list[float](), time.perf_counter()
    while not spans_s or time.perf_counter() - began_s < seconds:
        start_s = time.perf_counter()
        body()
        synchronize(device)
        spans_s.append(time.perf_counter() - start_s)
    count = chunks * len(spans_s)
    hz = round(count / (time.perf_counter() - began_s), 2)
    return {"chunks_hz": hz, "request": times(np.array(spans_s)), "chunks": count}
