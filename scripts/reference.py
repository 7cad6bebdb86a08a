"""Write docs/reference/cli.md and contract.md; with --check, only report whether they are up to date.

The commands are those of the parsers of `vla`, the keys of a contract those that its example explains.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from generated import ROOT, write_or_check

PAGES = ROOT / "docs" / "reference"
EXAMPLE = ROOT / "config" / "contracts" / "sim_arm.yaml"
MADE = "Made by `python scripts/reference.py`; do not edit."


def commands() -> str:
    """The page of the commands."""
    lines = ["# Commands", "", MADE, ""]
    lines += [
        "`vla COMMAND --help` explains every option; `--debug` shows the traceback of an error. The status is"
    ]
    lines += ["2 for wrong arguments and files, 1 for later failures.", ""]
    sys.path.insert(0, str(ROOT))
    from vla_accel_ros.tools.cli import command_line

    for path, description, parser in _leaves("vla", "", command_line()):
        lines += [f"## {path}", "", f"{description[:1].upper()}{description[1:].rstrip('.')}.", ""]
        lines += ["```", _usage(path, parser), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def contract() -> str:
    """The page of a contract's keys."""
    return f"""# Keys of a contract

{MADE} This is [config/contracts/sim_arm.yaml](../../config/contracts/sim_arm.yaml), which
explains every key; those of `force` are in [guide/force.md](../guide/force.md), of
`teleop` in [guide/takeover.md](../guide/takeover.md). How to write one:
[guide/robot.md](../guide/robot.md).

```yaml
{EXAMPLE.read_text().rstrip()}
```
"""


def _leaves(
    path: str, description: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Commands without subcommands: what is typed, its description, its parser."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield path, parser.description or description, parser
    for group in groups:
        descriptions = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for name, child in group.choices.items():
            if child.prog.split()[-1] == name:  # not a former name
                yield from _leaves(f"{path} {name}", descriptions.get(name, ""), child)


def _usage(path: str, parser: argparse.ArgumentParser) -> str:
    words = [path]
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    for action in [action for action in parser._actions if not action.option_strings] + options:
        words.append(_word(action))
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 108:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _word(action: argparse.Action) -> str:
    """An argument as a usage line has it."""
    value = action.metavar or (action.dest if not action.option_strings else action.dest.upper())
    if isinstance(value, tuple):
        value = " ".join(value)
    elif action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    many = action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1)
    value = f"{value} ..." if many and action.nargs != 0 else value
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    name = " | ".join(action.option_strings) if isinstance(action, argparse.BooleanOptionalAction) else ""
    name = name or next(filter(lambda option: option.startswith("--"), action.option_strings))
    word = name if action.nargs == 0 else f"{name} {value}"
    return word if action.required else f"[{word}]"


if __name__ == "__main__":
    raise SystemExit(
        write_or_check(
            __doc__, "reference.py", {PAGES / "cli.md": commands(), PAGES / "contract.md": contract()}
        )
    )
