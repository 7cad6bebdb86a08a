"""Measure the peak memory of a piece of work: by a GPU's allocator, or by counting tensors on a CPU.

On a CPU every storage that a torch operation returns counts until it is freed; memory that an operation uses
internally is not seen.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vla_accel_ros.tools.bench.stages import start_of_peak


@dataclass
class Held:
    """Bytes since the start: at present and at most. base: what was held already (on a GPU)."""

    present: int = 0
    peak: int = 0
    base: int = 0


class LiveBytes(TorchDispatchMode):
    """Counts in `held` the host storages that torch operations in this context made and that are
    still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Held()
        self._live: dict[int, object] = {}

    def reset_peak(self) -> None:
        """Restart the peak from the present value."""
        self.held.peak = self.held.present

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.device.type == "cpu":
                self._see(result.untyped_storage())
        return results

    def _see(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._live:
            return
        mark = self._live[address] = object()
        self.held.present += size
        self.held.peak = max(self.held.peak, self.held.present)
        weakref.finalize(storage, self._freed, address, size, mark)

    def _freed(self, address: int, size: int, mark: object) -> None:
        if self._live.get(address) is mark:
            del self._live[address]
            self.held.present -= size


@contextmanager
def holding(device: torch.device) -> Iterator[Held]:
    """Measure what the block allocates on a device; the numbers are complete afterwards."""
    if device.type != "cuda":
        with LiveBytes() as counted:
            yield counted.held
            gc.collect()
        return
    usage = Held(base=start_of_peak(device))
    try:
        yield usage
    finally:
        torch.cuda.synchronize(device)
        usage.present = torch.cuda.memory_allocated(device) - usage.base
        usage.peak = torch.cuda.max_memory_allocated(device) - usage.base
