"""The effect of products of 8-bit rows (precision w8a8) on actions, calibrated and not.

    python bench/w8a8.py [--parts errors outliers success ...] [--seeds N] [--processes N] [--small]
    python bench/w8a8.py --parts record      # where the simulation is: what the parts on a GPU need, in out/
    python bench/w8a8.py --parts errors_gpu success_gpu [--mujoco FOLDER]      # on a GPU

The bundled policy is calibrated on demonstrations whose scenes are used for nothing else here.
errors: its actions on frames of the simulation against the plain network's in float32.
outliers: stages with random weights and outlier columns (eight_bits/outliers.py) against float32; on a CPU a
    part of the published size, on a GPU all of it (--full).
success: closed loop (shared/closed_loop.py), keeps each finished episode in out/ and resumes from there.
errors_gpu: actions with this GPU's kernels in captured stages, on observations of `record`, against its exact
    engine and the plain network in float32; needs neither the simulation nor ROS.
success_gpu: closed loops with the policy on the GPU, exact and in 8 bits; the simulation needs mujoco, which
    may be a folder of unpacked wheels.

On a CPU the kernels' references compute everything. Times on other devices: `vla plan`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eight_bits import outliers
from run import Bench, Given, Row, main, scratch
from shared.actions import STEP_DT_S, apart, chunks, frames, moved_rms_mrad, record, recorded
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.calibration import Calibration, read
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools.calibrate import seen
from vla_accel_ros.tools.options import chosen_model

SCENES = 2_000_000
"""Scenes of the calibration are numbered from here; all others from 0, those of training from a million."""
CALIBRATION, OBSERVATIONS = "w8a8_calibration.safetensors", "w8a8_observations.npz"


def options(add: Callable[..., Any]) -> None:
    from shared import closed_loop

    closed_loop.options(add)
    add("--frames", type=int, default=48, help="observations of errors (default: %(default)s)")
    add(
        "--calibrated-on", type=int, default=64, help="observations of the calibration (default: %(default)s)"
    )
    add("--draws", type=int, default=3, help="of random weights (default: %(default)s)")
    add("--kinds", nargs="+", default=("pi0", "pi05"), choices=("pi0", "pi05"), help="of random weights")
    add("--dtypes", nargs="+", default=("bfloat16", "float32"), help="of errors_gpu (default: both)")
    add("--full", action="store_true", help="outliers: pi0 and pi0.5 of their published sizes")
    add("--mujoco", type=Path, help="success_gpu: folder of unpacked wheels (default: as installed)")


def calibration_of(given: Given) -> Path:
    """The calibration file of the bundled policy, made if it does not exist."""
    path = scratch(given) / CALIBRATION
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        seen.calibrate(load_policy(chosen_model(given)), list(frames(given.calibrated_on, SCENES))).write(
            path
        )
    return path


def errors(given: Given) -> Row:
    """Of the bundled policy's actions."""
    torch.set_num_threads(1)
    path = calibration_of(given)
    policy, observations = load_policy(chosen_model(given)), list(frames(given.frames))
    states = np.stack([observation.state for observation in observations])[:, None]
    exact = chunks(Engine(policy, step_dt_s=STEP_DT_S), observations)
    rows = []
    for name, precision in ways(path, ("exact", "int8")).items():
        engine = Engine(policy, step_dt_s=STEP_DT_S, fast=True, **precision)
        row = apart(chunks(engine, observations), exact, states)
        rows.append({"precision": name, **row, "copies_mb": float(f"{engine.runner.copied_bytes / 1e6:.4g}")})
    calibration = read(path, policy.model)
    return {
        "errors": {
            "calibrated_on": given.calibrated_on,
            "frames": given.frames,
            "moved_rms_mrad": moved_rms_mrad(exact, states),
            "product_errors": _products(calibration),
            "rows": rows,
        }
    }


