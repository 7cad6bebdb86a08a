"""What a chunk's denoising begins with: normal numbers that are a function of what they are for.

fresh: of (seed, number of the request), so every chunk begins with other noise. coherent: of (seed, time at
which each action is due), so chunks that overlap begin alike where they speak of the same time, and their
seam is smaller. Times are rounded to whole steps: two chunks share whole rows, each due at most a step apart,
also where frames do not come at multiples of the step. Either way the numbers of one chunk are independent
and normal, so every chunk is an exact sample; but two chunks of coherent noise depend on each other.
"""

from __future__ import annotations

import numpy as np

FRESH, COHERENT = "fresh", "coherent"
KINDS = (FRESH, COHERENT)

_WORDS = 4  # of 64 bits, that one count of Philox-4x64 makes


def fresh(seed: int, number: int, shape: tuple[int, int]) -> np.ndarray:
    """float32 [H, A], of a request's number."""
    return np.random.default_rng((seed, number, 0)).standard_normal(shape, dtype=np.float32)


def coherent(seed: int, stamp_ns: int, step_dt_s: float, shape: tuple[int, int]) -> np.ndarray:
    """float32 [H, A]: row i is of the time at which action i is due, in whole steps: stamp_ns + (i + 1)
    step_dt_s.

    Each row is made of numbers of its own, by the Box-Muller transform, as that takes equally many for each.
    """
    rows, columns = shape
    first = round(stamp_ns / (step_dt_s * 1e9)) + 1
    counts = -(-columns // _WORDS)
    bits = np.random.Philox(key=seed % (1 << 64), counter=first * counts % (1 << 256))
    words = bits.random_raw(rows * counts * _WORDS).reshape(rows, counts * _WORDS)
    # The upper 53 bits, in (0, 1].
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:, 0::2])), 2.0 * np.pi * uniform[:, 1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(rows, -1)
    return normal[:, :columns].astype(np.float32)
