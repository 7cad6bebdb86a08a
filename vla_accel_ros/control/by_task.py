"""A parameter that says another thing for some tasks: "CHOICE", or "CHOICE; PATTERN=CHOICE; ..."."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

T = TypeVar("T")


class ByTask(Generic[T]):
    """The choices of one parameter. The first pattern that matches the instruction decides; patterns are file
    name patterns (`*`, `?`) and ignore case.

    read: makes a choice of its word; raises ValueError. example: a clause for the sentence of the ValueError
    if a pattern is missing.
    """

    def __init__(self, parameter: str, spec: str, read: Callable[[str], T], example: str) -> None:
        first, *clauses = (clause.strip() for clause in spec.split(";"))
        self._usual, self._tasks = read(first), list[tuple[str, T]]()
        for clause in clauses:
            pattern, sign, word = clause.rpartition("=")
            if not sign or not pattern.strip():
                raise ValueError(
                    f"{parameter} has {clause!r} after a ';': name the instructions it applies to, such as "
                    f"{example!r}"
                )
            self._tasks.append((pattern.strip().casefold(), read(word)))
        self.all = self._usual, *(choice for _, choice in self._tasks)

    def of(self, instruction: str) -> T:
        """The choice for a task."""
        word = instruction.strip().casefold()
        return next((choice for pattern, choice in self._tasks if fnmatchcase(word, pattern)), self._usual)
