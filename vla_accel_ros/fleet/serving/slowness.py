"""How much slower than measured a replica computes now.

A GPU may slow down after its replica was measured, for instance when it gets hot, shares its host or stalls
now and then. Each answer gives the ratio of the time it took to the time expected for as many requests as the
replica computed at once. The mean of the last KEPT_S seconds is what a request may expect. A replica that
answered nothing for KEPT_S seconds counts as measured again, so that a slow one is tried now and then.
"""

from __future__ import annotations

from collections import defaultdict, deque

ENOUGH = 4
"""Answers needed within KEPT_S."""
KEPT_S = 10.0
SMALLEST = 1.25
"""Smaller factors count as 1: answers vary by that much."""
LARGEST = 4.0
"""Of a replica that stalls when it has answered little before, so that the others are not flooded."""


class _Ratios:
    """Of one replica."""

    def __init__(self) -> None:
        self.answers, self.total = deque[tuple[float, float]](), 0.0  # (time, ratio), and the ratios' sum


class Slowness:
    """Factors of one fleet by replica name. All times in seconds."""

    def __init__(self) -> None:
        self._ratios: defaultdict[str, _Ratios] = defaultdict(_Ratios)

    def took(self, replica: str, took_s: float, expected_s: float, now_s: float) -> None:
        """Record a request that took so long; expected_s must be above 0."""
        ratios, ratio = self._ratios[replica], max(0.0, took_s / expected_s)
        ratios.answers.append((now_s, ratio))
        ratios.total += ratio

    def factor(self, replica: str, now_s: float) -> float:
        """Return by how much to multiply expected times: 1 while there are too few answers."""
        ratios = self._ratios[replica]
        while ratios.answers and ratios.answers[0][0] < now_s - KEPT_S:
            ratios.total -= ratios.answers.popleft()[1]
        if len(ratios.answers) < ENOUGH:
            return 1.0
        mean = ratios.total / len(ratios.answers)
        return min(mean, LARGEST) if mean >= SMALLEST else 1.0
