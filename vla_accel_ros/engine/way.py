"""Who goes first where work shares a device: urgent work takes the way, the rest gives it.

On a CPU, or on one stream of a GPU, a token of text that has begun is in the way of an action that is due. So
before each token whoever speaks waits until nobody sees or acts, but not for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 0.2


class RightOfWay:
    """Urgent work takes it, others give it: `give` waits until nobody has it taken, at most `patience_s`."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._free = threading.Condition()
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have it while the block runs; never waits."""
        with self._free:
            self._taken += 1
        try:
            yield
        finally:
            with self._free:
                self._taken -= 1
                self._free.notify_all()

    def give(self) -> bool:
        """Wait until nobody has it; False when patience ended first."""
        with self._free:
            return self._free.wait_for(lambda: not self._taken, timeout=self._patience_s)
