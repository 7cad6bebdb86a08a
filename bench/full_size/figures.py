"""Summarises a run: quantiles of its times, kernels on the device, requested memory; and writes its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


def summary(times: np.ndarray) -> dict[str, float]:
    """Median and p99, in milliseconds."""
    p50, p99 = np.quantile(times, (0.5, 0.99))
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def kernels_of(run: Callable[[], object]) -> int:
    """Number of kernels and copies that one call launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in seen.events())


def allocated_by(run: Callable[[], object]) -> int:
    """Bytes of device memory that one call requests from the allocator."""
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before)


class Pinned(TorchFunctionMode):
    """Counts what Python page-locks in this thread during the block: tensors and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors, self.bytes = 0, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if getattr(func, "__name__", "") == "pin_memory" or given.get("pin_memory"):
            self.tensors += 1
            self.bytes += made.nbytes
        return made


def write(file: Path, document: dict[str, Any]) -> None:
    """Write a file of figures atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.replace(file)
