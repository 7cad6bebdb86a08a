"""A YAML file read field by field, so that a mistake is named by its path.

A configuration is checked once, where it is loaded. Each reading consumes its key; `close` refuses the ones
nobody asked for, since a misspelt optional key would otherwise be ignored in silence. Keys written twice are
refused too (YAML would keep the last). Every error is one sentence: file, path, value, mend.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

_REQUIRED: Any = object()
# A few YAML aliases of aliases stand for more than any memory holds: what is shown must be bounded.
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80


class Fields:
    """One YAML mapping and where it stands. file: for the errors. path: dotted, empty at the top."""

    def __init__(self, file: str, path: str, value: object):
        self._file, self._path = file, path
        if not isinstance(value, dict):
            self._refuse(
                path or "the file",
                value,
                "is not a mapping" if path else "does not hold a mapping",
                "write key: value",
            )
        self._left: dict[str, Any] = dict(value)

    @classmethod
    def load(cls, file: str | Path) -> Fields:
        """Parse a YAML file. ValueError if it is not YAML or no mapping, OSError if it cannot be read."""
        raw = Path(file).read_bytes()
        try:
            return cls(str(file), "", yaml.load(raw.decode("utf-8"), Loader=_UniqueKeys))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{file}: not valid YAML, mend it here: {' '.join(str(error).split())}"
            ) from error

    def number(self, key: str, *, above: float | None = None, default: float = _REQUIRED) -> float:
        """A finite number, greater than `above` if that is given."""
        value = self.take(key, default)
        self._number(key, value)
        if above is not None and value <= above:
            self.refuse(key, value, f"is not greater than {above:g}", "raise it")
        return float(value)

    def optional(self, key: str, *, above: float | None = None) -> float | None:
        """`number`, or None when the key is not there."""
        return self.number(key, above=above) if self.has(key) else None

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of exactly `count` finite numbers."""
        value = self._list(key)
        if len(value) != count:
            self.refuse(key, value, f"has {len(value)} entries", f"give {count}")
        return tuple(self._number(f"{key}[{i}]", item) for i, item in enumerate(value))

    def named_numbers(self, key: str) -> dict[str, float]:
        """The mapping of at least one name to a finite number under `key`, in the file's order."""
        outer = self.child(key)
        if not outer._left:
            self.refuse(key, {}, "is empty", "give at least one")
        return {
            self._text(key, name, r"\S(.*\S)?", "a name"): outer._number(str(name), value)
            for name, value in outer._left.items()
        }

    def choice(self, key: str, choices: Sequence[Any], default: Any = _REQUIRED) -> Any:
        """One of `choices`."""
        value = self.take(key, default)
        if isinstance(value, bool) or value not in choices:
            self.refuse(key, value, "is unknown", "write " + " or ".join(map(str, choices)))
        return value

    def text(
        self, key: str, pattern: str = r"\S(.*\S)?", form: str = "a text", default: str = _REQUIRED
    ) -> str:
        """A string that matches `pattern` whole, or the default; `form` says in words what that is."""
        if default is not _REQUIRED and not self.has(key):
            return default
        return self._text(key, self.take(key), pattern, form)

    def texts(self, key: str, pattern: str, form: str) -> tuple[str, ...]:
        """A list of at least one such string."""
        value = self._list(key)
        return tuple(self._text(f"{key}[{i}]", item, pattern, form) for i, item in enumerate(value))

    def child(self, key: str) -> Fields:
        """The mapping under `key`."""
        return Fields(self._file, self._at(key), self.take(key))

    def children(self, key: str) -> list[Fields]:
        """The list of at least one mapping under `key`."""
        return [Fields(self._file, self._at(f"{key}[{i}]"), item) for i, item in enumerate(self._list(key))]

    def named(self, key: str, pattern: str, form: str) -> list[tuple[str, Fields]]:
        """The mapping of at least one name to a mapping under `key`, in the file's order."""
        outer = self.child(key)
        if not outer._left:
            self.refuse(key, {}, "is empty", "give at least one")
        for name in outer._left:
            self._text(key, name, pattern, form)
        return [(str(name), outer.child(name)) for name in list(outer._left)]

    def has(self, key: str) -> bool:
        """The key is there and has not been read yet."""
        return key in self._left

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of the key as YAML gave it, or the default."""
        if key in self._left:
            return self._left.pop(key)
        if default is _REQUIRED:
            self.missing(key, "add it")
        return default

    def missing(self, key: str, mend: str) -> NoReturn:
        """Raise the ValueError of a field that is not there."""
        raise ValueError(f"{self._file}: {self._at(key)} is missing: {mend}")

    def close(self) -> None:
        """Refuse the keys that nothing has read."""
        for key, value in self._left.items():
            self.refuse(key, value, "is an unknown key", "remove it or mend its spelling")

    def refuse(self, key: str, value: object, what: str, mend: str) -> NoReturn:
        """Raise the ValueError of this field."""
        self._refuse(self._at(key), value, what, mend)

    def _refuse(self, path: str, value: object, what: str, mend: str) -> NoReturn:
        shown = _SHOWN.repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ValueError(f"{self._file}: {path} = {shown} {what}: {mend}")

    def _number(self, key: str, value: Any) -> float:
        # An int beyond the floats is no number either.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not _finite(value):
            self.refuse(key, value, "is not a finite number", "write one such as 0.5")
        return float(value)

    def _list(self, key: str) -> list[Any]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            self.refuse(key, value, "is not a list of at least one entry", "write - entry or [entry, ...]")
        return value

    def _text(self, key: str, value: object, pattern: str, form: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            self.refuse(key, value, f"is not {form}", "mend it")
        return value

    def _at(self, key: object) -> str:
        return f"{self._path}.{key}" if self._path else str(key)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class _UniqueKeys(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is no plain text", key_node.start_mark
                )
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
