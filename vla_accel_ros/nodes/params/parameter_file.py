"""Reads a node's parameters from a ROS 2 parameter file before there is a node. No ROS: launch files import
it.

It reads the file as rcl does: a key is a node's full name, in which `*` stands for one part and `**` for any
number, or a tree of such parts; if several match, the last in the file counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

_PARAMETERS = "ros__parameters"


def parameter_of(path: str | Path, node: str, name: str, default: str) -> str:
    """The text of a parameter of a node, by its full name. Returns the default if the file does not give it
    or does not exist, which the node will report. Raises ValueError if the file is not YAML."""
    if not Path(path).is_file():
        return default
    try:
        tree = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    values = [
        str(parameters[name])
        for pattern, parameters in _sections(tree)
        if _fits(pattern, node) and name in parameters
    ]
    return values[-1] if values else default


def _sections(tree: object, above: str = "") -> Iterator[tuple[str, Mapping[str, object]]]:
    for key, inside in tree.items() if isinstance(tree, Mapping) else ():
        if key == _PARAMETERS and isinstance(inside, Mapping):
            yield above, inside
        else:
            yield from _sections(inside, f"{above}/{str(key).strip('/')}")


def _fits(pattern: str, node: str) -> bool:
    parts = [part for part in pattern.split("/") if part]
    form = "".join("(/[^/]+)*" if p == "**" else "/[^/]+" if p == "*" else "/" + re.escape(p) for p in parts)
    return re.fullmatch(form, "/" + node.strip("/")) is not None
