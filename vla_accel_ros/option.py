"""Records of options: dataclasses whose fields say their range, choices, help and former name.

Node parameters, the parameter files, options of commands, docs/reference/parameters.md and the record of a
session are made from them, so an option stands once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Option:
    """What a field of a record of options says of itself.

    minimum, maximum: inclusive range of a number. choices: the allowed words, empty for any. former: its name
    in parameter files, commands and recordings of earlier versions. parameter: whether nodes have it as a
    parameter; a node sets the others from its contract and the rates of its loops. fleet: whether a fleet's
    engine has a use for it. in_nodes: what a parameter has otherwise (default, choices, minimum).
    """

    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    former: str = ""
    parameter: bool = True
    fleet: bool = True
    in_nodes: Mapping[str, Any] = field(default_factory=dict)

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError if the option cannot have this value."""
        if self.choices and value not in self.choices:
            raise ValueError(f"{name} is {value!r:.100}; use one of {', '.join(map(repr, self.choices))}.")
        low, high = self.minimum, self.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            limits = f"{low} or more" if high is None else f"{low} to {high}"
            raise ValueError(f"{name} is {value}; give {limits}.")


def option(default: Any, help: str, **about: Any) -> Any:
    """A field of a record of options. about: further fields of Option."""
    return field(default=default, metadata={"option": Option(help, **about)})


def options(record: type) -> dict[str, Option]:
    """The options of a record, by name."""
    return {entry.name: entry.metadata["option"] for entry in fields(record) if "option" in entry.metadata}


KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}


def check_options(record: Any) -> None:
    """Raises ValueError, one sentence, if an option of a record has a value that it cannot have."""
    defaults = {entry.name: entry.default for entry in fields(record)}
    for name, entry in options(type(record)).items():
        value, kind = getattr(record, name), type(defaults[name])
        accepted, noun = KINDS.get(kind, (object, ""))
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind in (int, float)):
            raise ValueError(f"{name} is {value!r:.100}; give {noun}.")
        entry.check(name, value)
