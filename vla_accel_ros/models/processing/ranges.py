"""Numbers between a robot's units and -1..1, by the lowest and the highest of a training.

A number that did not move in training becomes 0, and is where it was then. The operations are those of the
references, in the dtype of the statistics, so that both directions are theirs to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vla_accel_ros.models.processing.conventions import Normalizer


@dataclass(frozen=True)
class Range:
    """low, high [D], or [steps, D] with a range for every step of a chunk: what becomes -1 and 1, no high
    below its low. mask bool [D]: False where numbers pass as they are; one for all. clips: whether
    normalised numbers are cut to -1..1. eps: what the trainer adds to a span."""

    low: np.ndarray
    high: np.ndarray
    mask: np.ndarray = field(default_factory=lambda: np.array(True))
    clips: bool = False
    eps: float = 0.0

    @property
    def size(self) -> int:
        """D"""
        return self.low.shape[-1]

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """[..., D'] -> -1..1, D' at most D."""
        x = np.asarray(x, self.low.dtype)
        low, span = self._of(x)
        moves = span > 0
        unit = np.where(moves, 2 * (x - low) / np.where(moves, span, 1) - 1, 0)
        out = np.where(self.mask, unit, x)
        return np.clip(out, -1.0, 1.0) if self.clips else out

    def unnormalize(self, x: np.ndarray) -> np.ndarray:
        """Inverse of normalize, without a limit; [steps, D] if every step has a range."""
        low, span = self._of(x)
        return np.where(self.mask, (x + 1) * 0.5 * span + low, x)

    def _of(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lows and spans of these numbers."""
        rows = slice(len(x)) if self.low.ndim == 2 else slice(None)
        low, high = (end[rows][..., : x.shape[-1]] for end in (self.low, self.high))
        return low, high - low + self.eps


def trained_range(units: Range | Normalizer) -> np.ndarray:
    """Return float64 [2, D]: what is mapped to -1 and 1, or the mean -+ 2 standard deviations."""
    reach = 1.0 if isinstance(units, Range) or units.offset else 2.0
    ends = np.repeat([[-reach], [reach]], units.size, axis=1)
    return units.unnormalize(ends).astype(np.float64)
