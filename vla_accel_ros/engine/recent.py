"""A cache of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, ValuesView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of the `most` values that were put or got last, None = all."""

    def __init__(self, most: int | None = None) -> None:
        self._most, self._held = most, OrderedDict[K, V]()

    def get(self, key: K) -> V | None:
        """The value, None if there is none."""
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: K, value: V) -> V:
        """Store and return a value; the least recently used one is dropped if there are too many."""
        self._held[key] = value
        self._held.move_to_end(key)
        if self._most is not None and len(self._held) > self._most:
            self._held.popitem(last=False)
        return value

    def values(self) -> ValuesView[V]:
        """All values, least recently used first."""
        return self._held.values()

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
