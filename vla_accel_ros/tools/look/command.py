"""`vla look` and `vla plot`: the subcommands."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vla_accel_ros.tools.options import namespace_option, output_file, say, subcommand, timeout_option

if TYPE_CHECKING:
    from vla_accel_ros.tools.look.server import Look

PORT = 8020
FILLING_S = 3.0
"""How long a live picture is watched before it is drawn."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommands."""
    description = "show what a robot sees, wants and does, in a browser: live, or a bag with a time slider"
    parser = subcommand(subparsers, "look", description, run)
    add = parser.add_argument
    add("bag", type=Path, nargs="?", metavar="BAG", help="recording to look at (default: a running robot)")
    namespace_option(parser, in_bag=True)
    add(
        "--port",
        type=int,
        default=PORT,
        help="of the page on 127.0.0.1 (default: %(default)s; 0: a free one)",
    )
    add("--png", type=output_file, metavar="FILE", help="draw one picture there instead")
    add(
        "--at",
        type=float,
        metavar="S",
        help="with --png of a bag: seconds after its start (default: its end)",
    )
    timeout_option(parser, 5.0, "for a robot")
    parser = subcommand(
        subparsers, "plot", "draw a bag: joints, hand-overs, stops with reasons, timing", plot
    )
    parser.add_argument("bag", type=Path, metavar="BAG", help="recording to draw")
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help="the PNG (default: BAG.png)")
    namespace_option(parser, in_bag=True)


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or write the PNG. Raises OSError if the port is taken, TimeoutError if no
    robot is there, ValueError if the bag is none."""
    import torch

    from vla_accel_ros.engine.session import REPLICA
    from vla_accel_ros.tools.look.server import Look

    torch.set_num_threads(1)  # more would wait for each other at the robot's expense
    if not 0 <= arguments.port <= 65535:
        raise ValueError(f"--port is {arguments.port}: give 0 to 65535")
    with contextlib.ExitStack() as closing:
        if arguments.bag is not None:
            from vla_accel_ros.tools.look.recorded import Recorded

            look = Look(Recorded(arguments.bag, arguments.namespace, say))
        else:
            from vla_accel_ros.nodes.clients.viewer import Viewer
            from vla_accel_ros.tools.look.live import Live

            viewer = closing.enter_context(Viewer(arguments.namespace))
            look = Look(Live(viewer, arguments.timeout))
            if REPLICA in look.source.scene.session.by_name():
                say("no inference/policy_images: a fleet's robot has no torch; they are made here")
        if arguments.png is not None:
            return draw(look, arguments)
        return show(look, arguments.port)


def draw(look: Look, arguments: argparse.Namespace) -> int:
    """Write the PNG."""
    from vla_accel_ros.tools.look import drawing

    end_s = time.monotonic() + (FILLING_S if look.source.live else 0.0)
    while time.monotonic() < end_s:
        look.moment(exact=False)
        time.sleep(0.1)
    drawing.write(arguments.png, look.moment(arguments.at))
    say(f"{arguments.png} is drawn")
    return 0


def show(look: Look, port: int) -> int:
    """Serve the page until Ctrl-C."""
    from vla_accel_ros.tools.look.server import serve

    with serve(look, port) as server:
        print(f"look at http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0


def plot(arguments: argparse.Namespace) -> int:
    """Draw a bag. Raises ValueError if it is none or has no session."""
    from vla_accel_ros.tools.look import plotted
    from vla_accel_ros.tools.look.recorded import Recorded

    path = arguments.output or Path(f"{arguments.bag.name or 'bag'}.png")
    plotted.write(path, Recorded(arguments.bag, arguments.namespace, say))
    say(f"{path} is drawn")
    return 0
