"""`vla fleet-demo`: the subcommand."""

from __future__ import annotations

import argparse

from vla_accel_ros.tools.fleet_demo.plan import KILLS, Options
from vla_accel_ros.tools.options import demo_options, output_file, subcommand
from vla_accel_ros.tools.running.messages import provide_messages


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    purpose = "simulated robots on one scheduler; one robot and the scheduler are killed while you watch"
    parser = subcommand(subparsers, "fleet-demo", purpose, run)
    add = parser.add_argument
    add("--robots", type=int, default=3, metavar="N", help="number of robots (default: %(default)s)")
    episodes = "tasks of each robot: reach, place, follow in turn (default: %(default)s)"
    demo_options(parser, "out/fleet_demo", 3, episodes)
    add(
        "--kill",
        default=",".join(KILLS),
        metavar="WHAT",
        help="what to kill, one after the other (default: %(default)s)",
    )
    add("--no-faults", dest="kill", action="store_const", const="", help="kill nothing")
    add("--rule", "--policy", default="fifo", metavar="NAME", help="scheduling rule (default: %(default)s)")
    add(
        "--svg",
        type=output_file,
        metavar="FILE",
        help="write the table here as a picture, a moment after the first kill",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Returns 0 if every robot did all its tasks, else 1."""
    options_given = {name: getattr(arguments, name) for name in Options.__dataclass_fields__}
    options_given["kill"] = tuple(filter(None, (name.strip() for name in arguments.kill.split(","))))
    options = Options(**options_given)

    provide_messages()
    from vla_accel_ros.tools.fleet_demo.run import run

    return run(options)
