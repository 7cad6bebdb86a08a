"""Reads a YAML file field by field, and reports all mistakes at once, each with its field's path.

A configuration is checked once, where it is loaded. Each read consumes its key. `close` refuses the keys that
nothing has read, since a misspelt optional key would otherwise be ignored. Duplicate keys are refused too
(YAML would keep the last). After a mistake, reading goes on with a value that breaks no other rule (nan, an
empty text, the first choice), so that one mistake is reported once. `finish` raises what was noted. Every
mistake is one sentence: path, value, fix.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vla_accel_ros.contract.files import bounded_yaml

MOST_MISTAKES = 20
"""A file with more mistakes is not a contract: reading ends there."""
UNKNOWN = "???"
"""Of a field that is still to be filled in."""
_BARE = re.compile(r"(?<=[\s\[,])\?\?\?(?=\s*(?:[,\]}#]|$))", re.MULTILINE)
"""It within brackets, where YAML takes no bare question mark."""
_REQUIRED: Any = object()
# Nested YAML aliases can stand for more values than any memory holds, so the shown text is bounded.
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80


class Fields:
    """One YAML mapping and its place. file: for the errors. path: dotted, empty at the top. mistakes: those
    of the whole file by path, shared by its mappings."""

    def __init__(self, file: str, path: str, value: object, mistakes: dict[str, str] | None = None):
        self._file, self._path = file, path
        self._mistakes = {} if mistakes is None else mistakes
        self._expected: set[str] = set()
        self._is_mapping = isinstance(value, dict)
        self._unread: dict[Any, Any] = dict(value) if isinstance(value, dict) else {}
        self._keys = frozenset(map(str, self._unread))
        if not self._is_mapping and value is not _REQUIRED:
            problem = "is not a mapping" if path else "does not hold a mapping"
            self._note(path or "the file", _shown(path or "the file", value, problem, "write key: value"))

    @classmethod
    def load(cls, file: str | Path) -> Fields:
        """Parse a YAML file. Raises ValueError if it is not a YAML mapping, OSError if it cannot be read."""
        return cls.parse(Path(file).read_bytes(), str(file))

    @classmethod
    def parse(cls, text: bytes, file: str) -> Fields:
        """Parse the text of a file. Raises ValueError if it is not a YAML mapping."""
        try:
            value = bounded_yaml.load(_BARE.sub(f'"{UNKNOWN}"', text.decode("utf-8")), _UniqueKeys)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            problem = "it is nested too deeply; write it flat" if deep else " ".join(str(error).split())
            raise ValueError(f"{file}: not valid YAML, fix it here: {problem}") from error
        fields = cls(file, "", value)
        fields.finish()
        return fields

    def finish(self) -> None:
        """Raises ValueError with all mistakes so far: a sentence for one, a list for several."""
        if self._mistakes:
            self._raise("")

    def number(
        self,
        key: str,
        *,
        above: float | None = None,
        least: float = -math.inf,
        most: float = math.inf,
        default: float = _REQUIRED,
    ) -> float:
        """A finite number, greater than `above` if that is given, and from `least` to `most`; nan after a
        mistake. A default may be any number."""
        if default is not _REQUIRED and not self.has(key):
            return default
        value = self.take(key)
        if value is _REQUIRED:
            return math.nan
        number = self._number(key, value)
        if above is not None and number <= above:
            self.refuse(key, value, f"is not greater than {above:g}", "raise it")
        elif number < least:
            self.refuse(key, value, f"is less than {least:g}", "raise it")
        elif number > most:
            self.refuse(key, value, f"is more than {most:.15g}", "lower it")
        else:
            return number
        return math.nan

    def optional(self, key: str, *, above: float | None = None) -> float | None:
        """`number`, or None if the key is absent."""
        return self.number(key, above=above) if self.has(key) else None

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of exactly `count` finite numbers."""
        value = self._list(key)
        if value and len(value) != count:
            self.refuse(key, value, f"has {len(value)} entries", f"give {count}")
        if len(value) != count:
            return (math.nan,) * count
        return tuple(self._number(f"{key}[{i}]", item) for i, item in enumerate(value))

    def named_numbers(self, key: str) -> dict[str, float]:
        """The mapping of at least one name to a finite number under `key`, in the file's order."""
        outer = self._nonempty(key)
        return {
            self._text(key, name, r"\S(.*\S)?", "a name"): outer._number(str(name), value)
            for name, value in outer._unread.items()
        }

    def named_texts(self, key: str) -> dict[str, str]:
        """The mapping of at least one name to a text under `key`, in the file's order."""
        outer = self._nonempty(key)
        return {str(name): outer.text(str(name)) for name in list(outer._unread)}

    def choice(self, key: str, choices: Sequence[Any], default: Any = _REQUIRED) -> Any:
        """One of `choices`; the first one after a mistake."""
        value = self.take(key, default)
        if value is _REQUIRED:
            return choices[0]
        if isinstance(value, bool) or value not in choices:
            self.refuse(key, value, "is unknown", "write " + " or ".join(map(str, choices)))
            return choices[0]
        return value

    def flag(self, key: str) -> bool:
        """true or false; false after a mistake."""
        value = self.take(key)
        if value is not _REQUIRED and not isinstance(value, bool):
            self.refuse(key, value, "is not true or false", "write one of them")
        return value is True

    def text(
        self, key: str, pattern: str = r"\S(.*\S)?", form: str = "a text", default: str = _REQUIRED
    ) -> str:
        """A string that matches the whole `pattern`, or the default; `form` describes the pattern in words.
        Empty after a mistake."""
        if default is not _REQUIRED and not self.has(key):
            return default
        value = self.take(key)
        return "" if value is _REQUIRED else self._text(key, value, pattern, form)

    def texts(self, key: str, pattern: str, form: str) -> tuple[str, ...]:
        """A list of at least one string that matches `pattern`."""
        value = self._list(key)
        return tuple(self._text(f"{key}[{i}]", item, pattern, form) for i, item in enumerate(value))

    def child(self, key: str) -> Fields:
        """The mapping under `key`."""
        return Fields(self._file, self._at(key), self.take(key), self._mistakes)

    def children(self, key: str) -> list[Fields]:
        """The list of at least one mapping under `key`."""
        items = enumerate(self._list(key))
        return [Fields(self._file, self._at(f"{key}[{i}]"), item, self._mistakes) for i, item in items]

    def named(self, key: str, pattern: str, form: str) -> list[tuple[str, Fields]]:
        """The mapping of at least one name to a mapping under `key`, in the file's order."""
        outer = self._nonempty(key)
        for name in outer._unread:
            self._text(key, name, pattern, form)
        return [(str(name), outer.child(name)) for name in list(outer._unread)]

    def has(self, key: str) -> bool:
        """Whether the key is there and has not been read yet."""
        self._expected.add(key)
        return key in self._unread

    def contains(self, key: str) -> bool:
        """Whether the file has the key, read or not."""
        return key in self._keys

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of the key as YAML gave it, or the default; a missing key without default is a mistake,
        and so is one that is not filled in."""
        if self.has(key):
            value = self._unread.pop(key)
            if value != UNKNOWN:
                return value
            self._note(self._at(key), UNKNOWN)
            return _REQUIRED
        if default is _REQUIRED:
            self.missing(key, "add it")
        return default

    def take_off(self, key: str) -> bool:
        """Whether the key says `off`, which YAML reads as False; if so, it is consumed. The number 0 does
        not: it equals False, and means the opposite."""
        if not self.has(key) or not (self._unread[key] is False or self._unread[key] == "off"):
            return False
        self._unread.pop(key)
        return True

    def valid(self, key: str) -> bool:
        """Whether no mistake was noted about this field or anything below it."""
        field = self._at(key)
        return not any(
            path == field or path.startswith((f"{field}.", f"{field}[")) for path in self._mistakes
        )

    def missing(self, key: str, fix: str) -> None:
        """Note that a field is missing."""
        if self._is_mapping:
            self._note(self._at(key), f"{self._at(key)} is missing: {fix}")

    def close(self) -> None:
        """Refuse the keys that nothing has read; suggests an absent key with a similar name."""
        absent = self._expected - self._keys
        for key, value in self._unread.items():
            meant = difflib.get_close_matches(str(key), absent, n=1, cutoff=0.7)
            fix = f"did you mean {meant[0]}?" if meant else "remove it or fix its spelling"
            if meant:
                self._mistakes.pop(self._at(meant[0]), None)
            self.refuse(key, value, "is an unknown key", fix)

    def refuse(self, key: object, value: object, problem: str, fix: str) -> None:
        """Note a mistake in this field."""
        self._note(self._at(key), _shown(self._at(key), value, problem, fix))

    def _note(self, path: str, sentence: str) -> None:
        self._mistakes.setdefault(path, sentence)
        if sum(noted != UNKNOWN for noted in self._mistakes.values()) >= MOST_MISTAKES:
            self._raise(" and perhaps more")

    def _raise(self, more: str) -> NoReturn:
        sentences = [mistake for mistake in self._mistakes.values() if mistake != UNKNOWN]
        unknown = ", ".join(path for path, mistake in self._mistakes.items() if mistake == UNKNOWN)
        if unknown:
            sentences.append(f"not filled in yet ({UNKNOWN}): {unknown}: write the robot's own values")
        if len(sentences) == 1:
            raise ValueError(f"{self._file}: {sentences[0]}")
        raise ValueError("\n  ".join([f"{self._file}: {len(sentences)} mistakes{more}:", *sentences]))

    def _number(self, key: str, value: Any) -> float:
        if value == UNKNOWN:
            self._note(self._at(key), UNKNOWN)
            return math.nan
        # An int too large for a float is not a finite number either.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not _finite(value):
            self.refuse(key, value, "is not a finite number", "write one such as 0.5")
            return math.nan
        return float(value)

    def _list(self, key: str) -> list[Any]:
        value = self.take(key)
        if value is _REQUIRED:
            return []
        if not isinstance(value, list) or not value:
            self.refuse(key, value, "is not a list of at least one entry", "write - entry or [entry, ...]")
            return []
        return value

    def _nonempty(self, key: str) -> Fields:
        fields = self.child(key)
        if fields._is_mapping and not fields._unread:
            self.refuse(key, {}, "is empty", "give at least one")
        return fields

    def _text(self, key: str, value: object, pattern: str, form: str) -> str:
        if value == UNKNOWN:
            self._note(self._at(key), UNKNOWN)
            return ""
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            self.refuse(key, value, f"is not {form}", "fix it")
            return ""
        return value

    def _at(self, key: object) -> str:
        return f"{self._path}.{key}" if self._path else str(key)


def closest(word: str, known: Iterable[str], otherwise: str) -> str:
    """The fix for an unknown name: the known one that was probably meant, or `otherwise`."""
    meant = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"did you mean {meant[0]}?" if meant else otherwise


def _shown(path: str, value: object, problem: str, fix: str) -> str:
    shown = _SHOWN.repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    path, fix = (text if len(text) <= 300 else text[:297] + "..." for text in (path, fix))
    return f"{path} = {shown} {problem}: {fix}"


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


class _UniqueKeys(bounded_yaml.Loader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for node_of_key, _ in node.value:
            problem = ""
            if not isinstance(node_of_key, yaml.ScalarNode):
                problem = "a key is not plain text"
            elif node_of_key.value in keys:
                problem = f"the key {node_of_key.value!r} occurs twice"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, node_of_key.start_mark)
            keys.add(node_of_key.value)
        return super().construct_mapping(node, deep)
