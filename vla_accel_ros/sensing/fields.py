"""A YAML file read field by field, so that a mistake is named by its path.

A configuration is checked once, where it is loaded. Each reading consumes its key; `close` refuses the ones
nobody asked for, since a misspelt optional key would otherwise be ignored in silence. Keys written twice are
refused too (YAML would keep the last). Every error is one sentence: file, path, value, mend.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

_REQUIRED: Any = object()


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
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{file}: not valid YAML, mend it here: {' '.join(str(error).split())}"
            ) from error

    def number(self, key: str, *, above: float | None = None, default: float = _REQUIRED) -> float:
        """A finite number, greater than `above` if that is given."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.refuse(key, value, "is not a finite number", "write one such as 0.5")
        if above is not None and value <= above:
            self.refuse(key, value, f"is not greater than {above:g}", "raise it")
        return float(value)

    def choice(self, key: str, choices: Sequence[Any], default: Any = _REQUIRED) -> Any:
        """One of `choices`."""
        value = self._take(key, default)
        if isinstance(value, bool) or value not in choices:
            self.refuse(key, value, "is unknown", "write " + " or ".join(map(str, choices)))
        return value

    def text(self, key: str, pattern: str = r"\S(.*\S)?", form: str = "a text") -> str:
        """A string that matches `pattern` whole; `form` says in words what that is."""
        return self._text(key, self._take(key, _REQUIRED), pattern, form)

    def texts(self, key: str, pattern: str, form: str) -> tuple[str, ...]:
        """A list of at least one such string."""
        value = self._list(key)
        return tuple(self._text(f"{key}[{i}]", item, pattern, form) for i, item in enumerate(value))

    def child(self, key: str) -> Fields:
        """The mapping under `key`."""
        return Fields(self._file, self._at(key), self._take(key, _REQUIRED))

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

    def close(self) -> None:
        """Refuse the keys that nothing has read."""
        for key, value in self._left.items():
            self.refuse(key, value, "is an unknown key", "remove it or mend its spelling")

    def refuse(self, key: str, value: object, what: str, mend: str) -> NoReturn:
        """Raise the ValueError of this field."""
        self._refuse(self._at(key), value, what, mend)

    def _refuse(self, path: str, value: object, what: str, mend: str) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ValueError(f"{self._file}: {path} = {shown} {what}: {mend}")

    def _take(self, key: str, default: Any) -> Any:
        if key in self._left:
            return self._left.pop(key)
        if default is _REQUIRED:
            raise ValueError(f"{self._file}: {self._at(key)} is missing: add it")
        return default

    def _list(self, key: str) -> list[Any]:
        value = self._take(key, _REQUIRED)
        if not isinstance(value, list) or not value:
            self.refuse(key, value, "is not a list of at least one entry", "write - entry or [entry, ...]")
        return value

    def _text(self, key: str, value: object, pattern: str, form: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            self.refuse(key, value, f"is not {form}", "mend it")
        return value

    def _at(self, key: object) -> str:
        return f"{self._path}.{key}" if self._path else str(key)


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
