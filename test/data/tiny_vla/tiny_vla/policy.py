"""A scheduling policy that has nothing to do."""

from __future__ import annotations

from typing import Any


class Nothing:
    """Never runs anything."""

    def next(self, lane: Any, ready: Any, now: float) -> None:
        """The next micro-batch."""
