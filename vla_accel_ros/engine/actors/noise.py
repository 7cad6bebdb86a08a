"""The noise with which chunks begin: given, or made of the seed and the request's number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.request import Request
from vla_accel_ros.models.flow.noise import fresh


class ChunkNoise:
    """Noise of one engine's chunks, float32 [H, A]; shape: H, A. See models.flow.noise."""

    def __init__(self, seed: int, shape: tuple[int, int]) -> None:
        self._seed, self._shape = seed, shape
        self._last: tuple[int, np.ndarray] | None = None  # and the number that it is of
        self._number = -1  # of the request that began last

    def of(self, number: int) -> np.ndarray:
        """Noise of an action request; kept for the next call of the same."""
        if self._last is None or self._last[0] != number:
            self._last = number, fresh(self._seed, number, self._shape)
        return self._last[1]

    def begin(self, request: Request) -> Tensor:
        """float32 [1, H, A]: the given noise, or the request's own. Raises ValueError for another shape."""
        noise = request.act.noise
        if noise is None or isinstance(noise, int):
            number = self._number = request.number if noise is None else noise
            return torch.from_numpy(self.of(number).copy()[None])
        if tuple(noise.shape) != self._shape:
            raise ValueError(f"noise has shape {list(noise.shape)}; the policy takes {list(self._shape)}.")
        return torch.as_tensor(noise, dtype=torch.float32)[None]

    def prepare(self) -> None:
        """Make the noise of the next request."""
        self.of(self._number + 1)
