"""`vla contract make` and `vla contract check`: a robot's contract, from what is known to what is right.

Neither needs ROS, a robot or a GPU, and no weight is read. `vla doctor` compares a contract with a live
graph.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.tools.options import subcommand, training_option


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "contract", help="write the contract of a robot (its cameras, joints, controllers), or check one"
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", dest="verb")
    make = subcommand(verbs, "make", "print a contract for a checkpoint, to be completed", run_make)
    make.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    make.add_argument("--urdf", type=Path, help="the robot's URDF, for names and limits of joints")
    check = subcommand(
        verbs, "check", "check a contract and, with --model, that the model fits it", run_check
    )
    check.add_argument("file", type=Path, help="the contract")
    check.add_argument("--model", type=Path, help="checkpoint folder")
    for verb in (make, check):
        verb.add_argument("--statistics", help="which statistics, if there are several: asset id or data set")
        training_option(verb)


def run_make(arguments: argparse.Namespace) -> int:
    """Print the contract."""
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.tools.contract.write import write_contract

    described = describe(arguments.model, arguments.statistics, arguments.trained_as)
    print(write_contract(described, arguments.urdf), end="")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns 1 if the model does not fit."""
    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.contract.findings import ERROR, ok

    contract = Contract.load(arguments.file)
    findings = [ok("contract", f"{arguments.file} is a contract of {len(contract.joints)} joints")]
    if arguments.model is not None:
        from vla_accel_ros.contract.model_check import judge, read_model

        model = read_model(arguments.model, arguments.statistics, arguments.trained_as)
        findings += judge(model, contract)
    for finding in findings:
        print(f"{finding.level:<8}{finding}")
    return int(any(finding.level == ERROR for finding in findings))