def ways(calibration: Path, others: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The engine options of each row, by its name."""
    options: dict[str, dict[str, Any]] = {name: {"precision": name} for name in (*others, "w8a8")}
    return {**options, "w8a8, calibrated": {"precision": "w8a8", "calibration": str(calibration)}}


def _products(calibration: Calibration) -> Row:
    errors = list(calibration.errors.values())
    rounded = {"median": float(f"{np.median(errors):.4g}"), "largest": float(f"{max(errors):.4g}")}
    return {**rounded, "stay_exact": calibration.exact()}


def errors_gpu(given: Given) -> Row:
    """Of the bundled policy's actions by the kernels, in each dtype. A way that the device refuses or fails
    at has the reason in its row. Raises ValueError without the files of `record`."""
    calibration_file, observations_file = scratch(given) / CALIBRATION, scratch(given) / OBSERVATIONS
    for path in (calibration_file, observations_file):
        if not path.exists():
            raise ValueError(f"{path} is not there: make it with --parts record where the simulation is.")
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    observations = recorded(observations_file, given.frames)
    states = np.stack([observation.state for observation in observations])[:, None]
    plain = load_policy(chosen_model(given), device, torch.float32)
    expected = chunks(Engine(plain, step_dt_s=STEP_DT_S), observations)
    rows: list[Row] = []
    for dtype in given.dtypes:
        policy = load_policy(chosen_model(given), device, getattr(torch, dtype))
        exact = None
        for name, precision in ways(calibration_file, ("exact", "fp8")).items():
            row: Row = {"dtype": dtype, "precision": name}
            try:
                engine = Engine(policy, step_dt_s=STEP_DT_S, fast=True, **precision)
                actions = chunks(engine, observations)
            except Exception as fault:  # whatever a compiler, a driver or a library says
                if exact is None:
                    raise
                rows.append({**row, "refused": f"{type(fault).__name__}: {fault}".splitlines()[0]})
                print(f"{dtype}, {name}: {rows[-1]['refused']}", flush=True)
                continue
            exact = actions if exact is None else exact
            row |= {"to_exact": apart(actions, exact, states), "to_float32": apart(actions, expected, states)}
            row |= {
                "captured": device.type == "cuda",
                "copies_mb": round(engine.runner.copied_bytes / 1e6, 2),
            }
            rows.append(row)
            print(f"{dtype}, {name}: {row['to_exact']}", flush=True)
            del engine
    calibration = read(calibration_file, plain.model)
    return {
        "errors_gpu": {
            "calibrated_on": given.calibrated_on,
            "computed by": "the kernels" if device.type == "cuda" else "the kernels' references on a CPU",
            "frames": len(observations),
            "moved_rms_mrad": moved_rms_mrad(expected, states),
            "stay_exact": calibration.exact(),
            "rows": rows,
        }
    }


def record_files(given: Given) -> Row:
    """Record what errors_gpu and success_gpu need from the simulation."""
    record(scratch(given) / OBSERVATIONS, given.frames)
    print(f"written: {calibration_of(given)}, {scratch(given) / OBSERVATIONS}", flush=True)
    return {}


def success(given: Given) -> Row:
    """Of the bundled policy in closed loop."""
    from shared.closed_loop import Way, ways_compared

    calibrated = Way(steps=10, precision="w8a8", calibration=str(calibration_of(given)))
    compared = {Way(steps=10): 200, calibrated: 200, Way(steps=10, precision="w8a8"): 200}
    return {"success": ways_compared(compared, given, "w8a8")}


def success_gpu(given: Given) -> Row:
    """The bundled policy in closed loop, on a GPU if there is one."""
    if given.mujoco is not None:
        folder = str(given.mujoco.resolve())
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), folder])
    os.environ.setdefault("MUJOCO_GL", "egl")
    from shared.closed_loop import Way, ways_compared

    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact, small = (
        Way(steps=10, precision=precision, calibration=calibration, device=device)
        for precision, calibration in (("exact", ""), ("w8a8", str(scratch(given) / CALIBRATION)))
    )
    return {"success_gpu": ways_compared({exact: 200, small: 200}, given, "w8a8_gpu")}


def of_outliers(given: Given) -> Row:
    """Of random weights."""
    return {"outliers": outliers.measure(given.draws, given.full, given.small, given.kinds)}


BENCH = Bench(
    "w8a8",
    parts={
        "errors": errors,
        "outliers": of_outliers,
        "success": success,
        "record": record_files,
        "errors_gpu": errors_gpu,
        "success_gpu": success_gpu,
    },
    normally=("errors", "outliers", "success"),
    options=options,
    small=True,
    smoke="--small --parts errors outliers record errors_gpu --frames 2 --calibrated-on 2 --draws 1 "
    "--kinds pi05",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
