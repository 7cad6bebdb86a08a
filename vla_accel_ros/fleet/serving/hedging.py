"""When a slow request is given to a second replica as well.

Slow means longer than 99 of 100 latest requests on the same replica; nothing is slow before ENOUGH requests
were seen. So about one request in a hundred is computed twice, and only if a replica has free room. Cancelled
work counts with its time until then, so that a slow replica does not look fast.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque

ENOUGH = 30
KEPT = 512
"""Latest requests remembered of each replica."""
SHARE = 0.99


class Hedging:
    """Request durations of one fleet by replica name, in seconds from dispatch to answer."""

    def __init__(self) -> None:
        self._took_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def took(self, replica: str, took_s: float) -> None:
        """Record a request that was answered or cancelled after took_s."""
        self._took_s[replica].append(took_s)

    def after_s(self, replica: str) -> float:
        """Return the duration above which a request is slow; inf while too few were seen."""
        took_s = self._took_s[replica]
        if len(took_s) < ENOUGH:
            return math.inf
        return sorted(took_s)[math.ceil(SHARE * len(took_s)) - 1]
