"""`vla record`: episodes in the bag of a robot's recorder, by keys or one word; `--report`: what is wrong
with bags.

Where no recorder runs, `vla record` starts one, and ends it with a report of the bag.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vla_accel_ros.recording.marks import EVENTS, FAILURE, SUCCESS
from vla_accel_ros.tools.options import chosen_contract, contract_option, namespace_option, say, subcommand

if TYPE_CHECKING:
    from vla_accel_ros.nodes.clients.episode_marker import EpisodeMarker

KEYS = {"s": "start", "y": SUCCESS, "n": FAILURE, "e": "stop", "d": "discard"}
_LOOK_S, _START_S = 3.0, 60.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "record", "record episodes, and report what is wrong with them", run)
    add = parser.add_argument
    add("event", nargs="?", choices=EVENTS, help="mark this and end (default: ask for keys)")
    add("--task", metavar="TEXT", help="task of the episodes that begin now (default: the instruction)")
    add(
        "--record-dir",
        type=Path,
        default=Path("bags"),
        metavar="DIR",
        help="folder of the bag, if this starts the recorder (default: %(default)s)",
    )
    contract_option(parser)
    namespace_option(parser)
    add("--report", type=Path, nargs="+", metavar="BAG", help="only report what is wrong with these bags")


def run(arguments: argparse.Namespace) -> int:
    """Mark episodes until `q`, or once; or report. Returns 1 if a bag has faults."""
    if arguments.report:
        return max(_report(path, arguments.namespace) for path in arguments.report)
    from vla_accel_ros.nodes.clients.episode_marker import EpisodeMarker
    from vla_accel_ros.tools.running.processes import ended_by_signals

    with EpisodeMarker(arguments.namespace) as marker, ended_by_signals():
        say("looking for a recorder")
        found = marker.found(_LOOK_S)
        if arguments.event:
            if not found:
                raise TimeoutError(
                    "no recorder runs in this namespace: run `vla record` alone, or bringup with record:=true"
                )
            if arguments.task is not None:
                marker.set_task(arguments.task)
            print(marker.mark(arguments.event))
            return 0
        with contextlib.nullcontext() if found else _recorder(arguments, marker):
            if arguments.task is not None:
                marker.set_task(arguments.task)
            _ask(marker)
    if found:
        print("the recorder goes on; when it has ended: vla record --report BAG")
        return 0
    return _report(max(arguments.record_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns), "")


@contextlib.contextmanager
def _recorder(arguments: argparse.Namespace, marker: EpisodeMarker) -> Iterator[None]:
    """Run the node recorder. Raises RuntimeError with its last words if it does not come up."""
    from vla_accel_ros.nodes.running.environment import process_environment
    from vla_accel_ros.tools.running.processes import NodeProcess
    from vla_accel_ros.tools.running.processes import arguments as node_arguments

    parameters = {
        "autostart": True,
        "record_dir": str(arguments.record_dir.absolute()),
        "contract": str(chosen_contract(arguments).absolute()),
    }
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(
            "recorder",
            node_arguments("recorder", parameters, arguments.namespace),
            process_environment(),
            Path(folder) / "log",
        )
        say("none runs: starting one")
        node.start()
        try:
            if not marker.found(_START_S):
                raise RuntimeError(f"the recorder did not come up: {node.last_words()}")
            yield
        finally:
            node.end()


def _ask(marker: EpisodeMarker) -> None:
    """Mark by keys until q or the end of the input."""
    names = ", ".join(f"{key} {event}" for key, event in KEYS.items())
    print(f"keys: {names}, t task, q quit", flush=True)
    with _single_keys():
        while (key := sys.stdin.read(1)) not in ("q", ""):
            try:
                if key == "t":
                    print("task: ", end="", flush=True)
                    with _single_keys(False):
                        marker.set_task(sys.stdin.readline().strip())
                elif key in KEYS:
                    print(marker.mark(KEYS[key]), flush=True)
                elif not key.isspace():
                    print(f"{key!r} is no key: {names}, t task, q quit", flush=True)
            except (ValueError, TimeoutError) as error:
                print(error, flush=True)


@contextlib.contextmanager
def _single_keys(single: bool = True) -> Iterator[None]:
    """Read a terminal's keys one by one, without Enter and echo; or again by lines. Of a pipe nothing
    changes."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    modes = termios.tcgetattr(sys.stdin)
    by_line = termios.ICANON | termios.ECHO
    modes[3] = modes[3] & ~by_line if single else modes[3] | by_line
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _report(path: Path, namespace: str) -> int:
    """Print the qualities of a bag's episodes, and what to type next; return 1 if any has faults."""
    from vla_accel_ros.tools.export.quality import report

    qualities = report(path, namespace)
    for quality in qualities:
        print(f"{path}: {quality}")
    print(f"next: vla export {path} --output DIR")
    return int(any(quality.faults for quality in qualities))
