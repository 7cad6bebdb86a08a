"""What fewer evaluations of the action expert save on a GPU: captured stages of full-size random weights.

    python bench/evaluations.py [--kinds pi0 pi05] [--views 1 2 3] [--runs N]

Ten and five steps of Euler and of ab2 (docs/lab/solvers.md), exact and with fp8 in the prefix. Each way is
timed by replays of its graphs: the stages, and all of them from images to actions. Its chunk is compared with
that of plain torch in float32 by the same solver in as many steps, beside plain torch in bfloat16; so the
error is that of kernels and precision, not the solver's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from run import Bench, Given, Row, main
from shared.models import KINDS, config_of
from shared.timing import by_events, summary
from vla_accel_ros.engine.config import EXACT
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.flow.solver import AB2, EULER
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.subjects import Inputs, Ours, random_inputs, random_model, relative
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


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3), help="numbers of cameras")
    add("--runs", type=int, default=200, help="replays of each stage (default: %(default)s)")


def measure(given: Given) -> Iterator[Row]:
    """Measure every way for each model and number of views."""
    for kind in given.kinds:
        config = config_of(kind, given.small)
        inputs = {views: random_inputs(config, views, PROMPT, given.device) for views in given.views}
        model = random_model(config, given.device)
        exact = {views: plain(model, frames) for views, frames in inputs.items()}
        model.set_precision(given.dtype)
        for views, frames in inputs.items():
            rounded = plain(model, frames)
            for way in WAYS if given.small else WAYS + IN_FP8:
                ours = Ours(model, frames, way.steps, way.precision, solver=way.solver)
                parts, of = ours.parts(), (way.solver, way.steps)
                yield {
                    "kind": kind,
                    "views": views,
                    "way": str(way),
                    **{name: summary(times_of(parts[name], given.runs, given.device)) for name in STAGES},
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


def times_of(call: Callable[[], object], runs: int, device: torch.device) -> np.ndarray:
    """Milliseconds [runs] of each call by the device's clock; by the host's where there is no GPU."""
    if device.type == "cuda":
        return times_ms(call, runs)
    return 1e3 * np.array([by_events(call, device) for _ in range(runs)])


BENCH = Bench(
    "evaluations",
    measure,
    options,
    about={"prompt": PROMPT, "seeds": "weights 0, inputs 1"},
    gpu=True,
    smoke="--small --kinds pi0 --views 2 --runs 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
