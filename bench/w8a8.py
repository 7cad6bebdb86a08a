"""What int8 x int8 products (precision w8a8) do to actions, without a calibration and with one.

    python bench/w8a8.py [--parts errors outliers predicted success] [--seeds N] [--processes N] [--small]

The bundled policy's calibration is made on demonstrations whose scenes nothing else here has. `errors`: its
actions on frames of the simulation against the plain network's. `outliers`: stages of random weights with
columns of outliers (eight_bits/outliers.py) against the same in float32; on a CPU of a part of the
published size, on a GPU of the whole (--full). `success`: in closed loop, see solving/closed.py; each episode
is kept as it comes in out/, and goes on from there. `predicted`: times by `vla plan`, nothing is measured. On
a CPU all is computed by the kernels' references, whose sums are as exact as the kernels'. Prints tables and
writes each part to bench/results/w8a8.json, with where and when.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eight_bits import errors, outliers, predicted
from solvers import write
from solving import closed
from solving.closed import DEFAULT, Way

from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option

ROOT = Path(__file__).parents[1]
CALIBRATION = "out/w8a8_calibration.safetensors"
W8A8 = Way(DEFAULT.solver, DEFAULT.steps, precision="w8a8")
CALIBRATED = Way(DEFAULT.solver, DEFAULT.steps, precision="w8a8", calibration=CALIBRATION)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    add("--frames", type=int, default=48, help="observations of errors (default: %(default)s)")
    add(
        "--calibrated-on", type=int, default=64, help="observations of the calibration (default: %(default)s)"
    )
    add("--draws", type=int, default=3, help="of random weights (default: %(default)s)")
    add("--full", action="store_true", help="outliers: pi0 and pi0.5 of their published sizes")
    add("--seeds", type=int, default=200, help="episodes a condition of success (default: %(default)s)")
    add("--few", type=int, default=200, help="the same without a calibration (default: %(default)s)")
    add("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
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
        write(arguments.out, part, PARTS[part](arguments))


def of_errors(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy's actions."""
    path = _calibrated(arguments)
    found = errors.measure(chosen_model(arguments), path, arguments.frames)
    print("\n".join(errors.lines(found)), flush=True)
    return {"calibrated_on": arguments.calibrated_on, **found}


def of_outliers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of random weights."""
    found = outliers.measure(arguments.draws, arguments.full, arguments.small)
    print("\n".join(outliers.lines(found)), flush=True)
    return found


def of_predicted(arguments: argparse.Namespace) -> dict[str, Any]:
    """By `vla plan`."""
    found = predicted.measure()
    print("\n".join(predicted.lines(found)), flush=True)
    return found


def of_success(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy in closed loop."""
    _calibrated(arguments)
    where = chosen_model(arguments), chosen_contract(arguments)
    ways = {DEFAULT: arguments.seeds, CALIBRATED: arguments.seeds, W8A8: arguments.few}
    cells = closed.play(ways, *where, arguments.processes, arguments.log)
    rows = closed.summary(cells)
    print("\n".join(closed.lines(rows)), flush=True)
    return {"family": closed.FAMILY, "timing": asdict(closed.TIMING), "rows": rows}


def _calibrated(arguments: argparse.Namespace) -> Path:
    """The file for the bundled policy, made if it is not there."""
    path = ROOT / CALIBRATION
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        errors.calibrate(chosen_model(arguments), path, arguments.calibrated_on)
    return path


PARTS = {"errors": of_errors, "outliers": of_outliers, "predicted": of_predicted, "success": of_success}

if __name__ == "__main__":
    main()
