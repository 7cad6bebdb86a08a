"""`vla trace`: the subcommand."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from vla_accel_ros.timeline import Recorded, merged
from vla_accel_ros.tools.options import namespace_option, output_file, say, subcommand, timeout_option

SECONDS = 10.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    description = "show where the time from image to command goes; write a Perfetto trace"
    parser = subcommand(subparsers, "trace", description, run)
    add = parser.add_argument
    add("bag", type=Path, nargs="?", metavar="BAG", help="recording to read (default: a running robot)")
    add(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="write the trace there; open it in ui.perfetto.dev",
    )
    add(
        "--seconds",
        type=float,
        metavar="S",
        help=f"length of the past (default: {SECONDS:g}), or of the end of the bag (default: all)",
    )
    namespace_option(parser)
    timeout_option(parser, 5.0, "for nodes")


def run(arguments: argparse.Namespace) -> int:
    """Read the timeline, print the table and write the trace. Raises ValueError for wrong options."""
    for name in ("seconds", "timeout"):
        value = getattr(arguments, name)
        if value is not None and not 0.0 < value < math.inf:
            raise ValueError(f"--{name} is {value:g}: give seconds, more than 0")

    from vla_accel_ros.tools.trace import bag, latency

    records: Sequence[Recorded]
    if arguments.bag is not None:
        record, moments = bag.read(arguments.bag, arguments.seconds, arguments.namespace)
        records, rows = [record], latency.steps(moments.values(), latency.RECORDED)
    else:
        records = _live(arguments.namespace, arguments.seconds or SECONDS, arguments.timeout)
        rows = [*latency.steps(latency.frames(records).values()), *latency.gpu_steps(records)]
    print(latency.table(rows), flush=True)
    if arguments.output is not None:
        from vla_accel_ros.tools.trace import perfetto_file

        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        count = perfetto_file.write(arguments.output, records)
        say(f"{arguments.output}: {count} events; open it in https://ui.perfetto.dev")
    return 0


def _live(namespace: str, seconds: float, timeout_s: float) -> list[Recorded]:
    from vla_accel_ros.nodes.clients.timelines import Timelines

    with Timelines(namespace) as timelines:
        timelines_read, missing = timelines.read(seconds, timeout_s)
    records = merged(timelines_read)
    for name in missing:
        say(f"{name} does not answer with its timeline, so the trace lacks it")
    for record in records:
        past_s = (record.monotonic_ns - record.oldest_ns) * 1e-9
        if past_s < 0.99 * seconds:
            nodes = ", ".join(record.nodes)
            say(f"{nodes}: events older than {past_s:.1f} s are not kept")
    return records
