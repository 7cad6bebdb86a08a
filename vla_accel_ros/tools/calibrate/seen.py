"""Magnitudes of the inputs of every product on observations, and what the products lose in 8 bits.

The plain network runs as it would for a robot: it observes, makes a chunk, and writes a few words where it
has a language head. Of every product the largest magnitude of each column is kept, and some rows, drawn alike
from all that came: with these the product is computed exactly and in 8 bits, smoothed as it will be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.kernels.reference import int8
from vla_accel_ros.models.calibration import (
    ALPHA,
    ERRORS,
    MOST_ERROR,
    Calibration,
    Group,
    fingerprint,
    products,
)
from vla_accel_ros.models.layers.quantized import FP8, W8A8, quantized
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.types import Observation

ROWS = 64
"""Of each product's inputs that are kept."""
WORDS = 4


class _Inputs:
    """largest float32 [K]; rows float32 [up to ROWS, K], each of those that came as likely as another."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator, self._calls = generator, 0
        self.largest: Tensor | None = None
        self.rows: list[Tensor] = []

    def see(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        """A forward hook: the rows of one call, of which one may be kept."""
        rows = given[0].detach().flatten(0, -2)
        largest = rows.abs().amax(0).float().cpu()
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self._calls += 1
        place = self._calls - 1
        if place >= ROWS:
            place = int(torch.randint(self._calls, (), generator=self._generator))
        if place < ROWS:
            row = rows[int(torch.randint(len(rows), (), generator=self._generator))].float().cpu()
            self.rows[place : place + 1] = [row]


def calibrate(
    policy: AnyPolicy,
    observations: Sequence[Observation],
    alpha: float = ALPHA,
    most_error: float = MOST_ERROR,
    say: Callable[[str], object] = lambda _: None,
) -> Calibration:
    """Of a policy on observations. Raises ValueError for no observations, and as `of_runs`."""
    if not observations:
        raise ValueError("there is no observation to calibrate on; give a bag or a dataset with some.")

    def run() -> None:
        engine = Engine(policy)
        for number, observation in enumerate(observations):
            with engine.observe(observation) as prefix:
                engine.act(prefix)
                if policy.answers:
                    with engine.ask(prefix, max_tokens=WORDS) as answer:
                        list(answer)
            say(f"{number + 1} of {len(observations)} observations")

    return of_runs(policy.model, run, len(observations), alpha, most_error)


@torch.no_grad()
def of_runs(
    model: nn.Module,
    run: Callable[[], object],
    observations: int,
    alpha: float = ALPHA,
    most_error: float = MOST_ERROR,
) -> Calibration:
    """Of a network and what computes it on so many observations. Raises ValueError for one without products
    of int8 rows, an activation that is not finite, or an alpha or an error that is none."""
    if not 0 <= alpha <= 1 or not most_error >= 0:
        raise ValueError(f"alpha is {alpha} and the error {most_error}; give 0 to 1, and 0 or more.")
    groups, generator = products(model), torch.Generator().manual_seed(0)
    inputs = {name: _Inputs(generator) for name in groups}
    hooks = [group[0].register_forward_pre_hook(inputs[name].see) for name, group in groups.items()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    largest: dict[str, Tensor] = {}
    for name, found in inputs.items():
        if found.largest is None or not bool(torch.isfinite(found.largest).all()):
            raise ValueError(f"the inputs of {name} are not finite, or none; is the checkpoint whole?")
        largest[name] = found.largest
    made = Calibration(fingerprint(model), observations, largest, {}, alpha, most_error)
    both: dict[str, dict[str, float]] = {
        kind: {name: _error(made, name, group, inputs[name].rows, kind) for name, group in groups.items()}
        for kind in ERRORS
    }
    return replace(made, errors=both[W8A8], fp8_errors=both[FP8])


def _error(made: Calibration, name: str, group: Group, kept: list[Tensor], kind: str) -> float:
    """Of the product of rows of a kind with its columns smoothed, over the product's magnitude."""
    weight = torch.cat([linear.weight.detach().float() for linear in group])
    rows, by = torch.stack(kept).to(weight.device), made.factors(name, weight)
    exact = rows.double() @ weight.double().T
    small = quantized(weight, kind, by)
    places = int8.place_rows(len(rows), rows.shape[1], rows.device, small.dtype)
    found = torch.empty(len(rows), len(weight), device=rows.device)
    int8.quantize(rows, by, places)
    int8.multiply(places, small, found)
    return float((found - exact).norm() / exact.norm().clamp_min(1e-30))
