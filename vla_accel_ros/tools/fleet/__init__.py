"""`vla fleet ...`: starts a fleet, and shows a running one.

up starts head, replicas and scheduler. top shows the live table; board gathers its rows from messages, and
table draws it.
"""

from __future__ import annotations

import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the group and its subcommands."""
    from vla_accel_ros.tools.fleet import top, up

    purpose = "start a fleet's scheduler with its replicas, or look at a running fleet"
    parser = subparsers.add_parser("fleet", help=purpose, description=purpose)
    group = parser.add_subparsers(title="subcommands", required=True, metavar="SUBCOMMAND", dest="of_fleet")
    for module in (up, top):
        module.register(group)
