"""What fewer evaluations of the action expert save on a GPU: captured stages of full-size random weights.

    python bench/evaluations.py [--kinds pi0 pi05] [--views 1 2 3] [--runs N]

Ten and five steps of Euler and of ab2 (docs/lab/solvers.md), exact and with fp8 in the prefix. Each way is
timed by replays of its graphs: the stages, and all of them from images to actions. Its chunk is compared with
that of plain torch in float32 by the same solver in as many steps, beside plain torch in bfloat16; so the
error is that of kernels and precision, not the solver's. Prints a table and writes
bench/results/evaluations.json. --small runs tiny models in float32 on a CPU to try the command; its figures
mean nothing and are written only to --out.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from full_size.command import measuring, new_document, place
from full_size.figures import summary, write
from full_size.gpu import alone, gpu_id
from grids.sizes import KINDS, config_of
from vla_accel_ros.engine.config import EXACT
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.flow.solver import AB2, EULER
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.subjects import Inputs, Ours, random_inputs, random_model, relative
from vla_accel_ros.tools.cli import finish
from vla_accel_ros.tools.tune.pieces import times_ms

PROMPT = 20
STAGES = ("encode", "prefill", "denoise", "total")


class Way(NamedTuple):
    """A solver, its number of evaluations, and a precision."""

    solver: str
    steps: int
    precision: str = EXACT

    def __str__(self) -> str:
        return f"{self.solver} {self.steps}" + ("" if self.precision == EXACT else f", {self.precision}")


WAYS = (Way(EULER, 10), Way(EULER, 5), Way(AB2, 10), Way(AB2, 5))
IN_FP8 = (Way(EULER, 10, "fp8"), Way(AB2, 5, "fp8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = measuring(__doc__, run, "evaluations")
    add = parser.add_argument
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3), help="numbers of cameras")
    add("--runs", type=int, default=200, help="replays of each stage (default: %(default)s)")
    return finish(parser, arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises RuntimeError without a CUDA device."""
    device, dtype, out = place(arguments)
    document = new_document(dtype, "weights 0, inputs 1", prompt=PROMPT, runs=arguments.runs)
    print(HEAD, flush=True)
    with alone(gpu_id(device)):
        for kind in arguments.kinds:
            for case in cases(kind, arguments, device, dtype):
                document["cases"].append(case)
                print(line(case), flush=True)
                if out is not None:
                    write(out / "evaluations.json", document)  # an interrupted run keeps its results
    return 0


def cases(
    kind: str, arguments: argparse.Namespace, device: torch.device, dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """Measure every way for each number of views."""
    config = config_of(kind, arguments.small)
    inputs = {views: random_inputs(config, views, PROMPT, device) for views in arguments.views}
    model = random_model(config, device)
    exact = {views: plain(model, given) for views, given in inputs.items()}
    model.set_precision(dtype)
    for views, given in inputs.items():
        rounded = plain(model, given)
        for way in WAYS if arguments.small else WAYS + IN_FP8:
            ours = Ours(model, given, way.steps, way.precision, solver=way.solver)
            parts, of = ours.parts(), (way.solver, way.steps)
            yield {
                "kind": kind,
                "views": views,
                "way": str(way),
                **{name: summary(taken_ms(parts[name], arguments.runs, device)) for name in STAGES},
                "to_float32": float(f"{relative(ours.actions, exact[views][of]):.4g}"),
                "plain_to_float32": float(f"{relative(rounded[of], exact[views][of]):.4g}"),
            }
            del ours, parts
            gc.collect()  # stages refer to each other
            torch.cuda.empty_cache()


@torch.inference_mode()
def plain(model: Pi, given: Inputs) -> dict[tuple[str, int], Tensor]:
    """The chunk [1, H, A] of plain torch for each solver and number of steps."""
    images = model.encode(given.images).flatten(0, 1)
    _, kv = model.prefix(torch.cat((images, model.embed_tokens(given.prompt)))[None])

    def velocity(x: Tensor, t: float) -> Tensor:
        return model.velocity(x, torch.full((1,), t, device=x.device), given.state, kv)

    made = dict[tuple[str, int], Tensor]()
    for way in WAYS:
        flow = sample(velocity, given.noise, way.steps, solver=way.solver)
        made[way.solver, way.steps] = flow.actions.clone()
    return made


def taken_ms(call: Callable[[], object], runs: int, device: torch.device) -> np.ndarray:
    """Milliseconds [runs] of each call by the device's clock; by the host's where there is no GPU."""
    if device.type == "cuda":
        return times_ms(call, runs)
    taken = list[float]()
    for _ in range(runs):
        began_s = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - began_s))
    return np.array(taken)


HEAD = (
    f"{'medians, ms':30}{'encode':>9}{'prefill':>9}{'denoise':>9}{'total':>9}{'p99':>9}"
    + f"{'error %':>9}{'plain %':>9}"
)


def line(case: dict[str, Any]) -> str:
    """Return a line of the table; errors in percent of float32."""
    name = f"{case['kind']}, {case['views']} view{'s' * (case['views'] > 1)}, {case['way']}"
    times = "".join(f"{case[stage]['p50_ms']:9.3f}" for stage in STAGES) + f"{case['total']['p99_ms']:9.3f}"
    errors = "".join(f"{100 * case[of]:9.2f}" for of in ("to_float32", "plain_to_float32"))
    return f"{name:30}{times}{errors}"


if __name__ == "__main__":
    sys.exit(main())
