"""Times on the device's own clock, of captured or plain work, and what they cost in kernels and memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from vla_accel_ros.engine.graphs import Stage

WARM_UP = 10


class Body(Stage):
    """Any function as a stage, captured at once."""

    def __init__(self, function: Callable[[], object], device: torch.device, capture: bool = True) -> None:
        super().__init__(device)
        self._function = function
        if capture:
            self.capture()

    def body(self) -> None:
        self._function()


def times_ms(run: Callable[[], object], runs: int) -> np.ndarray:
    """float64 [runs]: between device events around each call, after a warm-up."""
    for _ in range(WARM_UP):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return np.array([begin.elapsed_time(end) for begin, end in events])


def summary(times: np.ndarray) -> dict[str, float]:
    """Median and p99, in milliseconds."""
    p50, p99 = np.quantile(times, (0.5, 0.99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def kernels_of(run: Callable[[], object]) -> int:
    """Kernels and copies that one call puts on the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in seen.events())


def allocated_by(run: Callable[[], object]) -> int:
    """Bytes of device memory that one call asks the allocator for."""
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before)
