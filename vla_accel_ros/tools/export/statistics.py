"""Statistics of a dataset's features, as LeRobot keeps them: min, max, mean, std, count and five quantiles.

Numbers are described exactly. Of images the values of every channel are counted, of which all of these follow
exactly too, on every few pixels: 8 bits have only 256 values.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SIDE = 150

Statistics = dict[str, list]


def of_numbers(values: np.ndarray) -> Statistics:
    """Of float or int [N, D]; each [D], count [1]."""
    table = values.astype(np.float64)
    found = {"min": table.min(axis=0), "max": table.max(axis=0)}
    found |= {"mean": table.mean(axis=0), "std": table.std(axis=0)}
    found |= {name: np.quantile(table, share, axis=0) for name, share in QUANTILES.items()}
    return {**{name: value.tolist() for name, value in found.items()}, "count": [len(values)]}


class PixelCounts:
    """Counts of the values of each channel over images."""

    def __init__(self) -> None:
        self.images = 0
        self._counts = np.zeros((3, 256), np.int64)

    def add(self, image: np.ndarray) -> None:
        """uint8 [H, W, 3]."""
        every = max(1, max(image.shape[:2]) // _SIDE)
        for channel in range(3):
            values = image[::every, ::every, channel].ravel()
            self._counts[channel] += np.bincount(values, minlength=256)
        self.images += 1

    def __add__(self, other: PixelCounts) -> PixelCounts:
        both = PixelCounts()
        both.images = self.images + other.images
        both._counts = self._counts + other._counts
        return both

    def statistics(self) -> Statistics:
        """Of values in [0, 1]; each [3, 1, 1], count [1]."""
        values, weights = np.arange(256) / 255.0, self._counts / self._counts.sum(axis=1, keepdims=True)
        mean = weights @ values
        std = np.sqrt(np.maximum(weights @ values**2 - mean**2, 0.0))
        there = self._counts > 0
        found = {"min": values[there.argmax(axis=1)], "max": values[255 - there[:, ::-1].argmax(axis=1)]}
        found |= {"mean": mean, "std": std}
        below = weights.cumsum(axis=1)
        found |= {
            name: values[np.minimum((below < share).sum(axis=1), 255)] for name, share in QUANTILES.items()
        }
        return {**{n: value.reshape(3, 1, 1).tolist() for n, value in found.items()}, "count": [self.images]}
