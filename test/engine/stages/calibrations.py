"""Calibrations of random networks."""

from __future__ import annotations

import torch

from vla_accel_ros.models.calibration import Calibration, fingerprint, products


def calibration(model: torch.nn.Module, errors: dict[str, float] | None = None, seed: int = 0) -> Calibration:
    """Of magnitudes drawn over a decade, so that what is smoothed must be undone. errors: of stacks."""
    g = torch.Generator().manual_seed(seed)
    named, given = products(model), errors or {}
    largest = {name: 10 ** torch.rand(group[0].in_features, generator=g) for name, group in named.items()}
    found = {name: given.get(name.split(".")[0], 0.0) for name in named}
    return Calibration(fingerprint(model), 1, largest, found)
