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

SUBCOMMANDS = (
    "demo.command",
    "fleet_demo.command",
    "say",
    "doctor.command",
    "security",
    "checkpoints",
    "contract.command",
    "compare.command",
    "replay.command",
    "export.command",
    "trace.command",
    "tune.command",
    "demo_policy.command",
    "fleet.command",
    "fleet_sim.command",
    "fleet_sim.trace",
    "plan.command",
    "bench.command",
    "calibrate.command",
)
"""Modules of this package."""

STDOUT = 1
INTERRUPTED = 128 + 2
"""Exit status of a program that Ctrl-C has ended."""
SIGPIPE_STATUS = 128 + 13
"""Exit status of a program whose reader has gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status. arguments: without the program's name; None for
    sys.argv."""
    parser = argparse.ArgumentParser(prog="vla", description="Vision-Language-Action models on ROS 2 robots.")
    subparsers = parser.add_subparsers(
        title="subcommands", required=True, metavar="SUBCOMMAND", dest="subcommand"
    )
    try:
        for name in SUBCOMMANDS:
            import_module(f"vla_accel_ros.tools.{name}").register(subparsers)
    except KeyboardInterrupt:
        return INTERRUPTED
    return finish(parser, arguments)


def finish(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, call their `run` (here or in bench/), and return the exit status."""
    _open_closed_streams()
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parsed = parser.parse_args(arguments)
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
    print(f"{name}: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
