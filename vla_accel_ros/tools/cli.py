"""The `vla` command: one module for each subcommand, and errors of one sentence.

A module has `register(subparsers)`, which sets `run`, a function from the parsed arguments to the exit
status; heavy imports happen inside it. Wrong arguments and files exit with status 2, later failures with
status 1; `--debug` shows the traceback. If nobody reads the output any more, as after `| head`, the command
ends without a word.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from vla_accel_ros.tools import checkpoints, policy, say
from vla_accel_ros.tools.bench import command as bench
from vla_accel_ros.tools.calibrate import command as calibrate
from vla_accel_ros.tools.demo import command as demo
from vla_accel_ros.tools.demo_policy import command as demo_policy
from vla_accel_ros.tools.doctor import command as doctor
from vla_accel_ros.tools.export import command as export
from vla_accel_ros.tools.fleet import command as fleet
from vla_accel_ros.tools.fleet_demo import command as fleet_demo
from vla_accel_ros.tools.fleet_sim import command as fleet_sim
from vla_accel_ros.tools.fleet_sim import trace as fleet_trace
from vla_accel_ros.tools.plan import command as plan
from vla_accel_ros.tools.replay import command as replay
from vla_accel_ros.tools.trace import command as trace
from vla_accel_ros.tools.tune import command as tune

SUBCOMMANDS = (
    *(demo, fleet_demo, say, doctor, policy, checkpoints, replay, export, trace, tune, demo_policy),
    *(fleet, fleet_sim, fleet_trace, plan, bench, calibrate),
)

STDOUT = 1
SIGPIPE_STATUS = 128 + 13
"""Exit status of a program whose reader has gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status. arguments: without the program's name; None for
    sys.argv."""
    parser = argparse.ArgumentParser(prog="vla", description="Vision-Language-Action models on ROS 2 robots.")
    subparsers = parser.add_subparsers(
        title="subcommands", required=True, metavar="SUBCOMMAND", dest="subcommand"
    )
    for module in SUBCOMMANDS:
        module.register(subparsers)
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
        return 130
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
    looked = select.poll()
    looked.register(STDOUT, select.POLLOUT)
    if not any(seen & select.POLLERR for _, seen in looked.poll(0)):
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
