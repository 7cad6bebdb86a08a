"""`vla fleet`: the group of subcommands, each a module that offers `register`."""

from __future__ import annotations

import argparse

from vla_accel_ros.tools.fleet import top, up

SUBCOMMANDS = (up, top)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group and its subcommands."""
    purpose = "start a fleet's scheduler with its replicas, or look at a running fleet"
    parser = subparsers.add_parser("fleet", help=purpose, description=purpose)
    group = parser.add_subparsers(title="subcommands", required=True, metavar="SUBCOMMAND", dest="of_fleet")
    for module in SUBCOMMANDS:
        module.register(group)
