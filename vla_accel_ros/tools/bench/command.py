"""`vla bench SUBJECT`: what is measured on this machine, a module each, which adds itself to SUBJECTS."""

from __future__ import annotations

import argparse

from vla_accel_ros.tools.bench import engine, precision
from vla_accel_ros.tools.bench.pipeline import command as pipeline

SUBJECTS = (engine, pipeline, precision)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    what = "measure on this machine"
    parser = subparsers.add_parser("bench", help=what, description=what)
    subjects = parser.add_subparsers(title="subjects", required=True, metavar="SUBJECT", dest="subject")
    for module in SUBJECTS:
        module.register(subjects)
