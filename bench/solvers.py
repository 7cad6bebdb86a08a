"""Solvers of the flow: error against a fine integration, and success in closed loop.

    python bench/solvers.py [--parts errors success] [--seeds N] [--processes N]

`errors` is `vla bench solvers` on the bundled policy; `success` is in simulation time
(shared/closed_loop.py): it keeps each finished episode in out/ and resumes from there. Drafts and later
times, of which the file has figures, were experiments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from run import Bench, Given, Row, main
from shared import closed_loop
from shared.closed_loop import Way, ways_compared
from vla_accel_ros.models.flow.solver import AB2, SOLVERS
from vla_accel_ros.tools.bench import command

WAYS = {Way(steps=10): 200, Way(AB2, 5): 200, Way(AB2, 4): 12}
"""Episodes of each way in each condition."""


def options(add: Callable[..., Any]) -> None:
    closed_loop.options(add)
    add("--frames", type=int, default=60, help="observations of errors (default: %(default)s)")
    add("--runs", type=int, default=0, help="chunks of errors that are timed (default: none)")


def errors(given: Given) -> Row:
    """Of every solver and number of steps."""
    steps = [5] if given.small else list(command.STEPS)
    arguments = {"bag": None, "solvers": list(SOLVERS), "steps": steps, "device": "cpu", "dtype": None}
    arguments["trained_as"] = ""
    return {"errors": command.measure(argparse.Namespace(**vars(given) | arguments), {})}


def success(given: Given) -> Row:
    """Of the bundled policy in closed loop."""
    return {"success": ways_compared(WAYS, given, "solvers")}


BENCH = Bench(
    "solvers", parts={"errors": errors, "success": success}, options=options, small=True,
    smoke="--small --frames 2 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
