"""`vla fleet top`: a live table of a fleet's robots, from /diagnostics, also as a page in a browser."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Lock

from rich.console import Console
from rich.live import Live

from vla_accel_ros.tools.fleet import table
from vla_accel_ros.tools.fleet.board import Board, Line
from vla_accel_ros.tools.options import output_file, subcommand
from vla_accel_ros.tools.pages import LOOPBACK, serving

REFRESH_HZ = 4.0
LINES_EVERY_S = 5.0
TOLD_S = 2.5
"""Seconds within which every node has published its diagnostics."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    purpose = "a live table of the robots of a running fleet, from /diagnostics of this ROS domain"
    parser = subcommand(subparsers, "top", purpose, run)
    add = parser.add_argument
    add("--seconds", type=float, metavar="S", help="end after this time (default: at Ctrl-C)")
    add(
        "--once",
        action="store_true",
        help="print lines once; status 1 if there is neither scheduler nor robot",
    )
    add("--page", type=int, metavar="PORT", help=f"also serve the table as a page on {LOOPBACK}, this port")
    add("--svg", type=output_file, metavar="FILE", help="write the last table here as a picture")


def run(arguments: argparse.Namespace) -> int:
    """Show the table until Ctrl-C. Returns 0, or 1 if no node of a fleet was heard."""
    if arguments.seconds is not None and not 0.0 < arguments.seconds < math.inf:
        raise ValueError(f"--seconds is {arguments.seconds:g}: give a time above 0")
    from vla_accel_ros.nodes.clients.client_node import FleetWatcher

    board, console = Board(), Console(highlight=False, soft_wrap=True)
    lock = Lock()

    def hear(lines: Sequence[Line]) -> None:
        with lock:
            board.hear(lines, time.monotonic())

    def page(_: object) -> str:
        with lock:
            return table.page(board, time.monotonic())

    documents = {"/": ("text/html", page)}
    server = nullcontext() if arguments.page is None else serving(documents, arguments.page)
    with server as port, FleetWatcher(hear) as watcher:
        if port is not None:
            print(f"page: http://{LOOPBACK}:{port}/", flush=True)
        try:
            if arguments.once:
                watcher.listen(arguments.seconds or TOLD_S)
                print_lines(board, console)
            elif console.is_terminal:
                show(board, watcher.listen, arguments.seconds or math.inf, console)
            else:
                end_s = time.monotonic() + (arguments.seconds or math.inf)
                while (left_s := end_s - time.monotonic()) > 0.0:
                    watcher.listen(min(LINES_EVERY_S, left_s))
                    print_lines(board, console)
        except KeyboardInterrupt:
            pass
    if arguments.svg is not None:
        table.write_svg(board, time.monotonic(), arguments.svg)
    now_s = time.monotonic()
    return 0 if board.robots() or board.scheduler(now_s).said != "not heard yet" else 1


def show(board: Board, listen: Callable[[float], None], seconds: float, console: Console) -> None:
    """Draw the live table on a terminal for `seconds`."""
    end_s = time.monotonic() + seconds
    with Live(console=console, auto_refresh=False) as live:
        while time.monotonic() < end_s:
            listen(1.0 / REFRESH_HZ)
            live.update(table.drawn(board, time.monotonic()), refresh=True)


def print_lines(board: Board, console: Console) -> None:
    """Print the table as text."""
    for line in table.lines(board, time.monotonic()):
        console.print(line, markup=False)
