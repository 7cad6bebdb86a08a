"""The noise with which chunks begin: given, or made of the seed and the request's number or frame's time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import Request
from vla_accel_ros.models.flow.noise import COHERENT, coherent, fresh


class ChunkNoise:
    """Noise of one engine's chunks, float32 [H, A]; shape: H, A. See models.flow.noise."""

    def __init__(self, config: EngineConfig, shape: tuple[int, int]) -> None:
        self._config, self._shape = config, shape
        self._last: tuple[object, np.ndarray] | None = None  # and of what it is a function
        self._number = -1  # of the request that began last

    def of(self, number: int, stamp_ns: int = 0, step_dt_s: float | None = None) -> np.ndarray:
        """Noise of an action request on a frame with that stamp; kept for the next call of the same.
        step_dt_s: the robot's, None = the engine's."""
        config, coheres = self._config, self._config.noise == COHERENT
        times = stamp_ns, step_dt_s or config.step_dt_s
        key: object = times if coheres else number
        if self._last is None or self._last[0] != key:
            seed, shape = config.seed, self._shape
            noise = coherent(seed, *times, shape) if coheres else fresh(seed, number, shape)
            self._last = key, noise
        return self._last[1]

    def begin(self, request: Request, prefix: Prefix) -> Tensor:
        """float32 [1, H, A]: the given noise, or the request's own. Raises ValueError for another shape."""
        noise = request.act.noise
        if noise is None or isinstance(noise, int):
            number = self._number = request.number if noise is None else noise
            values = self.of(number, prefix.stamp_ns, prefix.embodiment.step_dt_s)
            return torch.from_numpy(values.copy()[None])
        if tuple(noise.shape) != self._shape:
            raise ValueError(f"noise has shape {list(noise.shape)}; the policy takes {list(self._shape)}.")
        return torch.as_tensor(noise, dtype=torch.float32)[None]

    def prepare(self) -> None:
        """Make the noise of the next request, if its frame does not decide it."""
        if self._config.noise != COHERENT:
            self.of(self._number + 1)
