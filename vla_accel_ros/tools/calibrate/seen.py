"""Collect input magnitudes of every product on observations, and its errors in 8 bits.

The plain network runs as for a robot: it observes, makes a chunk, and writes a few words if it has a language
head. For every product the largest magnitude of each column is kept, and some rows, sampled uniformly over
all calls. With these rows the product is computed exactly and in 8 bits, smoothed as it will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.kernels.reference import int8
from vla_accel_ros.models.calibration import ALPHA, MOST_ERROR, Calibration, Group, fingerprint, products
from vla_accel_ros.models.layers.quantized import W8A8, quantized
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.types import Observation

ROWS = 64
"""Rows kept of each product's inputs."""
WORDS = 4


class _Inputs:
    """Statistics of a product's inputs. largest float32 [K]. rows float32 [up to ROWS, K]: a reservoir sample
    with one row of each sampled call."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._calls = generator, 0
        self.largest: Tensor | None = None
        self.rows: list[Tensor] = []

    def see(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Forward pre-hook: take the rows of one call, and perhaps keep one."""
        rows = arguments[0].detach().flatten(0, -2)
        largest = rows.abs().amax(0).float().cpu()
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self._calls += 1
        index = self._calls - 1
        if index >= ROWS:
            index = int(torch.randint(self._calls, (), generator=self._generator))
        if index < ROWS:
            row = rows[int(torch.randint(len(rows), (), generator=self._generator))].float().cpu()
            self.rows[index : index + 1] = [row]


@torch.no_grad()
def calibrate(
    policy: AnyPolicy,
    observations: Sequence[Observation],
    alpha: float = ALPHA,
    most_error: float = MOST_ERROR,
) -> Calibration:
    """Calibrate a policy on observations. Raises ValueError if there are none, its network has no products of
    8-bit rows, an activation is not finite, or alpha or most_error is out of range."""
    if not observations:
        raise ValueError("there is no observation to calibrate on; give a bag or a dataset with some.")
    if not 0 <= alpha <= 1 or not most_error >= 0:
        raise ValueError(f"alpha is {alpha} and the error {most_error}; give 0 to 1, and 0 or more.")
    groups, generator = products(policy.model), torch.Generator().manual_seed(0)
    inputs = {name: _Inputs(generator) for name in groups}
    hooks = [group[0].register_forward_pre_hook(inputs[name].see) for name, group in groups.items()]
    try:
        _run(policy, observations)
    finally:
        for hook in hooks:
            hook.remove()
    largest: dict[str, Tensor] = {}
    for name, statistics in inputs.items():
        if statistics.largest is None or not bool(torch.isfinite(statistics.largest).all()):
            raise ValueError(f"{name} got no inputs or not finite ones; check that the checkpoint is whole.")
        largest[name] = statistics.largest
    seen = fingerprint(policy.model), len(observations)
    calibration = Calibration(*seen, largest, {}, alpha, most_error)
    errors = {name: _error(calibration, name, group, inputs[name].rows) for name, group in groups.items()}
    return replace(calibration, errors=errors)


def _run(policy: AnyPolicy, observations: Sequence[Observation]) -> None:
    engine = Engine(policy)
    for observation in tqdm(observations, desc="observations", disable=None, leave=False):
        with engine.observe(observation) as prefix:
            engine.act(prefix)
            if policy.chain.answers:
                with engine.ask(prefix, max_tokens=WORDS) as answer:
                    list(answer)


def _error(calibration: Calibration, name: str, group: Group, sampled: list[Tensor]) -> float:
    """Return the relative error of a smoothed product with int8 rows."""
    weight = torch.cat([linear.weight.detach().float() for linear in group])
    rows, by = torch.stack(sampled).to(weight.device), calibration.factors(name, weight)
    exact = rows.double() @ weight.double().T
    small = quantized(weight, W8A8, by)
    places = int8.place_rows(len(rows), rows.shape[1], rows.device)
    product = torch.empty(len(rows), len(weight), device=rows.device)
    int8.quantize(rows, by, places)
    int8.multiply(places, small, product)
    return float((product - exact).norm() / exact.norm().clamp_min(1e-30))
