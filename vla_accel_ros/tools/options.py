"""Options that several subcommands share."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model
from vla_accel_ros.option import options
from vla_accel_ros.tools.provenance import provenance

if TYPE_CHECKING:
    import torch

Run = Callable[[argparse.Namespace], int]
_NAMESPACE = re.compile(r"/?([A-Za-z_]\w*(/[A-Za-z_]\w*)*)?/?", re.ASCII)
_LONGEST_NAMESPACE = 200
"""So that every topic below it keeps to the 255 characters of a ROS name."""


def subcommand(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    purpose: str,
    run: Run,
    aliases: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Add and return a subcommand's parser; `run` takes its arguments and returns the exit status."""
    parser = subparsers.add_parser(name, aliases=aliases, help=purpose, description=purpose)
    parser.set_defaults(run=run, parser=parser)
    return parser


def contract_option(parser: argparse.ArgumentParser) -> None:
    """Add --contract FILE."""
    parser.add_argument("--contract", type=Path, help="the robot's contract (default: the simulated arm's)")


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model FOLDER."""
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the bundled policy)")


def training_option(parser: argparse.ArgumentParser) -> None:
    """Add --as NAME; trained_as in the arguments."""
    parser.add_argument(
        "--as",
        dest="trained_as",
        default="",
        metavar="NAME",
        help="of an openpi checkpoint: the public configuration of its training, such as pi05_libero, or "
        "its settings, such as 'action_horizon=10 ...'; of a lerobot checkpoint that asks for it: "
        "prompt_state=padded (lerobot up to 0.4.4) or prompt_state=own (since 0.5.0)",
    )


def engine_options(
    parser: argparse.ArgumentParser,
    *names: str,
    further: Mapping[str, tuple[str, ...]] | None = None,
    config: type[EngineConfig] = EngineConfig,
    only_given: bool = False,
) -> None:
    """Add options of an engine (engine/config.py), such as --keep-exact. further: choices that only this
    command has. only_given: the arguments lack what is not on the command line, which a goal may set."""
    for name in names:
        option, default = options(config)[name], getattr(config, name)
        about: dict[str, Any] = {"help": f"{option.help} (default: {default})"}
        about["default"] = argparse.SUPPRESS if only_given else default
        about["help"] = about["help"].replace("%", "%%")
        if type(default) is bool:
            about["action"] = argparse.BooleanOptionalAction
        else:
            choices = (*filter(None, option.choices), *(further or {}).get(name, ()))
            about |= {"type": type(default), "choices": choices or None}
        former = [option.former] if option.former else []
        parser.add_argument(*(f"--{each.replace('_', '-')}" for each in (name, *former)), **about)


def demo_options(parser: argparse.ArgumentParser, out: str, episodes: int | None, which: str) -> None:
    """Add what the demos have in common. out: folder of the results. episodes: the default number; which:
    these are."""
    add = parser.add_argument
    add("--headless", action="store_true", help="lines instead of the live view")
    add("--episodes", type=int, default=episodes, metavar="N", help=which)
    add("--json", type=output_file, metavar="FILE", help="write the figures here, too")
    folder = "folder for all results (default: %(default)s)"
    add("--out", type=Path, default=Path(out), metavar="DIR", help=folder)
    add("--seed", type=int, default=0, help="seed of the first scene (default: %(default)s)")
    add("--domain", type=int, metavar="ID", help="ROS domain (default: a free one)")


def chosen_contract(arguments: argparse.Namespace) -> Path:
    """Return the --contract file, or the simulated arm's contract."""
    return arguments.contract or demo_contract()


def chosen_model(arguments: argparse.Namespace) -> Path:
    """Return the --model folder, or the bundled policy. Raises FileNotFoundError if that is missing."""
    return arguments.model or demo_model()


def namespace_option(parser: argparse.ArgumentParser, in_bag: bool = False) -> None:
    """Add --namespace NS, a robot's. in_bag: an empty one means the only robot of a bag, and "/" the one
    without a namespace."""
    parser.add_argument(
        "--namespace",
        type=_namespace_in_bag if in_bag else _namespace,
        default="",
        metavar="NS",
        help=f"namespace of the robot (default: {'the only robot of the bag' if in_bag else 'none'})",
    )


def _namespace_in_bag(text: str) -> str:
    return _namespace(text) or text


def _namespace(text: str) -> str:
    if len(text) > _LONGEST_NAMESPACE or not _NAMESPACE.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is no ROS namespace: give names of letters, digits and _ that do not begin with "
            f"a digit, with / between them, {_LONGEST_NAMESPACE} characters at most"
        )
    return text.rstrip("/")


def timeout_option(parser: argparse.ArgumentParser, default_s: float, what: str) -> None:
    """Add --timeout S, the longest wait for or until something."""
    what = f"longest wait {what} (default: %(default)g s)"
    parser.add_argument("--timeout", type=float, default=default_s, metavar="S", help=what)


def compute_options(parser: argparse.ArgumentParser) -> None:
    """Add --device and --dtype."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="(default: cuda where there is one)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="(default: bfloat16 on cuda, else float32)"
    )


def chosen_device(arguments: argparse.Namespace) -> tuple[torch.device, torch.dtype]:
    """Return --device and --dtype, or their defaults on this machine."""
    import torch

    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return device, getattr(torch, arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32"))


def say(sentence: str, end: str = "\n") -> None:
    """Tell the user beside the results."""
    print(sentence, end=end, file=sys.stderr, flush=True)


def write_text(path: Path, text: str) -> None:
    """Write a file, and make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_figures(document: Mapping[str, Any], *files: Path | None) -> None:
    """Write a document as JSON, with this machine's provenance, into the files that are given."""
    text = json.dumps({**document, **provenance()}, indent=1) + "\n"
    for file in filter(None, files):
        write_text(file, text)


def output_file(text: str) -> Path:
    """Return the path of a file that is written when a command has its results, perhaps after minutes: the
    type of such an option. Raises ArgumentTypeError if no file can be there, or its folder cannot be made."""
    above = os.path.dirname(os.path.abspath(text))
    while not os.path.exists(above):  # os.path, not pathlib: what cannot even be looked at is not there
        above = os.path.dirname(above)
    takes_it = os.access(text if os.path.exists(text) else above, os.W_OK)
    if os.path.isdir(text) or not os.path.isdir(above) or not takes_it:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: name a file, in a folder of yours")
    return Path(text)
