"""The error of the actions with fewer bits, and the time and memory that they save.

    python bench/precision.py [--subjects bundled random] [--kinds pi0 pi05] [--views 2]

Two subjects. `bundled`: the demo policy on frames from the middle of simulated tasks; its actions are
compared with those of the plain network in float32, in milliradians and relative to how far they move, and
the bundled tasks are played with each precision, in simulated time, by the CPU. It
runs anywhere; on a CPU with the kernels' references, whose times would say nothing and are not taken.
`random`: pi0 and pi0.5 at full size with random weights on a GPU, with times. Random weights have no outlier
channels, which cost trained ones the most; the demo policy is trained, but small. --model takes another
policy of the same contract. Each subject has a file, precision_SUBJECT.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from run import Bench, Given, Row, main, write
from shared.actions import STEP_DT_S, chunks, frames, moved_rms_mrad
from shared.closed_loop import bundled_success
from shared.subjects import plain, relative
from shared.timing import allocated_by, kernels_of, summary
from tables.forms import RESULTS
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.precision import check
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.config import PI0, PI05
from vla_accel_ros.planning.work import ENGINE_PRECISIONS as PRECISIONS
from vla_accel_ros.tools.bench.subjects import Ours, random_inputs, random_model
from vla_accel_ros.tools.options import chosen_model, contract_option, model_option
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.tune.pieces import times_ms

KINDS = {"pi0": PI0, "pi05": PI05}
STAGES = ("encode", "prefill", "denoise", "total")


def options(add: Callable[..., Any]) -> None:
    subjects = ("bundled", "random") if torch.cuda.is_available() else ("bundled",)
    add("--subjects", nargs="+", choices=("bundled", "random"), default=subjects, help="random only on a GPU")
    add("--frames", type=int, default=48, help="of the simulation (default: %(default)s)")
    add(
        "--episodes",
        type=int,
        default=10,
        help="of each task family, of bundled, 0 for none (default: %(default)s)",
    )
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS), help="of random")
    add("--precisions", nargs="+", choices=PRECISIONS, help="exact first (default: all that the device has)")
    add("--views", nargs="+", type=int, default=(2,), help="numbers of cameras, of random")
    add("--runs", type=int, default=100, help="replays of each (default: %(default)s)")
    parser: Any = add.__self__  # type: ignore[attr-defined]
    model_option(parser)
    contract_option(parser)


def measure(given: Given) -> Iterator[Row]:
    """A row for each subject, model and precision. Raises RuntimeError for random without a CUDA device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "random" in given.subjects and device.type != "cuda":
        raise RuntimeError("full-size models are measured on a GPU, and torch sees no CUDA device here.")
    folder, given.file = (RESULTS if given.file is None else given.file.parent), None
    for subject in given.subjects:
        document: Row = {**provenance(), "cases": []}
        for row in (bundled if subject == "bundled" else random)(given, device, document):
            document["cases"].append(row)
            write(folder / f"precision_{subject}.json", document)
            yield row


def bundled(given: Given, device: torch.device, document: Row) -> Iterator[Row]:
    """A policy on frames of the simulation, in float32 and in bfloat16."""
    torch.set_num_threads(1)
    observations = list(frames(given.frames))
    states = np.stack([observation.state for observation in observations])[:, None]
    policy = load_policy(chosen_model(given), device, torch.float32)
    exact = chunks(Engine(policy, step_dt_s=STEP_DT_S), observations)
    moved = np.linalg.norm(exact - states)
    on_cpu = "the kernels' references on a CPU, no times"
    document["computed by"] = "the kernels" if device.type == "cuda" else on_cpu
    document |= {"frames": given.frames, "moved_rms_mrad": moved_rms_mrad(exact, states)}
    for dtype in (torch.float32, torch.bfloat16):
        policy = load_policy(chosen_model(given), device, dtype)
        same = None
        for precision in _possible(given, device, dtype):
            engine = Engine(policy, step_dt_s=STEP_DT_S, fast=True, precision=precision)
            actions = chunks(engine, observations)
            same = actions if same is None else same
            error = actions - exact
            case = {
                "dtype": str(dtype).removeprefix("torch."),
                "precision": precision,
                "rms_mrad": 1e3 * float(np.sqrt(np.mean(error**2))),
                "max_mrad": 1e3 * float(np.abs(error).max()),
                "to_float32": float(np.linalg.norm(error) / moved),
                "to_exact": float(np.linalg.norm(actions - same) / moved),
                "copies_mb": engine.runner.copied_bytes / 1e6,
            }
            if given.episodes and dtype == torch.float32:
                case["success"] = bundled_success(given, engine.config.steps, precision)
            yield {name: _rounded(value) for name, value in case.items()}


def _possible(given: Given, device: torch.device, dtype: torch.dtype) -> list[str]:
    """The precisions that are asked for, or all of which the device and the dtype have products."""
    if given.precisions:
        return list(given.precisions)
    possible = []
    for precision in PRECISIONS:
        with suppress(ValueError):
            check(precision, True, device, dtype)
            possible.append(precision)
    return possible


def random(given: Given, device: torch.device, document: Row) -> Iterator[Row]:
    """Full-size models of random weights: stage times, errors, bytes."""
    document |= {"dtype": "bfloat16", "prompt": 20, "runs": given.runs}
    for kind in given.kinds:
        config = KINDS[kind]
        inputs = {views: random_inputs(config, views, 20, device) for views in given.views}
        model = random_model(config, device)
        with torch.inference_mode():
            exact = {views: plain(model, frames_of)().clone() for views, frames_of in inputs.items()}
        model.set_precision(torch.bfloat16)
        torch.cuda.empty_cache()
        for views, frames_of in inputs.items():
            with torch.inference_mode():
                error = relative(plain(model, frames_of)(), exact[views])
            same = None
            for precision in _possible(given, device, torch.bfloat16):
                ours = Ours(model, frames_of, precision=precision)
                same = ours.actions if same is None else same
                parts = ours.parts()
                yield {
                    "kind": kind,
                    "views": views,
                    "precision": precision,
                    **{stage: summary(times_ms(parts[stage], given.runs)) for stage in STAGES},
                    "to_float32": _rounded(relative(ours.actions, exact[views])),
                    "to_exact": _rounded(relative(ours.actions, same)),
                    "plain_bfloat16_to_float32": _rounded(error),
                    "copies_bytes": copied_bytes(ours),
                    "kernels": kernels_of(parts["total"]),
                    "allocated_bytes": allocated_by(parts["total"]),
                }
                del ours, parts
                torch.cuda.empty_cache()


def copied_bytes(ours: Ours) -> int:
    """Bytes of the weights that the stages have in fewer bits."""
    stages = ours.stages
    return stages.small.nbytes + (0 if stages.int8 is None else stages.int8.nbytes)


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


BENCH = Bench("precision", measure, options, smoke="--subjects bundled --frames 2 --episodes 0")

if __name__ == "__main__":
    sys.exit(main(BENCH))
