"""`vla say` and `vla ask`: talk to a running robot from a terminal, and print its reaction.

Status 0: the robot follows the instruction, or has answered. Status 1: it does not, with the causes, as soon
as they are known. Both wait for nodes that are starting.
"""

from __future__ import annotations

import argparse
import math
import sys

from vla_accel_ros.tools.options import namespace_option, subcommand, timeout_option


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both subcommands."""
    what = "give a robot an instruction, and report whether it moves"
    saying = subcommand(subparsers, "say", what, say)
    asking = subcommand(subparsers, "ask", "ask a robot a question, and print its answer", ask)
    for parser, words in ((saying, "INSTRUCTION"), (asking, "QUESTION")):
        parser.add_argument("words", metavar=words, help="the words as one argument, in quotes")
        namespace_option(parser)
        timeout_option(parser, 20.0, "once the nodes have started")


def _checked(arguments: argparse.Namespace) -> tuple[str, float]:
    if not arguments.words.strip():
        raise ValueError(f"the {arguments.subcommand} has no words: write them in quotes")
    if not (0.0 < arguments.timeout < math.inf):
        raise ValueError(f"--timeout is {arguments.timeout:g}: give seconds, more than 0")
    return arguments.words, arguments.timeout


def say(arguments: argparse.Namespace) -> int:
    """Deliver the instruction, and print whether the robot moves."""
    from rich.console import Console

    from vla_accel_ros.nodes.clients.messenger import Messenger

    words, timeout_s = _checked(arguments)
    with (
        Console(stderr=True).status("") as status,
        Messenger(arguments.namespace, status.update) as messenger,
    ):
        messenger.instruct(words, timeout_s)
        print(f"inference has it: {words!r}", flush=True)
        moves, outcome = messenger.outcome(timeout_s)
    print(outcome, file=sys.stdout if moves else sys.stderr)
    return 0 if moves else 1


def ask(arguments: argparse.Namespace) -> int:
    """Deliver the question, and print the answer as it grows."""
    from vla_accel_ros.nodes.clients.messenger import Messenger

    words, timeout_s = _checked(arguments)
    try:
        with Messenger(arguments.namespace) as messenger:
            answered, text = messenger.ask(words, timeout_s, lambda piece: print(piece, end="", flush=True))
    finally:
        print()
    if not answered:
        print(f"the question was refused: {text}", file=sys.stderr)
    return 0 if answered else 1
