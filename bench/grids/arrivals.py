"""How many requests come with each frame, and how many tokens of text each of them wants.

The workloads of OxyGen (section 4.4): one request a frame; a Poisson number of them, with mean one; and one a
frame of which half are short. A request is an observation, which is answered with a chunk of actions and a
text.
"""

from __future__ import annotations

import numpy as np

ARRIVALS = ("uniform", "poisson", "random length")

SHORT = 5
"""A short text has so many times fewer tokens."""


def arrivals(kind: str, frames: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """For each frame the lengths of the texts that begin with it. Raises ValueError for other kinds."""
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        return [[tokens] for _ in range(frames)]
    if kind == "poisson":
        return [[tokens] * int(count) for count in rng.poisson(1.0, frames)]
    if kind == "random length":
        short = max(1, tokens // SHORT)
        return [[short if is_short else tokens] for is_short in rng.random(frames) < 0.5]
    raise ValueError(f"arrivals are '{kind}'; use one of {ARRIVALS}.")
