"""Lines of a contract: a key, its value, and where the value is from."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable

import yaml

from vla_accel_ros.contract.files.fields import UNKNOWN
from vla_accel_ros.contract.parts import NAME


def line(depth: int, key: str, value: str, origin: str) -> str:
    """A line of the file, its origin as a comment."""
    comment = f"  # {' '.join(origin.split())}" if origin else ""
    return f"{'  ' * depth}{key}: {value}{comment}"


def comment(text: str) -> list[str]:
    """Lines of a comment."""
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ")


def listed(names: Iterable[str]) -> str:
    """Names as a list in YAML."""
    return f"[{', '.join(map(plain, names))}]"


def plain(name: str) -> str:
    """A name in YAML."""
    known = name == UNKNOWN or (re.fullmatch(NAME, name) and yaml.safe_load(name) == name)
    return name if known else json.dumps(name, ensure_ascii=False)
