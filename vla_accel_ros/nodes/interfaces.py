"""Interfaces by name: imports the class of one on demand, and reads the text of a message type.

control_msgs comes with ros2_control, moveit_msgs with MoveIt; neither is on the Python package index. A node
whose controller needs one gets it, or one sentence that says what to install; no other node needs them.

A bag carries the text of its message types, so that it can be read where a package is not installed. A
ros2msg definition is the .msg file, followed by those of all nested messages, each after a line of `=` and
its name. The files are installed with every interface package and, since Iron, with the type's hash.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

_LINE = "=" * 80
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_PRIMITIVES = {"bool", "byte", "char", "float32", "float64", "string", "wstring", *_INTEGERS}
_FIELD = re.compile(r"^\s*([A-Za-z][\w/]*)(<=\d+)?(\[[^\]]*\])?\s+[A-Za-z]\w*")
_CONSTANT = re.compile(r"^\s*[\w/]+(<=\d+)?\s+[A-Z]\w*\s*=")


def interface(full_name: str, purpose: str) -> Any:
    """The class of an interface such as control_msgs/action/FollowJointTrajectory.

    purpose: what needs it, the beginning of the sentence. Raises ValueError if it is not installed.
    """
    package, kind, name = full_name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError) as error:
        debian = f"ros-{os.environ.get('ROS_DISTRO', '$ROS_DISTRO')}-{package.replace('_', '-')}"
        raise ValueError(
            f"{purpose} needs {full_name}, which cannot be imported ({error}): sudo apt install {debian}"
        ) from error


@cache
def definition(kind: str) -> str:
    """The ros2msg definition of a type such as "std_msgs/msg/String".

    Raises FileNotFoundError if its package, or one that it uses, is not installed.
    """
    texts: dict[str, str] = {}
    _collect(kind.replace("/msg/", "/"), texts)
    first, *further = texts.items()
    return "".join([first[1], *(f"\n{_LINE}\nMSG: {name}\n{text}" for name, text in further)])


@cache
def digest(kind: str) -> str:
    """The type's RIHS01 hash; empty if it is not installed, as before Iron."""
    try:
        hashes = json.loads(_file(kind.replace("/msg/", "/"), "json").read_text())["type_hashes"]
    except (OSError, ValueError, KeyError):
        return ""
    return next((entry["hash_string"] for entry in hashes if entry["type_name"] == kind), "")


def type_name(kind: type) -> str:
    """ "std_msgs/msg/String" of its class."""
    return f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"


def _collect(name: str, texts: dict[str, str]) -> None:
    if name in texts:
        return
    texts[name] = _file(name, "msg").read_text()
    package = name.partition("/")[0]
    for line in texts[name].splitlines():
        field = None if _CONSTANT.match(line) else _FIELD.match(line.partition("#")[0])
        if field and field[1] not in _PRIMITIVES:
            _collect(field[1] if "/" in field[1] else f"{package}/{field[1]}", texts)


def _file(name: str, suffix: str) -> Path:
    package, _, message = name.partition("/")
    prefixes = [*filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)), sys.prefix]
    for prefix in prefixes:
        path = Path(prefix) / "share" / package / "msg" / f"{message}.{suffix}"
        if path.exists():
            return path
    raise FileNotFoundError(f"{name}.{suffix} is in none of {', '.join(prefixes)}: install {package}")
