"""The bundled policy's actions in w8a8 against the plain network's in float32, on the same frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from precision import chunks, frames

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.calibration import Calibration, read
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.calibrate import seen

APART = 2_000_000
"""Scenes of the calibration are numbered from here; all others from 0, those of training from a million."""


def calibrate(model: Path, path: Path, count: int) -> None:
    """Calibrate a policy on this many observations of demonstrations, and write the file."""
    torch.set_num_threads(1)
    seen.calibrate(load_policy(model), list(frames(count, APART))).write(path)


def measure(model: Path, calibration: Path, count: int) -> dict[str, Any]:
    """Measure the errors on this many frames, also relative to how far the actions are from the joints."""
    torch.set_num_threads(1)
    policy, observations = load_policy(model), list(frames(count))
    states = np.stack([observation.state for observation in observations])
    exact = chunks(Engine(policy, step_dt_s=1 / 30), observations)
    moved = exact - states[:, None]
    rows = []
    for name, options in {
        "exact": {"precision": "exact"},
        "int8": {"precision": "int8"},
        "w8a8": {"precision": "w8a8"},
        "w8a8, calibrated": {"precision": "w8a8", "calibration": str(calibration)},
    }.items():
        engine = Engine(policy, step_dt_s=1 / 30, fast=True, **options)  # type: ignore[arg-type]
        apart = chunks(engine, observations) - exact
        row = {
            "rms_mrad": 1e3 * float(np.sqrt(np.mean(apart**2))),
            "max_mrad": 1e3 * float(np.abs(apart).max()),
            "over_moved": float(np.linalg.norm(apart) / np.linalg.norm(moved)),
            "copies_mb": engine.runner.copied_bytes / 1e6,
        }
        rows.append({"precision": name, **{key: float(f"{value:.4g}") for key, value in row.items()}})
    made = read(calibration, policy.model)
    return {
        "frames": count,
        "moved_rms_mrad": round(1e3 * float(np.sqrt(np.mean(moved**2))), 2),
        "product_errors": _products(made),
        "rows": rows,
    }


def _products(made: Calibration) -> dict[str, Any]:
    errors = list(made.errors.values())
    return {
        "median": float(f"{np.median(errors):.4g}"),
        "largest": float(f"{max(errors):.4g}"),
        "stay_exact": made.exact(),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Return the table in Markdown."""
    about = f"{found['frames']} frames, moved {found['moved_rms_mrad']} mrad"
    yield f"| {about} | rms mrad | max mrad | over moved |"
    yield "|---|---|---|---|"
    for row in found["rows"]:
        shown = f"{row['rms_mrad']:.2f} | {row['max_mrad']:.1f} | {100 * row['over_moved']:.3f} %"
        yield f"| {row['precision']} | {shown} |"
