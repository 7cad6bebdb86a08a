"""The initial noise of a chunk: normal numbers, reproducible from what the chunk is for.

fresh: from (seed, request number), so every chunk starts from different noise. coherent: from (seed, time at
which each action is due), so overlapping chunks share the noise of common times, and their seam is smaller.
Times are rounded to whole steps: two chunks share whole rows, each due at most one step apart, even if frames
do not arrive at multiples of the step. In both cases the numbers within one chunk are independent and normal,
so every chunk is an exact sample; but two chunks of coherent noise depend on each other.
"""

from __future__ import annotations

import numpy as np

FRESH, COHERENT = "fresh", "coherent"
KINDS = (FRESH, COHERENT)

_WORDS = 4  # 64-bit words from one counter value of Philox-4x64


def fresh(seed: int, number: int, shape: tuple[int, int]) -> np.ndarray:
    """Return float32 [H, A] for a request's number."""
    return np.random.default_rng((seed, number, 0)).standard_normal(shape, dtype=np.float32)


def coherent(seed: int, stamp_ns: int, step_dt_s: float, shape: tuple[int, int]) -> np.ndarray:
    """Return float32 [H, A]: row i depends on the time at which action i is due, stamp_ns + (i + 1)
    step_dt_s, in whole steps.

    Each row uses its own counter range and the Box-Muller transform, which takes the same count of words for
    each.
    """
    rows, columns = shape
    first = round(stamp_ns / (step_dt_s * 1e9)) + 1
    counts = -(-columns // _WORDS)
    bits = np.random.Philox(key=seed % (1 << 64), counter=first * counts % (1 << 256))
    words = bits.random_raw(rows * counts * _WORDS).reshape(rows, counts * _WORDS)
    # Use the upper 53 bits, in (0, 1].
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:, 0::2])), 2.0 * np.pi * uniform[:, 1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(rows, -1)
    return normal[:, :columns].astype(np.float32)
