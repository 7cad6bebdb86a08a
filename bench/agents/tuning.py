"""Shares of decoding that are best in simulated time on measured durations: Nova's offline profiling.

Equation 3 says which split is best where nobody waits; how fast it should fall with the number of screens
that wait, and to what, is left to profiling. So all that were measured are tried, on arrivals of another seed
than those that are measured later. The static split is chosen in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.durations import Durations
from agents.simulation import Simulation
from agents.workload import figures, poisson
from vla_accel_ros.engine.policies.agents import LANGUAGE, VISION, Share, SideBySide
from vla_accel_ros.engine.request import ENCODE, PREFILL

LOADS = (0.6, 0.8)
REQUESTS = 80
SURGES = (2, 4, 8)
"""Screens in work at which decoding has the least."""
SEED = 1000


def candidates(splits: Sequence[int]) -> list[Share]:
    """Equation 5 between every two splits, and between one and none."""
    return [
        Share(most, least, (most - least) / (surge - 1))
        for most in splits
        for least in (0, *splits)
        for surge in SURGES
        if least < most
    ]


def score_s(
    share: Share, durations: Durations, tokens: tuple[int, int], prompt: int, requests: int = REQUESTS
) -> float:
    """Mean of average and longest latency, over LOADS."""
    total = 0.0
    for load in LOADS:
        rate_hz = load / durations.front_s()
        policy = SideBySide({ENCODE: share, PREFILL: share}, durations.sms)
        simulation = Simulation(policy, (VISION, LANGUAGE), durations, prompt)
        found = figures(simulation.run(poisson(rate_hz, requests, SEED, tokens)), rate_hz)
        total += found["average_s"] + found["max_s"]
    return total / len(LOADS) / 2


def tuned(
    durations: Durations, tokens: tuple[int, int], prompt: int, requests: int = REQUESTS
) -> tuple[Mapping[str, Share], Mapping[str, Share]]:
    """The static and the adaptive shares of the least score; none of a GPU that is not divided."""
    if not durations.splits:
        return {}, {}
    static = [Share(split) for split in durations.splits]
    both = []
    for tried in (static, candidates(durations.splits) or static):
        scores = [score_s(share, durations, tokens, prompt, requests) for share in tried]
        best = tried[scores.index(min(scores))]
        both.append({ENCODE: best, PREFILL: best})
    return both[0], both[1]
