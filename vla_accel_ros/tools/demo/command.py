"""`vla demo`: the subcommand."""

from __future__ import annotations

import argparse
from pathlib import Path

from vla_accel_ros.control.chunking.buffer import MODES
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.tools.demo.plan import DEMO_S, Options
from vla_accel_ros.tools.options import demo_options, engine_options, subcommand
from vla_accel_ros.tools.running.messages import provide_messages


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "demo", "drive the simulated arm through the whole stack", run)
    add = parser.add_argument
    episodes = f"how many to play (default: as many as begin within {DEMO_S:.0f} s)"
    demo_options(parser, "out/demo", None, episodes)
    add("--seconds", type=float, metavar="S", help="begin no episode after this time")
    add(
        "--tasks",
        default="reach,place,follow",
        help="families of tasks, played in turn (default: %(default)s)",
    )
    add("--mode", default="blend", choices=MODES, help="how one chunk follows another (default: %(default)s)")
    engine_options(parser, "goal")
    add("--model", type=Path, metavar="DIR", help="checkpoint folder (default: the bundled policy)")
    add("--contract", type=Path, metavar="FILE", help="contract of the arm (default: the bundled one)")
    add("--ring", action="store_true", help="read the cameras from shared memory instead of image topics")


def run(arguments: argparse.Namespace) -> int:
    """Play, write, summarise. Returns 0 after a complete run."""
    options_given = {name: getattr(arguments, name) for name in Options.__dataclass_fields__}
    options_given["tasks"] = tuple(name.strip() for name in arguments.tasks.split(","))
    options_given["contract"] = arguments.contract or demo_contract()
    options = Options(**options_given)

    provide_messages()
    from vla_accel_ros.tools.demo.run import run

    return run(options)
