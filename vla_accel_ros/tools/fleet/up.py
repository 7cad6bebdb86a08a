"""`vla fleet up`: runs a Ray head, replicas and a fleet's scheduler on this machine until Ctrl-C.

It runs the node fleet_scheduler with `replicas: ray` in a process of its own. That node starts the head and
the actors and ends them; they also end if it dies. If it cannot be configured or activated it ends with its
reason, and so does the command. With --address the replicas run in an existing cluster, which stays up.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from vla_accel_ros.tools.options import engine_options, subcommand

END_S = 15.0
"""Seconds that the scheduler may take to end its replicas; then it is killed."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    purpose = "start a Ray head, replicas and the scheduler of a fleet on this machine, until Ctrl-C"
    parser = subcommand(subparsers, "up", purpose, run)
    engine_options(parser, "goal")
    add = parser.add_argument
    add("--replicas", nargs="+", default=["edge:1"], metavar="TIER:COUNT[:GPUS]",
        help="how many replicas on which tier, nearest first (default: edge:1)")  # fmt: skip
    add("--address", default="", help="Ray cluster to join: auto or host:port (default: one of its own)")
    add("--model", type=Path, help="checkpoint folder, on every host")
    add("--contract", type=Path, help="contract of one of the robots (default: the simulated arm's)")
    add("--params", type=Path, help="parameters of the scheduler (default: config/fleet.yaml)")
    add("--param", action="append", default=[], metavar="NAME:=VALUE",
        help="a parameter of the scheduler, such as rule:=kairos; may be repeated")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run until a signal or until the scheduler ends; return 0 or its exit status.

    Raises ValueError for a --param without ":=", FileNotFoundError for a missing file.
    """
    from vla_accel_ros.nodes.running.environment import process_environment
    from vla_accel_ros.tools.running.processes import ended_by_signals

    command = [sys.executable, "-m", "vla_accel_ros.nodes.fleet", *node_arguments(arguments)]
    with ended_by_signals():
        # Its own session: Ctrl-C reaches only this process, which then ends the scheduler.
        scheduler = subprocess.Popen(command, env=process_environment(), start_new_session=True)
        try:
            scheduler.wait()
            return _end(scheduler)
        except KeyboardInterrupt:
            _end(scheduler)
            return 0


def node_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the node's command-line arguments. Raises ValueError and FileNotFoundError as run does."""
    from vla_accel_ros.tools.running.processes import arguments as ros_arguments

    parameters: dict[str, object] = {
        "autostart": True,
        "end_if_refused": True,
        "replicas": "ray",
        "ray_replicas": " ".join(arguments.replicas),
        "ray_address": arguments.address,
    }
    if arguments.goal:
        parameters["goal"] = arguments.goal
    for name in ("params", "model", "contract"):
        if (path := getattr(arguments, name)) is not None:
            if not path.exists():
                raise FileNotFoundError(f"{path} does not exist: check the path, or run vla fleet up --help")
            parameters |= {} if name == "params" else {name: str(path.resolve())}
    words = ["--ros-args", *ros_arguments("fleet", parameters, file=arguments.params)]
    for assignment in arguments.param:
        if ":=" not in assignment:
            raise ValueError(f"--param {assignment}: give NAME:=VALUE, such as rule:=kairos.")
        words += ["-p", assignment]
    return words


def _end(scheduler: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM, kill what is left of the process group after END_S, and return the exit status."""
    scheduler.terminate()
    with suppress(subprocess.TimeoutExpired):
        scheduler.wait(END_S)
    with suppress(ProcessLookupError):
        os.killpg(scheduler.pid, signal.SIGKILL)
    return scheduler.wait()
