"""`vla view`: paths of the chunks for RViz and Foxglove, and numbers for Grafana, of a running robot.

A process of its own, which only subscribes to the robot: it can be started and ended at any time.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from functools import partial

from vla_accel_ros.tools.options import namespace_option, subcommand
from vla_accel_ros.tools.pages import LOOPBACK, serving
from vla_accel_ros.tools.view.metrics import CONTENT_TYPE, Metrics

_TURN_S = 1.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    what = "publish chunk_path for RViz and Foxglove, and numbers for Grafana, of a running robot"
    parser = subcommand(subparsers, "view", what, run)
    namespace_option(parser)
    add = parser.add_argument
    add(
        "--tip",
        action="append",
        default=[],
        metavar="LINK",
        help="draw the path of this link, may be repeated (default: the last link of each arm)",
    )
    add("--joint-states", default="joint_states", metavar="TOPIC", help="(default: %(default)s)")
    add("--metrics", type=int, metavar="PORT", help="serve /metrics, in OpenMetrics, on this port")
    add("--address", default=LOOPBACK, help="of --metrics; 0.0.0.0 is all networks (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Publish and serve until Ctrl-C. Raises OSError if the port is taken."""
    from vla_accel_ros.nodes.clients.chunk_paths import ChunkPaths

    metrics = Metrics()
    documents = {"/metrics": (CONTENT_TYPE, lambda _: metrics.text(time.monotonic()))}
    port, address = arguments.metrics, arguments.address
    with (
        nullcontext() if port is None else serving(documents, port, address) as port,
        ChunkPaths(
            arguments.namespace,
            arguments.joint_states,
            arguments.tip,
            lambda lines: metrics.hear(lines, time.monotonic()),
            partial(print, flush=True),
        ) as robot,
    ):
        if port is not None:
            print(f"metrics: http://{address}:{port}/metrics", flush=True)
        while True:
            robot.listen(_TURN_S)
