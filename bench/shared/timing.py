"""Times work on a device: quantiles, windows with memory and energy, kernels, allocations, one bench a GPU.

The host's clock, unless a name says events: a frame ends when its actions or tokens are on the host, and the
device is synchronised before the first and after the last. Everything about a GPU outside of torch (its
energy, its lock) goes by its UUID, because CUDA_VISIBLE_DEVICES renumbers the GPUs of a process. Energy is
the GPU's own counter (NVML), which is updated every few tens of milliseconds, so only runs of at least half a
second count.
"""

from __future__ import annotations

import fcntl
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from vla_accel_ros.private_files import open_private


def summary(times: np.ndarray | Sequence[float]) -> dict[str, float]:
    """Median and p99, in milliseconds; empty where nothing was timed."""
    if not len(times):
        return {}
    p50, p99 = np.quantile(times, (0.5, 0.99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def synchronize(device: torch.device) -> None:
    """Wait for the device, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_events(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call by the device's events; by the host's clock where there is no GPU."""
    if device.type != "cuda":
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def median_ms(run: Callable[[], object], device: torch.device, runs: int) -> dict[str, float]:
    """p50 and p99 of calls, each waited for, after three warm-ups."""
    times = []
    for _ in range(3 + runs):
        synchronize(device)
        begin = time.perf_counter()
        run()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = np.quantile(times[3:], (0.5, 0.99))
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


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
        power_w, energy_mj = self.energy_j / self.elapsed_s, 1e3 * self.energy_j / requests
        return {"power_w": round(power_w, 1), "energy_mj": round(energy_mj, 1)}


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


def kernels_of(run: Callable[[], object]) -> int:
    """Number of kernels and copies that one call launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in profiled.events())


def allocated_by(run: Callable[[], object]) -> int:
    """Bytes of device memory that one call requests from the allocator."""
    bytes_before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - bytes_before)


class Pinned(TorchFunctionMode):
    """Counts what Python page-locks in this thread during the block: tensors and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.bytes = 0, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        if getattr(func, "__name__", "") == "pin_memory" or options.get("pin_memory"):
            self.tensors += 1
            self.bytes += result.nbytes
        return result


def gpu_id(device: torch.device) -> str | None:
    """GPU-UUID, as NVML and CUDA_VISIBLE_DEVICES name it; None for a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@contextmanager
def alone(name: str | None) -> Iterator[None]:
    """Keep other benches of this user off a GPU during the block; None: no GPU, nothing to do.

    Raises RuntimeError if another bench uses it.
    """
    if name is None:
        yield
        return
    with open_private("bench", f"{name}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{name} is being measured by another process: give each a GPU to itself, by "
                "CUDA_VISIBLE_DEVICES."
            ) from None
        yield
