"""The effect of products of 8-bit rows (precision w8a8) on actions, calibrated and not.

    python bench/w8a8.py [--parts errors outliers predicted ...] [--seeds N] [--processes N] [--small]
    python bench/w8a8.py --parts record      # where the simulation is: what the parts on a GPU need, in out/
    python bench/w8a8.py --parts errors_gpu success_gpu [--mujoco FOLDER]      # on a GPU

The bundled policy is calibrated on demonstrations whose scenes are used for nothing else here.
errors: its actions on frames of the simulation against the plain network's.
outliers: stages with random weights and outlier columns (eight_bits/outliers.py) against float32; on a CPU a
    part of the published size, on a GPU all of it (--full).
success: closed loop, see solving/closed.py; stores each finished episode in out/ and resumes from there.
predicted, and frontier for an Orin: times by `vla plan`; nothing is measured.
errors_gpu: actions with this GPU's kernels in captured stages, on observations of `record`, against its exact
    engine; needs neither the simulation nor ROS.
success_gpu: closed loops with the policy on the GPU, exact and in 8 bits; the simulation needs mujoco, which
    may be a folder of unpacked wheels.

On a CPU the kernels' references compute everything. Prints tables and writes each part to
bench/results/w8a8.json, with where and when.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parts import write

from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option

ROOT = Path(__file__).parents[1]
CALIBRATION = "out/w8a8_calibration.safetensors"
OBSERVATIONS = "out/w8a8_observations.npz"
NORMALLY = ("errors", "outliers", "predicted", "frontier", "success")
"""Parts that need no other machine."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=NORMALLY, help=f"(default: {' '.join(NORMALLY)})")
    add("--frames", type=int, default=48, help="observations of errors (default: %(default)s)")
    add(
        "--calibrated-on", type=int, default=64, help="observations of the calibration (default: %(default)s)"
    )
    add("--draws", type=int, default=3, help="of random weights (default: %(default)s)")
    add("--kinds", nargs="+", default=("pi0", "pi05"), choices=("pi0", "pi05"), help="of random weights")
    add("--dtypes", nargs="+", default=("bfloat16", "float32"), help="of errors_gpu (default: both)")
    add("--full", action="store_true", help="outliers: pi0 and pi0.5 of their published sizes")
    add("--seeds", type=int, default=200, help="episodes a condition of success (default: %(default)s)")
    add("--few", type=int, default=200, help="the same without a calibration (default: %(default)s)")
    add("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    add("--mujoco", type=Path, help="success_gpu: folder of unpacked wheels (default: as installed)")
    add("--small", action="store_true", help="a few seconds of everything, to see that it runs")
    add("--out", type=Path, default=ROOT / "bench" / "results" / "w8a8.json", help="the JSON")
    add("--log", type=Path, default=ROOT / "out" / "w8a8.jsonl", help="the episodes of success")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    if arguments.small:
        arguments.frames, arguments.calibrated_on, arguments.draws = 2, 2, 1
        arguments.seeds = arguments.few = 1
    for part in arguments.parts:
        if (found := PARTS[part](arguments)) is not None:
            write(arguments.out, part, found)


def of_errors(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy's actions."""
    from eight_bits import errors

    path = _calibrated(arguments)
    found = errors.measure(chosen_model(arguments), path, arguments.frames)
    print("\n".join(errors.lines(found)), flush=True)
    return {"calibrated_on": arguments.calibrated_on, **found}


def of_outliers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of random weights."""
    from eight_bits import outliers

    found = outliers.measure(arguments.draws, arguments.full, arguments.small, arguments.kinds)
    print("\n".join(outliers.lines(found)), flush=True)
    return found


def of_predicted(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times predicted by `vla plan`."""
    from eight_bits import predicted

    found = predicted.measure()
    print("\n".join(predicted.lines(found)), flush=True)
    return found


def of_frontier(arguments: argparse.Namespace) -> dict[str, Any]:
    """An Orin, predicted by `vla plan`."""
    from eight_bits import frontier

    found = frontier.measure()
    print("\n".join(frontier.lines(found)), flush=True)
    return found


def of_success(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy in closed loop."""
    from solving.closed import DEFAULT, Way

    _calibrated(arguments)
    calibrated = Way(DEFAULT.solver, DEFAULT.steps, precision="w8a8", calibration=CALIBRATION)
    plain = Way(DEFAULT.solver, DEFAULT.steps, precision="w8a8")
    return _played(
        arguments, {DEFAULT: arguments.seeds, calibrated: arguments.seeds, plain: arguments.few}, DEFAULT
    )


def record(arguments: argparse.Namespace) -> None:
    """Record what errors_gpu and success_gpu need from the simulation: calibration and observations, in
    out/."""
    from eight_bits import kernels

    _calibrated(arguments)
    kernels.record(ROOT / OBSERVATIONS, arguments.frames)
    print(f"written: {CALIBRATION}, {OBSERVATIONS}", flush=True)


def of_errors_gpu(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy's actions by the kernels."""
    from eight_bits import kernels

    for name in (CALIBRATION, OBSERVATIONS):
        if not (ROOT / name).exists():
            raise SystemExit(f"{name} is not there: make it with --parts record where the simulation is.")
    observations = kernels.recorded(ROOT / OBSERVATIONS, arguments.frames)
    where = chosen_model(arguments), ROOT / CALIBRATION
    found = kernels.measure(*where, observations, arguments.dtypes)
    print("\n".join(kernels.lines(found)), flush=True)
    return {"calibrated_on": arguments.calibrated_on, **found}


def of_success_gpu(arguments: argparse.Namespace) -> dict[str, Any]:
    """The bundled policy in closed loop, on a GPU if there is one."""
    if arguments.mujoco is not None:
        folder = str(arguments.mujoco.resolve())
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), folder])
    os.environ.setdefault("MUJOCO_GL", "egl")
    import torch
    from solving.closed import DEFAULT, Way

    device = "cuda" if torch.cuda.is_available() else "cpu"

    exact, small = (
        Way(DEFAULT.solver, DEFAULT.steps, precision=precision, calibration=calibration, device=device)
        for precision, calibration in (("exact", ""), ("w8a8", CALIBRATION))
    )
    arguments.log = arguments.log.with_name(f"{arguments.log.stem}_gpu{arguments.log.suffix}")
    return _played(arguments, dict.fromkeys((exact, small), arguments.seeds), exact)


def _played(arguments: argparse.Namespace, ways: dict[Any, int], default: Any) -> dict[str, Any]:
    from solving import closed

    where = chosen_model(arguments), chosen_contract(arguments)
    rows = closed.summary(closed.play(ways, *where, arguments.processes, arguments.log), default)
    print("\n".join(closed.lines(rows)), flush=True)
    return {"family": closed.FAMILY, "timing": asdict(closed.TIMING), "rows": rows}


def _calibrated(arguments: argparse.Namespace) -> Path:
    """The calibration file of the bundled policy, made if it does not exist."""
    from eight_bits import errors

    path = ROOT / CALIBRATION
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        errors.calibrate(chosen_model(arguments), path, arguments.calibrated_on)
    return path


PARTS = {
    "errors": of_errors,
    "outliers": of_outliers,
    "predicted": of_predicted,
    "frontier": of_frontier,
    "success": of_success,
    "record": record,
    "errors_gpu": of_errors_gpu,
    "success_gpu": of_success_gpu,
}

if __name__ == "__main__":
    main()
