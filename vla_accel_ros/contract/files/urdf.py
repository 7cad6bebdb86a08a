"""Joint limits from a URDF file, so that they need not be copied into a contract by hand.

Only <limit lower upper velocity> and <mimic joint> of the joints below <robot> are read; positions in rad or
m, velocities per second. A URDF has no acceleration limits, and effort is the controller's business. The file
may come from anyone: a DOCTYPE, and with it every entity, is refused before it is parsed. xacro is a program,
not a description, and is refused too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

MOST_BYTES = 4 << 20
"""Limit for a file; the parser takes up to thirty times as much memory. Two arms on a base take some 200
kB."""
_MOVING = ("revolute", "continuous", "prismatic")


@dataclass(frozen=True)
class UrdfJoint:
    """One joint that can move; None for a limit that the file does not give. mimics: the joint that it
    follows, empty if it moves by itself. problem: a sentence that says why its limits cannot be used, empty
    if they can; a robot's description may have such joints that no contract names."""

    name: str
    kind: str
    lower: float | None
    upper: float | None
    velocity: float | None
    mimics: str = ""
    problem: str = ""


def read(path: str | Path) -> dict[str, UrdfJoint]:
    """The moving joints of a URDF by name.

    Raises ValueError, one sentence with the file and the fix, if it is not a plain URDF; OSError if the file
    cannot be read.
    """
    file = Path(path)
    if file.suffix == ".xacro":
        raise ValueError(_xacro(file))
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(
            f"{file}: has {file.stat().st_size} bytes, a URDF has at most {MOST_BYTES}: give the file "
            "without meshes in it"
        )
    return parse(file.read_bytes(), file)


def parse(content: bytes, file: Path) -> dict[str, UrdfJoint]:
    """The moving joints of the content of a URDF file. Raises ValueError as `read` does."""
    try:
        root = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Plain()))
    except _Doctype:
        raise ValueError(f"{file}: has a DOCTYPE, which no URDF needs: remove it") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{file}: not valid XML, fix it here: {error}") from error
    if any("xacro" in element.tag for element in root.iter()):
        raise ValueError(_xacro(file))
    if root.tag != "robot":
        raise ValueError(f"{file}: begins with <{root.tag}>, not <robot>: give a URDF file")
    joints = {}
    for element in root.findall("joint"):
        name, kind = element.get("name"), element.get("type")
        if not name:
            raise ValueError(f"{file}: a <joint> has no name: add it")
        if name in joints:
            raise ValueError(f"{file}: joint {name!r} occurs twice: name every joint once")
        if kind in _MOVING:
            mimic = element.find("mimic")
            mimics = "" if mimic is None else mimic.get("joint", "another")
            try:
                joints[name] = replace(_joint(file, name, kind, element.find("limit")), mimics=mimics)
            except ValueError as error:
                joints[name] = UrdfJoint(name, kind, None, None, None, mimics, str(error))
    return joints


def _joint(file: Path, name: str, kind: str, limit: ElementTree.Element | None) -> UrdfJoint:
    def number(key: str) -> float | None:
        text = None if limit is None else limit.get(key)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{file}: joint {name!r} has {key} = {text!r}, not a finite number: fix it")
        return value

    lower, upper, velocity = number("lower"), number("upper"), number("velocity")
    if kind == "continuous":
        lower = upper = None
    elif limit is not None:
        # The format's own defaults, which leave the joint no range unless one of them is given.
        lower, upper = lower or 0.0, upper or 0.0
        if lower >= upper:
            raise ValueError(
                f"{file}: joint {name!r} has lower = {lower:g}, not below upper = {upper:g}: fix them"
            )
    if velocity is not None and velocity <= 0.0:
        raise ValueError(f"{file}: joint {name!r} has velocity = {velocity:g}, so it may not move: raise it")
    return UrdfJoint(name, kind, lower, upper, velocity)


def _xacro(file: Path) -> str:
    return f"{file}: is xacro, not URDF: run `xacro {file.name} > robot.urdf` and give that file"


class _Doctype(Exception):
    pass


class _Plain(ElementTree.TreeBuilder):
    """Aborts parsing at a document type, which comes before any entity could be declared."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise _Doctype
