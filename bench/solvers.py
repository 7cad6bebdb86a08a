"""Solvers of the flow: error against a fine integration, verified drafts, and success in closed loop.

    python bench/solvers.py [--parts errors drafts success] [--seeds N] [--processes N] [--small]

`errors` is `vla bench solvers` on the bundled policy, and later times beside it; `drafts` and `success` are
in simulation time. Prints tables as Markdown and writes each part to bench/results/solvers.json, with where
and when. `success` stores each finished episode in out/ and resumes from there.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parts import write
from solving import closed, later
from solving.closed import DEFAULT, Way

from handovers.episodes import CONDITIONS
from vla_accel_ros.models.flow.solver import AB2, SOLVERS
from vla_accel_ros.tools.bench import command
from vla_accel_ros.tools.bench.solvers import figures, lines
from vla_accel_ros.tools.options import chosen_contract, chosen_model, contract_option, model_option

ROOT = Path(__file__).parents[1]
DRAFT = 0.3
TOLERANCES = (0.1, DRAFT)
WAYS = (DEFAULT, Way(AB2, 5))
FURTHER = (Way(AB2, 4), Way(DEFAULT.solver, DEFAULT.steps, DRAFT))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    add("--frames", type=int, default=60, help="observations of errors (default: %(default)s)")
    add("--runs", type=int, default=0, help="chunks of errors that are timed (default: none)")
    add("--drafted", type=int, default=4, help="episodes a condition of drafts (default: %(default)s)")
    add("--seeds", type=int, default=200, help="episodes a condition of success (default: %(default)s)")
    add("--few", type=int, default=12, help="the same of further ways (default: %(default)s)")
    add("--processes", type=int, default=1, help="that play episodes (default: %(default)s)")
    add("--small", action="store_true", help="a few seconds of everything, to see that it runs")
    add("--out", type=Path, default=ROOT / "bench" / "results" / "solvers.json", help="the JSON")
    add("--log", type=Path, default=ROOT / "out" / "solvers.jsonl", help="the episodes of success")
    model_option(parser)
    contract_option(parser)
    arguments = parser.parse_args()
    if arguments.small:
        arguments.frames, arguments.drafted, arguments.seeds = 2, 1, 1
        arguments.few = 1
    for part in arguments.parts:
        write(arguments.out, part, PARTS[part](arguments))


def of_errors(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of every solver and number of steps, and of later times."""
    few = (5,) if arguments.small else command.STEPS
    given = {"bag": None, "solvers": list(SOLVERS), "steps": list(few), "runs": arguments.runs}
    wanted = argparse.Namespace(**vars(arguments) | given, device="cpu", dtype=None)
    found = command.measure(wanted, later.ways())
    print("\n".join(lines(found)), flush=True)
    return found


def of_drafts(arguments: argparse.Namespace) -> dict[str, Any]:
    """The share of drafts accepted within other tolerances, and the distance of the chunk from the ordinary
    one."""
    rows = []
    for tolerance in TOLERANCES[-1:] if arguments.small else TOLERANCES:
        way = Way(DEFAULT.solver, DEFAULT.steps, tolerance)
        counts = closed.drafted(way, chosen_model(arguments), chosen_contract(arguments), arguments.drafted)
        row = {"tolerance": tolerance, **counts.as_dict(way.steps), "error": figures(counts.errors)}
        print(row, flush=True)
        rows.append(row)
    return {"episodes": len(CONDITIONS) * arguments.drafted, "rows": rows}


def of_success(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the bundled policy in closed loop."""
    where = chosen_model(arguments), chosen_contract(arguments)
    ways = dict.fromkeys(WAYS, arguments.seeds) | dict.fromkeys(FURTHER, arguments.few)
    cells = closed.play(ways, *where, arguments.processes, arguments.log)
    rows = closed.summary(cells)
    print("\n".join(closed.lines(rows)), flush=True)
    return {"family": closed.FAMILY, "timing": asdict(closed.TIMING), "rows": rows}


PARTS = {"errors": of_errors, "drafts": of_drafts, "success": of_success}

if __name__ == "__main__":
    main()
