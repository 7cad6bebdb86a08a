"""When a request that takes unusually long is given to a second replica as well, and which of the two counts.

Unusual is longer than 99 of 100 took on the same replica lately; before ENOUGH were seen nothing is. So about
one request in a hundred is computed twice, and only where there is room that nobody waits for. What was
broken off counts as long as it took until then, so that a slow replica does not look fast.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque

ENOUGH = 30
KEPT = 512
"""Of the newest requests of a replica."""
SHARE = 0.99


class Hedging:
    """Of one fleet; by the names of replicas. Times are seconds from dispatch to answer."""

    def __init__(self) -> None:
        self._took_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def took(self, replica: str, took_s: float) -> None:
        """A request was answered, or broken off, after so long."""
        self._took_s[replica].append(took_s)

    def after_s(self, replica: str) -> float:
        """When a request there is unusually long; inf while too few were seen."""
        took_s = self._took_s[replica]
        if len(took_s) < ENOUGH:
            return math.inf
        return sorted(took_s)[math.ceil(SHARE * len(took_s)) - 1]
