"""Compares two variants on the same scenes, scene by scene; intervals are 95 %.

Wilson's for success, Newcombe's (hybrid score, method 10) for a difference of success in the same scenes, and
the percentile bootstrap for medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_accel_ros.tools.demo.measure import wilson
from vla_accel_ros.tools.demo_policy.rollout import Episode


def bootstrap(values: Sequence[float], resamples: int = 4000) -> tuple[float, float]:
    """95 % interval of the median of values [n], n >= 1."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (resamples, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def median(values: Sequence[float]) -> dict[str, Any]:
    """With its interval; None of no values."""
    if not values:
        return {"n": 0, "median": None, "interval_95": None}
    return {"n": len(values), "median": float(np.median(values)), "interval_95": bootstrap(values)}


def success(episodes: Sequence[Episode]) -> dict[str, Any]:
    """How many of at least one episode succeeded."""
    won = sum(episode.success for episode in episodes)
    return {"n": len(episodes), "won": won, "interval_95": wilson(won, len(episodes))}


def gain(first: Sequence[bool], then: Sequence[bool]) -> dict[str, Any]:
    """How much more often the second succeeds, of the same scenes."""
    n, pairs = len(first), list(zip(first, then, strict=True))
    only_first, only_then = pairs.count((True, False)), pairs.count((False, True))
    first_share, second_share = sum(first) / n, sum(then) / n
    (low, high), (low_then, high_then) = wilson(sum(first), n), wilson(sum(then), n)
    both_succeed, neither = pairs.count((True, True)), pairs.count((False, False))
    spread = math.sqrt(sum(first) * (n - sum(first)) * sum(then) * (n - sum(then)))
    alike = float(both_succeed * neither - only_first * only_then)
    if alike > 0:  # the method's continuity correction
        alike = max(0.0, alike - n / 2)
    phi = alike / spread if spread else 0.0
    difference = second_share - first_share
    below = _hybrid(second_share - low_then, high - first_share, phi)
    above = _hybrid(high_then - second_share, first_share - low, phi)
    return {
        "difference": difference,
        "interval_95": (difference - below, difference + above),
        "won_only_without": only_first,
        "won_only_with": only_then,
    }


def shown(figure: dict[str, Any], form: str, scale: float = 1.0) -> str:
    """A median with its interval, as text."""
    if figure["median"] is None:
        return "-"
    middle, low, high = (form.format(scale * v) for v in (figure["median"], *figure["interval_95"]))
    return f"{middle} ({low} to {high})"


def _hybrid(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))
