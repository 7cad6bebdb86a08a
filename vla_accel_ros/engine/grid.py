"""When a stream's further chunks are due: on a grid that follows the phase of its joints, not each arrival.

A step that waited for late joints would make chunks as uneven as joints come, and a step without a new chunk
leaves a gap where that would have been finished. So a chunk is due once in a period, a margin after joints
come on average, and begins with the newest: rarely, with those of the chunk before. Period, phase and margin
follow the arrivals by small gains, and are found again after a gap or if joints come at another rate.

Of joints that come faster than chunks are wanted some are always new, so their phase does not matter. If they
come slowly or irregularly, chunks begin as they come: one that just missed them should not be a period late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

FIRST = 16
"""Arrivals from which a phase is found."""
GAIN = 1 / 16
"""Share of a further arrival in each mean."""
MARGIN, LEAST, MOST = 2.5, 0.02, 0.2
"""Margin, in mean distances of arrivals from the mean arrival; the least and the most, in periods."""
FAR, MOST_FAR = 0.25, 0.4
"""Distance [periods] from which an arrival does not fit, and the share of these that ends a phase."""
GAP = 8
"""Periods without joints that end a phase, too."""
SLOWEST_S = 0.005
"""Longest period of joints that sets a phase."""
SAME, MISSED = 0.98, 2.5
"""Periods of joints in one of chunks for which these follow the phase (1 / SAME), or may repeat joints."""
AT_ONCE = 0.25
"""Joints that come closer together than this share of the chunks' period count once."""
AHEAD = 0.125
"""A chunk that begins early by less than this share of a period replaces the one that is due."""


@dataclass(frozen=True)
class Phase:
    """How joints come. mean_s: mean arrival, near the newest; spread_s: mean distance from it; far: share of
    arrivals that do not fit."""

    period_s: float
    mean_s: float
    spread_s: float
    far: float = 0.0

    @staticmethod
    def of(arrivals_s: Sequence[float]) -> Phase | None:
        """By medians, because some are late and some missing; None if they are irregular."""
        intervals_s = [later_s - earlier_s for earlier_s, later_s in pairwise(arrivals_s)]
        usual_s, periods = median(intervals_s), [0]
        for interval_s in intervals_s:
            periods.append(periods[-1] + round(interval_s / usual_s))
        points, half = [*zip(periods, arrivals_s)], len(arrivals_s) // 2
        slopes_s = [(t - s) / (k - n) for (n, s), (k, t) in zip(points, points[half:]) if k > n]
        period_s = median(slopes_s) if slopes_s else math.inf
        phases_s = [arrival_s - number * period_s for number, arrival_s in points]
        phase_s = median(phases_s)
        spread_s = median(abs(other_s - phase_s) for other_s in phases_s)
        if spread_s > FAR / 2 * period_s or not half < periods[-1] < 4 * half:
            return None
        return Phase(period_s, phase_s + periods[-1] * period_s, spread_s)

    def after(self, arrival_s: float) -> Phase | None:
        """The same with one more; None if too many do not fit."""
        periods = round((arrival_s - self.mean_s) / self.period_s)
        error_s = arrival_s - self.mean_s - periods * self.period_s
        is_far = periods != 1 or abs(error_s) > FAR * self.period_s
        far = self.far + GAIN * (is_far - self.far)
        if far > MOST_FAR:
            return None
        if periods < 1:
            return Phase(self.period_s, self.mean_s, self.spread_s, far)
        most_s = MARGIN * self.spread_s + LEAST * self.period_s  # so that a late one counts little
        pull_s = GAIN * min(max(error_s, -most_s), most_s)
        spread_s = self.spread_s + GAIN * (min(abs(error_s), most_s) - self.spread_s)
        period_s = self.period_s + GAIN / 4 * pull_s / periods
        return Phase(period_s, self.mean_s + periods * self.period_s + pull_s, spread_s, far)

    def due_s(self, after_s: float) -> float:
        """The first time of the grid after that."""
        margin_s = min(max(MARGIN * self.spread_s, LEAST * self.period_s), MOST * self.period_s)
        first_s = self.mean_s + margin_s
        return first_s + self.period_s * (math.floor((after_s - first_s) / self.period_s) + 1)


class Grid:
    """period_s: shortest, from one chunk to the next. due_s: when the next is due. `arrived` may be called in
    another thread than the rest."""

    def __init__(self, period_s: float) -> None:
        self.due_s = -math.inf
        self._period_s = period_s
        self._phase: Phase | None = None
        self._arrivals_s: list[float] = []  # until there is a phase
        self._newest_s = -math.inf

    @property
    def is_regular(self) -> bool:
        """Whether joints come so regularly and often that no chunk that is due waits for newer ones."""
        phase = self._phase
        return phase is not None and self._period_s / MISSED <= phase.period_s <= SLOWEST_S

    def arrived(self, now_s: float) -> None:
        """Note that joints came."""
        apart_s, phase = now_s - self._newest_s, self._phase
        if 0 <= apart_s < AT_ONCE * self._period_s:
            return
        if apart_s < 0:  # the clock was set back
            self.due_s = min(self.due_s, now_s)
        self._newest_s = now_s
        if phase is not None:
            self._phase = phase.after(now_s) if 0 <= apart_s <= GAP * phase.period_s else None
            return
        self._arrivals_s.append(now_s)
        if len(self._arrivals_s) == FIRST:
            self._phase = Phase.of(self._arrivals_s)
            self._arrivals_s.clear()

    def began(self, begun_s: float) -> None:
        """Note that a chunk began, perhaps early, as the first of a frame does. The next is due one period
        after this one was, so that small delays of the lane do not lower the rate; one period after it began
        if that was more than a period late."""
        phase, period_s = self._phase, self._period_s
        due_s = min(self.due_s, begun_s)
        if phase is not None and SAME * period_s <= phase.period_s <= SLOWEST_S:
            due_s = begun_s if begun_s - due_s >= phase.period_s else due_s
            self.due_s = phase.due_s(due_s + AHEAD * phase.period_s)
        else:
            self.due_s = period_s + (due_s if begun_s - due_s < period_s else begun_s)
