"""Measure how closely flow solvers follow the network's flow, and how long they take.

For every observation, each way integrates the same noise in plain torch. The reference for the exact flow is
FINE steps of Adams-Bashforth; half as many show how well it has converged. The distance of two chunks is the
RMS over actions and joints in the network's units: 1 is about a joint's spread in the training data. Two
chunks of one observation from different noise also differ; an error that is small against that is invisible
in the robot's motion. Times are those of `Engine.act`, from noise to chunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.options import has_stages
from vla_accel_ros.models.flow.noise import fresh
from vla_accel_ros.models.flow.sampling import Velocity, sample
from vla_accel_ros.models.flow.solver import AB2
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.models.policies import AnyPolicy, FlowField, FlowPolicy
from vla_accel_ros.types import Observation

FINE = 100
REFERENCE, KNOWN = "reference", "half of it"
OTHER = 1_000_000
"""First noise number of second samples."""
ACTS = 5
"""Warm-up chunks before times are taken."""

Integrate = Callable[[Velocity, Tensor], Tensor]
"""(velocity, noise [1, H, A]) -> actions [1, H, A]."""


def name_of(solver: str, steps: int) -> str:
    """Return a way's name in the table."""
    return f"{solver} {steps}"


DEFAULT = name_of(EngineConfig.solver, EngineConfig.steps)


def ways(solvers: Iterable[str], steps: Iterable[int], time_rule: str) -> dict[str, Integrate]:
    """Return every solver with every number of steps, and the default. Raises ValueError if one is
    unknown."""
    pairs = [(EngineConfig.solver, EngineConfig.steps)]
    pairs += [(solver, number) for solver in solvers for number in steps]
    return {name_of(*pair): _integrate(*pair, time_rule) for pair in pairs}


def _integrate(solver: str, steps: int, time_rule: str) -> Integrate:
    sample(lambda x, t: x, torch.zeros(1, 1, 1), steps, time_rule, solver)  # raises if it is unknown
    return lambda velocity, noise: sample(velocity, noise, steps, time_rule, solver).actions


def errors(
    policy: AnyPolicy,
    observations: Sequence[Observation],
    integrators: Mapping[str, Integrate],
) -> dict[str, Any]:
    """Measure distances to the reference, to the default, and between two samples. integrators: must include
    DEFAULT.

    Raises ValueError for a token policy.
    """
    if policy.chain.acts != DENOISE:
        raise ValueError(f"a {policy.config.kind} policy has no flow: give --model of a flow policy.")
    flowing, engine = cast(FlowPolicy, policy), Engine(policy)
    rule = engine.runner.time_rule
    further: dict[str, Integrate] = {
        REFERENCE: _integrate(AB2, FINE, rule),
        KNOWN: _integrate(AB2, FINE // 2, rule),
    }
    shape = policy.config.horizon, policy.config.action_dim
    to_fine: dict[str, list[float]] = {name: [] for name in (*integrators, KNOWN)}
    to_default: dict[str, list[float]] = {name: [] for name in integrators}
    samples = []

    def distance(a: Tensor, b: Tensor) -> float:
        return float((a - b)[..., : flowing.joints].square().mean().sqrt())

    for number, observation in enumerate(tqdm(observations, desc="observations", disable=None, leave=False)):
        noise, other = (
            torch.from_numpy(fresh(0, which, shape))[None].to(policy.device)
            for which in (number, OTHER + number)
        )
        with engine.observe(observation) as prefix, torch.inference_mode():
            velocity = partial(_velocity, flowing, observation, engine.runner.prefill.kept(prefix))
            chunks = {name: way(velocity, noise) for name, way in {**integrators, **further}.items()}
            samples.append(distance(further[KNOWN](velocity, other), chunks[KNOWN]))
        for name, distances in to_fine.items():
            distances.append(distance(chunks[name], chunks[REFERENCE]))
        for name, distances in to_default.items():
            distances.append(distance(chunks[name], chunks[DEFAULT]))
    return {
        "observations": len(observations),
        "reference": name_of(AB2, FINE),
        "reference_to_half": figures(to_fine[KNOWN]),
        "two_samples": figures(samples),
        "ways": [
            {"way": name, "error": figures(to_fine[name]), "to_default": figures(to_default[name])}
            for name in integrators
        ],
    }


def _velocity(
    policy: FlowPolicy, observation: Observation, kept: Mapping[str, Any], x: Tensor, t: float
) -> Tensor:
    state = policy.normalized_state(observation.state)[None].to(x.device)
    return FlowField(policy).velocity(x, torch.full((1,), t, device=x.device), state, kept)


def figures(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    quantiles = np.quantile(values, (0.5, 0.95, 1.0))
    return dict(zip(("median", "p95", "most"), (float(f"{value:.4g}") for value in quantiles), strict=True))


def times_ms(
    policy: AnyPolicy, observation: Observation, pairs: Iterable[tuple[str, int]], runs: int
) -> dict[str, dict[str, float]]:
    """Measure chunk times for each solver and number of steps, alternating between them in every round."""
    fast = has_stages(policy)
    engines = {
        name_of(solver, steps): Engine(policy, solver=solver, steps=steps, fast=fast)
        for solver, steps in pairs
    }
    times: dict[str, list[float]] = {name: [] for name in engines}
    for run in range(ACTS + runs):
        for name, engine in engines.items():
            with engine.observe(observation) as prefix:
                started = time.perf_counter()
                engine.act(prefix)
                if run >= ACTS:
                    times[name].append(1e3 * (time.perf_counter() - started))
    return {
        name: {"p50": round(float(np.median(ms)), 3), "p99": round(float(np.quantile(ms, 0.99)), 3)}
        for name, ms in times.items()
    }


def lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table in Markdown."""
    yield "| solver, steps | error: median | 95 % | greatest | to the default: median | 95 % | ms a chunk |"
    yield "|---|---|---|---|---|---|---|"
    for row in measured["ways"]:
        error, default, times = row["error"], row["to_default"], row.get("ms")
        shown = "-" if times is None else f"{times['p50']:.2f}"
        yield (
            f"| {row['way']} | {error['median']:.4f} | {error['p95']:.4f} | {error['most']:.4f} | "
            f"{default['median']:.4f} | {default['p95']:.4f} | {shown} |"
        )
    half, samples = measured["reference_to_half"], measured["two_samples"]
    yield (
        f"{measured['observations']} observations; the reference, {measured['reference']}, is "
        f"{half['median']:.4f} (95 %: {half['p95']:.4f}) from half as many steps; two samples of an "
        f"observation are {samples['median']:.3f} (95 %: {samples['p95']:.3f}) apart"
    )
