"""Write what is made from the parameters of the nodes: config/*.yaml and docs/reference/parameters.md.

With --check, only report whether they are up to date. The parameters stand in vla_accel_ros/nodes/params,
those of an engine in vla_accel_ros/engine/config.py. Launch arguments give `contract`, `model` and
`autostart`, so the files leave them out.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import yaml
from generated import ROOT, write_or_check

sys.path.insert(0, str(ROOT))

from vla_accel_ros.nodes.params.parameter import Parameter, Value
from vla_accel_ros.nodes.params.tables import NODES

WIDTH = 118
BY_LAUNCH = ("autostart", "contract", "model")
BY_GOAL = (
    "A line #name: value has the default of an engine's option: remove the # to set it, also over what goal "
    "sets."
)
FILES = {
    "params.yaml": (
        ("inference", "trajectory", "recorder"),
        "Parameters of the nodes on a robot, read on configure. These values are the nodes' own defaults, "
        "so keep only what you change. The robot's own settings (topics, joints, limits, ages) are in its "
        "contract; contract, model "
        "and autostart are arguments of bringup.launch.py. " + BY_GOAL,
    ),
    "fleet.yaml": (
        ("fleet_scheduler",),
        "Parameters of the scheduler of a fleet (docs/lab/fleet_scheduler.md), read on configure. These "
        "values are the node's own defaults, so keep only what you change. contract, model and autostart "
        "are arguments of "
        "fleet.launch.py. " + BY_GOAL,
    ),
    "sim.yaml": (
        ("sim_robot",),
        "Parameters of the simulated robot. These values are the node's own defaults, so keep only what you "
        "change.",
    ),
    "camera.yaml": (
        ("camera",),
        "Parameters of a camera. These values are the node's own defaults, so keep only what you change. "
        "For several cameras give each its own section, with the name of its node (name:= of "
        "camera.launch.py).",
    ),
}
PAGE = """# Parameters

Made by `python scripts/parameters.py` from the code; do not edit.

Set them in a copy of [params.yaml](../../config/params.yaml) or [fleet.yaml](../../config/fleet.yaml), passed
as `params_file`. Options of an engine are also arguments of bringup.launch.py, of fleet.launch.py and, in
Python, of `Engine(...)`. `goal` sets those that are not set themselves.
"""


def document(name: str) -> str:
    """The text of a parameter file."""
    nodes, head = FILES[name]
    lines = _comment(head)
    for node in nodes:
        lines += ["", f"/**/{node}:", "  ros__parameters:"]
        for parameter in NODES[node]:
            if parameter.name not in BY_LAUNCH:
                lines += _comment(f"{parameter.description}{_range(parameter)}", "    ")
                sign = "#" if parameter.by_goal else ""
                lines.append(f"    {sign}{parameter.name}: {_yaml(parameter.default)}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The text of docs/reference/parameters.md."""
    lines, places = [PAGE], dict[Parameter, str]()
    for node, table in NODES.items():
        lines += [f"## {node}", ""]
        for other in dict.fromkeys(places[parameter] for parameter in table if parameter in places):
            shared = (f"`{each.name}`" for each in table if places.get(each) == other)
            lines += [f"As of {other}: {', '.join(shared)}.", ""]
        lines += ["| parameter | default | |", "| --- | --- | --- |"]
        for parameter in table:
            if parameter in places:
                continue
            places[parameter] = node
            former = f" Formerly `{parameter.former}`." if parameter.former else ""
            text = f"{parameter.description}{_range(parameter)}{former}".replace("|", "\\|")
            lines.append(f"| `{parameter.name}` | `{_yaml(parameter.default)}` | {text} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def documents() -> dict[Path, str]:
    """Each generated file and its text."""
    files = {ROOT / "config" / name: document(name) for name in FILES}
    return {**files, ROOT / "docs" / "reference" / "parameters.md": page()}


def _comment(text: str, indent: str = "") -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _range(parameter: Parameter) -> str:
    low, high = parameter.minimum, parameter.maximum
    return "" if low is None or high is None else f" From {low:g} to {high:g}."


def _yaml(value: Value) -> str:
    if isinstance(value, str):
        plain = re.fullmatch(r"[a-z0-9_-]*[a-z][a-z0-9_-]*", value) and isinstance(yaml.safe_load(value), str)
        return value if plain else f'"{value}"'  # off is a bool
    return str(value).lower()


if __name__ == "__main__":
    raise SystemExit(write_or_check(__doc__, "parameters.py", documents()))
