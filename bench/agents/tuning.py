"""Finds the best settings of each scheduler for measured durations: Nova's offline profiling.

Equation 3 gives the best split without queueing; how fast it should fall with the number of waiting screens,
and how far, is left to profiling. So all settings of each scheduler are tried, at the arrival rate of the
comparison, by the mean latency of `planning.Chain`. For equation 5 one stage is tried after the other. A
static split may leave the GPU undivided beside prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.durations import Durations
from agents.planning import Chain, Rule, of_shares, prefill_first
from agents.rules import Share, Table
from vla_accel_ros.engine.request import ENCODE, PREFILL

LIMITS = (5, 7, 10, 15)
"""Of open answers in prefill_first; Nova's is 5."""
SURGES = (2, 4, 8)
"""Screens in work at which decoding has the least."""
HIGHEST = 0.95
"""Load at which settings for a higher one are tried, too."""
Shares = Mapping[str, Share | Table]


@dataclass(frozen=True)
class Settings:
    """limit: of prefill_first. shares: by scheduler and stage. expected_s: mean latency of each scheduler by
    the chain."""

    limit: int
    shares: Mapping[str, Shares]
    expected_s: Mapping[str, float]

    def document(self) -> dict[str, Any]:
        """Return the tables as JSON."""
        shares = {
            name: {stage: vars(share) for stage, share in each.items()} for name, each in self.shares.items()
        }
        expected_s = {name: round(seconds, 4) for name, seconds in self.expected_s.items()}
        return {"limit": self.limit, "shares": shares, "expected_s": expected_s}


def adaptive(splits: Sequence[int]) -> list[Share]:
    """Equation 5 between every two splits, and between one and none."""
    return [
        Share(most, least, (most - least) / (surge - 1))
        for most in splits
        for least in (0, *splits)
        for surge in SURGES
        if least < most
    ]


def tuned(durations: Durations, load: float | None, tokens: tuple[int, int], slots: int) -> Settings:
    """The settings of the least mean latency at a load, None: as much as there can be. A GPU that is not
    divided has no splits to choose from."""
    chain = Chain(
        durations,
        min(HIGHEST if load is None else load, HIGHEST) / durations.front_s(),
        sum(tokens) / 2,
        slots,
    )
    expected_s = {"two_streams": chain.latency_s(of_shares({ENCODE: Share(0, 0), PREFILL: Share(0, 0)}))}

    def least(rules: Sequence[Rule]) -> tuple[int, float]:
        found = [chain.latency_s(rule) for rule in rules]
        return found.index(min(found)), min(found)

    limits = [limit for limit in LIMITS if limit < slots] or [slots - 1]
    at, expected_s["prefill_first"] = least([prefill_first(limit) for limit in limits])
    shares: dict[str, Shares] = {}
    if durations.splits:
        fixed = [
            {ENCODE: Share(encode), PREFILL: Share(prefill, min(prefill, 1))}
            for encode in durations.splits
            for prefill in (0, *durations.splits)
        ]
        best, expected_s["static"] = least([of_shares(both) for both in fixed])
        shares["static"] = fixed[best]
        tried = adaptive(durations.splits)
        both, _ = least([of_shares({ENCODE: one, PREFILL: one}) for one in tried])
        second, _ = least([of_shares({ENCODE: tried[both], PREFILL: one}) for one in tried])
        first, expected_s["adaptive"] = least(
            [of_shares({ENCODE: one, PREFILL: tried[second]}) for one in tried]
        )
        shares["adaptive"] = {ENCODE: tried[first], PREFILL: tried[second]}
    expected_s["planned"], shares["planned"] = chain.best()
    return Settings(limits[at], shares, expected_s)
