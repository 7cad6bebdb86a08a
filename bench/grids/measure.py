"""Measures a run of frames: time by the host's clock, memory, and energy if the GPU reports it.

The host's clock, because a frame ends when its actions or tokens are on the host; the device is synchronised
before the first frame and after the last. Energy is the GPU's own counter (NVML), which is updated every few
tens of milliseconds, so only runs of at least half a second are reliable.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from full_size.gpu import gpu_id


@dataclass
class Window:
    """Measures between open and close. ages_s: ages that the frames report. energy_j: None if it is not
    counted."""

    device: torch.device
    elapsed_s: float = 0.0
    energy_j: float | None = None
    memory_gb: float = 0.0
    ages_s: list[float] = field(default_factory=list)
    _begin_s: float = 0.0
    _begin_j: float | None = None

    def __enter__(self) -> Window:
        synchronize(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._begin_j, self._begin_s = counted_j(self.device), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        synchronize(self.device)
        self.elapsed_s = time.perf_counter() - self._begin_s
        end_j = counted_j(self.device)
        if end_j is not None and self._begin_j is not None:
            self.energy_j = end_j - self._begin_j
        self.memory_gb = peak_gb(self.device)

    @property
    def open_s(self) -> float:
        """Seconds since it was opened, without synchronising the device."""
        return time.perf_counter() - self._begin_s

    def ages(self) -> dict[str, float]:
        """Median and p99, in milliseconds."""
        p50, p99 = np.quantile(self.ages_s, (0.5, 0.99))
        return {"age_p50_ms": round(1e3 * float(p50), 3), "age_p99_ms": round(1e3 * float(p99), 3)}

    def energy(self, requests: int) -> dict[str, float | None]:
        """Mean power, and energy for each of so many requests."""
        if self.energy_j is None or not requests:
            return {"power_w": None, "energy_mj": None}
        return {
            "power_w": round(self.energy_j / self.elapsed_s, 1),
            "energy_mj": round(1e3 * self.energy_j / requests, 1),
        }


def synchronize(device: torch.device) -> None:
    """Wait for the device, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gb(device: torch.device) -> float:
    """Peak of the device's memory since the window opened; on a CPU, of the process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e9, 3)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3)


def counted_j(device: torch.device) -> float | None:
    """The GPU's energy counter, in joules; None where there is none or no nvidia-ml-py."""
    name = gpu_id(device)
    if name is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
    except Exception:  # without a reading the times are still good
        return None


def median_ms(run: Callable[[], object], device: torch.device, runs: int) -> dict[str, float]:
    """p50 and p99 of calls, each waited for, after three warm-ups."""
    taken = []
    for _ in range(3 + runs):
        synchronize(device)
        begin = time.perf_counter()
        run()
        synchronize(device)
        taken.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = np.quantile(taken[3:], (0.5, 0.99))
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def equal_part(said: list[tuple[int, ...]], wanted: list[tuple[int, ...]]) -> float:
    """Share of the tokens that are as expected, 0 to 1."""
    pairs = [pair for one, other in zip(said, wanted, strict=True) for pair in zip(one, other, strict=True)]
    return round(sum(one == other for one, other in pairs) / max(1, len(pairs)), 4)
