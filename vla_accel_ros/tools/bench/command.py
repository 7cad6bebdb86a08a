"""`vla bench`: measurements of a GPU, and of a checkpoint on observations of a bag or the simulated arm."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vla_accel_ros.models.flow.solver import SOLVERS
from vla_accel_ros.tools.bench import device as gpu
from vla_accel_ros.tools.options import (
    chosen_contract,
    chosen_device,
    chosen_model,
    compute_options,
    contract_option,
    model_option,
    namespace_option,
    output_file,
    subcommand,
    training_option,
    write_figures,
)

STEPS = (3, 4, 5, 6, 8, 10)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    bench = subparsers.add_parser(
        "bench", help="measure this GPU, or the solvers of a checkpoint", description=__doc__
    )
    subjects = bench.add_subparsers(title="what", required=True, metavar="WHAT", dest="what")
    gpu.add_options(
        subcommand(
            subjects,
            "device",
            "check every kernel on this GPU, time the stages, compare with the plan: five minutes, one JSON",
            gpu.run,
        )
    )
    parser = subcommand(
        subjects,
        "solvers",
        "error and time of each solver and number of denoising steps (docs/lab/solvers.md)",
        run,
    )
    model_option(parser)
    training_option(parser)
    contract_option(parser)
    add = parser.add_argument
    add("--bag", type=Path, help="bag with observations and their checkpoint (default: the simulated arm's)")
    namespace_option(parser, in_bag=True)
    add("--frames", type=int, default=60, help="observations (default: %(default)s)")
    add("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS), help="(default: all)")
    add("--steps", nargs="+", type=int, default=list(STEPS), help="(default: 3 4 5 6 8 10)")
    add("--runs", type=int, default=20, help="timed chunks of each row, 0 = none (default: %(default)s)")
    compute_options(parser)
    add("--out", type=output_file, metavar="FILE", help="JSON to write (default: none)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Raises ValueError if an option or the checkpoint does not allow the
    measurement."""
    from vla_accel_ros.tools.bench.solvers import lines

    document = measure(arguments)
    print("\n".join(lines(document)))
    write_figures(document, arguments.out)
    return 0


def measure(arguments: argparse.Namespace, further: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the document, without provenance. further: additional integrators, see tools.bench.solvers."""
    import torch

    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.engine.config import EngineConfig
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy
    from vla_accel_ros.tools.bench import solvers
    from vla_accel_ros.tools.bench.observations import recorded, simulated
    from vla_accel_ros.types import Observation

    if arguments.frames < 1 or arguments.runs < 0:
        raise ValueError(
            f"--frames is {arguments.frames} and --runs {arguments.runs}; give at least 1 and 0."
        )
    torch.set_num_threads(1)  # as in an engine
    device, dtype = chosen_device(arguments)
    if arguments.bag is None:
        observations, model = list[Observation](), chosen_model(arguments)
        contract = Contract.load(chosen_contract(arguments))
    else:
        observations, model, contract = recorded(arguments.bag, arguments.frames, arguments.namespace)
        model = arguments.model or model
    policy = load_policy(model, device, dtype, contract.delta_mask, trained_as=arguments.trained_as)
    rule = policy.time_rule if policy.chain.acts == "denoise" else ""
    integrators = solvers.ways(arguments.solvers, arguments.steps, rule) if rule else {}
    if not observations and rule:
        engine = Engine(policy, step_dt_s=contract.chunk.step_dt_s)
        observations = simulated(engine, contract, arguments.frames)
    measured = solvers.errors(policy, observations, {**integrators, **(further or {})})
    document = {"model": Path(model).name, "dtype": str(dtype).removeprefix("torch."), **measured}
    if not arguments.runs:
        return document
    pairs = [(solver, steps) for solver in arguments.solvers for steps in arguments.steps]
    default = EngineConfig.solver, EngineConfig.steps
    times_ms = solvers.times_ms(policy, observations[0], dict.fromkeys((default, *pairs)), arguments.runs)
    for row in document["ways"]:
        row["ms"] = times_ms.get(row["way"])
    return document
