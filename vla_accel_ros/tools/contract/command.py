"""`vla contract`: a robot's contract, from what is known to what is right, and to and from rosetta's.

make reads the checkpoint and, if asked to, a URDF and the live graph or a bag. No weight is read, no GPU is
needed, and only --from-robot needs ROS. `vla doctor` compares a contract with a live graph.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vla_accel_ros.tools.options import namespace_option, say, subcommand, training_option

if TYPE_CHECKING:
    from vla_accel_ros.models.checkpoints.description import Description
    from vla_accel_ros.sensing.survey import Survey
    from vla_accel_ros.tools.contract.write import Robot


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "contract", help="write the contract of a robot (its cameras, joints, controllers), or check one"
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", dest="verb")
    make = subcommand(verbs, "make", "print a contract for a checkpoint, to be completed", run_make)
    add = make.add_argument
    add("--model", type=Path, required=True, help="checkpoint folder")
    source = make.add_mutually_exclusive_group()
    source.add_argument("--from-robot", action="store_true", help="read the live graph of a running driver")
    source.add_argument("--bag", type=Path, help="read a bag of the robot instead")
    add("--urdf", type=Path, help="the robot's URDF, for names and limits of joints (default: its own)")
    add(
        "--map",
        nargs="+",
        default=[],
        type=_pair,
        metavar="CAMERA=IMAGE",
        help="which camera, by its name or topic, is which image of the policy: front=base_0_rgb ...",
    )
    add(
        "--files",
        type=Path,
        default=Path("robot"),
        metavar="DIR",
        help="folder for pictures of the cameras and the robot's URDF (default: %(default)s)",
    )
    add("--seconds", type=float, default=3.0, metavar="S", help="time to listen (default: %(default)s)")
    namespace_option(make)
    check = subcommand(
        verbs, "check", "check a contract and, with --model, that the model fits it", run_check
    )
    check.add_argument("file", type=Path, help="the contract")
    check.add_argument("--model", type=Path, help="checkpoint folder")
    take = subcommand(verbs, "import", "print a contract of rosetta's as one to be completed", run_import)
    take.add_argument("file", type=Path, help="rosetta's contract, version 2")
    take.add_argument("--urdf", default="", metavar="FILE", help="a URDF with the limits of the joints")
    give = subcommand(verbs, "export", "print a contract as rosetta's, version 2", run_export)
    give.add_argument("file", type=Path, help="the contract")
    give.add_argument(
        "--size",
        type=int,
        nargs=2,
        default=(224, 224),
        metavar=("ROWS", "COLUMNS"),
        help="size of its pictures (default: 224 224)",
    )
    for verb in (make, check):
        verb.add_argument("--statistics", help="which statistics, if there are several: asset id or data set")
        training_option(verb)


def _pair(text: str) -> tuple[str, str]:
    camera, equals, image = text.partition("=")
    if not (camera and equals and image):
        raise argparse.ArgumentTypeError(f"{text!r} is not CAMERA=IMAGE, such as front=base_0_rgb")
    return camera, image


def run_make(arguments: argparse.Namespace) -> int:
    """Print the contract; what else there is to see goes to stderr."""
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.tools.contract.write import Robot, write_contract

    if not 0.5 <= arguments.seconds <= 600.0:
        raise ValueError(f"--seconds is {arguments.seconds:g}: give 0.5 to 600")
    described = describe(arguments.model, arguments.statistics, arguments.trained_as)
    robot = Robot(urdf=arguments.urdf)
    if arguments.from_robot or arguments.bag is not None:
        robot = _read(arguments, described)
    elif arguments.map:
        raise ValueError("--map names cameras of a robot: give --from-robot or --bag")
    print(write_contract(described, robot), end="")
    return 0


def _read(arguments: argparse.Namespace, model: Description) -> Robot:
    """Read the graph or the bag, and write the files."""
    from vla_accel_ros.tools.contract.cameras import match, write_pictures
    from vla_accel_ros.tools.contract.write import Robot

    if arguments.bag is not None:
        from vla_accel_ros.tools.contract.bag import survey_bag

        survey = survey_bag(arguments.bag, arguments.namespace, arguments.seconds)
    else:
        from vla_accel_ros.nodes.clients.surveyor import Surveyor

        say(f"listening for {arguments.seconds:g} s ...")
        with Surveyor(arguments.namespace) as surveyor:
            survey = surveyor.read(arguments.seconds)
    if not survey.streams and not survey.controllers:
        raise ValueError(
            f"{survey.origin} has no cameras, joint states or controllers in {survey.namespace or '/'}: "
            "start the robot's driver, and give its ROS_DOMAIN_ID and --namespace"
        )
    mapping = dict(arguments.map)
    pictures = write_pictures(match(model, survey, {}), arguments.files)
    for camera, file in pictures.items():
        say(f"camera {camera}: look at {file}: which camera it is, which way up, and its colours")
    mapping |= _asked(model, survey, mapping)
    urdf, origin = arguments.urdf, ""
    if urdf is None and survey.description:
        arguments.files.mkdir(parents=True, exist_ok=True)
        urdf, origin = arguments.files / "robot.urdf", survey.description_origin
        urdf.write_text(survey.description)
        say(f"description: {urdf}")
    return Robot(survey, match(model, survey, mapping), pictures, urdf, origin)


def _asked(model: Description, survey: Survey, mapping: Mapping[str, str]) -> dict[str, str]:
    """Which camera is which image, by who sits at the terminal; nothing without one."""
    from vla_accel_ros.contract.files.fields import UNKNOWN
    from vla_accel_ros.tools.contract.cameras import images_of, match

    answers: dict[str, str] = {}
    matches = match(model, survey, mapping)
    free = [image for image in images_of(model) if image not in {each.image for each in matches}]
    for each in matches if sys.stdin.isatty() else ():
        if each.image == UNKNOWN and free:
            say(f"which image is camera {each.camera} ({', '.join(free)}; empty: not known)? ", end="")
            if (answer := sys.stdin.readline().strip()) in free:
                answers[each.camera] = answer
                free.remove(answer)
    return answers


def run_import(arguments: argparse.Namespace) -> int:
    """Print our contract; what is not carried over goes to stderr."""
    from vla_accel_ros.contract.rosetta import imported

    return _written(*imported(arguments.file.read_text(), str(arguments.file), arguments.urdf))


def run_export(arguments: argparse.Namespace) -> int:
    """Print rosetta's contract; what it does not say goes to stderr."""
    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.contract.rosetta import exported

    if not all(1 <= side <= 8192 for side in arguments.size):
        raise ValueError(f"--size is {arguments.size}: give 1 to 8192 rows and columns")
    return _written(*exported(Contract.load(arguments.file), tuple(arguments.size)))


def _written(text: str, notes: list[str]) -> int:
    for note in notes:
        say(f"note: {note}")
    print(text, end="")
    return 0


def run_check(arguments: argparse.Namespace) -> int:
    """Print the findings, or the lines that are not filled in. Returns 1 if the model does not fit."""
    from vla_accel_ros.contract.checks.findings import ERROR, ok
    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.contract.files.fields import UNKNOWN

    for number, text in enumerate(arguments.file.read_text().splitlines(), 1):
        if UNKNOWN in text.partition("#")[0]:
            print(f"missing {arguments.file}:{number}: {text.strip()}")
    contract = Contract.load(arguments.file)
    findings = [ok("contract", f"{arguments.file} is a contract of {len(contract.joints)} joints")]
    if arguments.model is not None:
        from vla_accel_ros.contract.checks.model_check import judge, read_model

        model = read_model(arguments.model, arguments.statistics, arguments.trained_as)
        findings += judge(model, contract)
    for finding in findings:
        print(f"{finding.level:<8}{finding}")
    return int(any(finding.level == ERROR for finding in findings))
