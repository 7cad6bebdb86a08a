"""The `vla` command: one module for each subcommand, and errors of one sentence.

A module has `register(subparsers)`, which sets `run`, a function from the parsed arguments to the exit
status; heavy imports happen inside it. The modules are imported by `main`, so that Ctrl-C meanwhile ends the
command as it does later. Wrong arguments and files exit with status 2, later failures with status 1;
`--debug` shows the traceback. If nobody reads the output any more, as after `| head`, the command ends
without a word.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from vla_accel_ros.contract.files.fields import closest
from vla_accel_ros.tools.working import working

GROUPS = {
    "try it without a robot": ("demo.command", "fleet_demo.command"),
    "run a robot": (
        *("doctor.command", "say", "look.command", "view.command", "trace.command", "contract.command"),
        "security",
    ),
    "checkpoints": ("fetch", "checkpoints", "compare.command", "calibrate.command", "serve"),
    "recordings": ("record", "replay.command", "export.command"),
    "speed": ("plan.command", "tune.command", "bench.command"),
    "fleets": ("fleet", "fleet_sim.command", "fleet_sim.trace"),
    "the bundled policy": ("demo_policy.command",),
}
"""Heading in the help -> modules of this package."""

STDOUT = 1
INTERRUPTED = 128 + 2
"""Exit status of a program that Ctrl-C has ended."""
SIGPIPE_STATUS = 128 + 13
"""Exit status of a program whose reader has gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status. arguments: without the program's name; None for
    sys.argv."""
    _open_closed_streams()
    words = sys.argv[1:] if arguments is None else arguments
    with working(" ".join(["vla", *words[:1]])):
        try:
            parser = command_line()
        except KeyboardInterrupt:
            return INTERRUPTED
        return finish(parser, arguments)


def command_line() -> Parser:
    """Return the parser of `vla` with all its commands, which it describes by group."""
    parser = Parser(
        prog="vla",
        usage="vla [--debug] COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="`vla COMMAND --help` explains a command and its options.",
    )
    subparsers = parser.add_subparsers(
        prog="vla", help=argparse.SUPPRESS, metavar="COMMAND", dest="subcommand"
    )
    lines = ["Vision-Language-Action models on ROS 2 robots. Start with `vla demo`."]
    for heading, modules in GROUPS.items():
        listed = len(subparsers._choices_actions)
        for name in modules:
            import_module(f"vla_accel_ros.tools.{name}").register(subparsers)
        commands = subparsers._choices_actions[listed:]
        lines += ["", f"{heading}:", *(f"  {command.dest:<20}{command.help}" for command in commands)]
    subparsers._choices_actions.clear()  # the description lists them
    parser.description = "\n".join(lines)
    return parser


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know with what was probably meant, and where that is listed."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = closest(str(value), names, f"write {' or '.join(names)}")
            raise argparse.ArgumentError(action, f"{value!r} is unknown: {hint}")

    def refuse(self, unknown: str) -> NoReturn:
        """End with status 2: an argument is unknown."""
        otherwise = f"`{self.prog} --help` lists what there is"
        self.error(f"{unknown} is unknown: {closest(unknown, self._option_string_actions, otherwise)}")


def finish(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, call their `run` (here or in bench/), and return the exit status."""
    _open_closed_streams()
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = getattr(parsed, "parser", parser)
        command.refuse(unknown[0]) if isinstance(command, Parser) else command.parse_args(unknown)
    if not hasattr(parsed, "run"):
        parser.print_help(sys.stderr)
        return 2
    name = " ".join(filter(None, (parser.prog, getattr(parsed, "subcommand", ""))))
    try:
        status = int(parsed.run(parsed))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        return SIGPIPE_STATUS if _nobody_reads() else _fail(name, parsed, error, 2)
    except (TimeoutError, RuntimeError) as error:
        return _fail(name, parsed, error, 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        ros = package == "rclpy" or package.endswith("_msgs")
        fix = "source a ROS 2 workspace that has it" if ros else f"pip install {package}"
        return _fail(name, parsed, RuntimeError(f"{package} is not installed here: {fix}"), 1)
    except (ValueError, TypeError, OSError) as error:
        return _fail(name, parsed, error, 2)


def _open_closed_streams() -> None:
    """Without stdout or stderr (`>&-`), write to nowhere: print would take the other one, or fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _nobody_reads() -> bool:
    """Return whether the reader of stdout has gone; then nothing more is written to it, also at exit."""
    poll = select.poll()
    poll.register(STDOUT, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), STDOUT)
    return True


def _fail(name: str, parsed: argparse.Namespace, error: Exception, status: int) -> int:
    if parsed.debug:
        raise error
    if isinstance(error, OSError) and error.filename and error.strerror and str(error).startswith("[Errno"):
        error = OSError(f"{error.filename}: {error.strerror}: check the path, or run {name} --help")
    print(f"{name}: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
