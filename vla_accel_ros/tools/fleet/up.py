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
import time
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
            os.waitid(os.P_PID, scheduler.pid, os.WEXITED | os.WNOWAIT)
            return _end(scheduler)
        except KeyboardInterrupt:
            _end(scheduler)
            return 0


def node_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the node's command-line arguments. Raises ValueError and FileNotFoundError as run does."""
    from vla_accel_ros.nodes.running.environment import share_path

    file = arguments.params or share_path("config/fleet.yaml")
    parameters = {
        "replicas": "ray",
        "ray_replicas": " ".join(arguments.replicas),
        "ray_address": arguments.address,
    }
    if arguments.goal:
        parameters["goal"] = arguments.goal
    for name in ("model", "contract"):
        if (path := getattr(arguments, name)) is not None:
            parameters[name] = str(path.resolve())
    for needed in (file, arguments.model, arguments.contract):
        if needed is not None and not needed.exists():
            raise FileNotFoundError(f"{needed} does not exist: check the path, or run vla fleet up --help")
    words = ["--ros-args", "--params-file", str(file), "-p", "autostart:=true", "-p", "end_if_refused:=true"]
    for name, text in parameters.items():
        words += ["-p", f"{name}:=" + "'" + text.replace("'", "''") + "'"]
    for assignment in arguments.param:
        if ":=" not in assignment:
            raise ValueError(f"--param {assignment}: give NAME:=VALUE, such as rule:=kairos.")
        words += ["-p", assignment]
    return words


def _end(scheduler: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM, kill what is left of the process group after END_S, and return the exit status."""
    os.kill(scheduler.pid, signal.SIGTERM)  # not reaped yet, so its id is still its own
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s:
        if os.waitid(os.P_PID, scheduler.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            break
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(scheduler.pid, signal.SIGKILL)
    return scheduler.wait()
