"""`vla calibrate`: make the file with which products of 8-bit rows are more exact, of recorded observations.

The plain network runs on observations of a bag, of a LeRobot dataset or of the simulated arm. The file says,
for each product, how large the columns of its inputs become, and how far off it is in 8 bits; those above
--most-error will stay exact (docs/lab/precision.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.tools.options import (
    chosen_contract,
    chosen_device,
    compute_options,
    contract_option,
    namespace_option,
    output_file,
    subcommand,
    training_option,
)

WORST = 5


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    description = "measure the activations of a checkpoint, for 8-bit products"
    parser = subcommand(subparsers, "calibrate", description, run)
    add = parser.add_argument
    add("checkpoint", type=Path, help="the checkpoint's folder")
    add("source", type=Path, nargs="?", help="a bag or a LeRobot dataset (default: the simulated arm)")
    add(
        "--out",
        type=output_file,
        required=True,
        metavar="FILE",
        help="file to write, such as calibration.safetensors",
    )
    add("--frames", type=int, default=64, help="observations (default: %(default)s)")
    add(
        "--alpha", type=float, default=0.5, help="of the load moved to weights, 0 to 1 (default: %(default)s)"
    )
    add(
        "--most-error",
        type=float,
        default=0.05,
        help="largest relative error of an 8-bit product, above which it stays exact (default: %(default)s)",
    )
    compute_options(parser)
    training_option(parser)
    contract_option(parser)
    namespace_option(parser, in_bag=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the network, write the file, print a summary. Raises ValueError if the source or the checkpoint
    does not fit."""
    import torch

    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.models.checkpoints.checkpoint import load_policy
    from vla_accel_ros.tools.bench.observations import recorded, simulated
    from vla_accel_ros.tools.calibrate.dataset import is_dataset, of_dataset
    from vla_accel_ros.tools.calibrate.seen import calibrate

    if arguments.frames < 1:
        raise ValueError(f"--frames is {arguments.frames}; give at least 1.")
    torch.set_num_threads(1)  # as in an engine
    device, dtype = chosen_device(arguments)
    observations, contract = [], Contract.load(chosen_contract(arguments))
    if arguments.source is not None and is_dataset(arguments.source):
        names = {camera.name: camera.image for camera in contract.cameras}
        observations = of_dataset(arguments.source, arguments.frames, names)
    elif arguments.source is not None:
        observations, _, contract = recorded(arguments.source, arguments.frames, arguments.namespace)
    policy = load_policy(
        arguments.checkpoint, device, dtype, contract.delta_mask, trained_as=arguments.trained_as
    )
    if arguments.source is None:
        engine = Engine(policy, step_dt_s=contract.chunk.step_dt_s)
        observations = simulated(engine, contract, arguments.frames)
    calibration = calibrate(policy, observations, arguments.alpha, arguments.most_error)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    calibration.write(arguments.out)
    products, observed = len(calibration.errors), calibration.observations
    print(f"{products} products on {observed} observations; relative errors in 8 bits:")
    errors = sorted(calibration.errors.items(), key=lambda item: -item[1])
    print(f"median {errors[len(errors) // 2][1]:.4f}; largest:")
    for name, error in errors[:WORST]:
        print(f"  {name:20}{error:.4f}")
    exact = calibration.exact()
    print(
        f"{len(exact)} stay exact, above {calibration.most_error:g}{': ' if exact else ''}{', '.join(exact)}"
    )
    print(f"written: {arguments.out}")
    return 0
