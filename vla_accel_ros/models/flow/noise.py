"""The initial noise of a chunk: normal numbers, reproducible from the seed and the number of its request."""

from __future__ import annotations

import numpy as np


def fresh(seed: int, number: int, shape: tuple[int, int]) -> np.ndarray:
    """Return float32 [H, A] for a request's number."""
    return np.random.default_rng((seed, number, 0)).standard_normal(shape, dtype=np.float32)
