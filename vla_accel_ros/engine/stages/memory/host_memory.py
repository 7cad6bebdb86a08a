"""Host memory that a GPU reads directly: page-locked for its copy engine, mapped if GPU and host share
memory.

The driver stages a copy from pageable memory and blocks the caller; from page-locked memory it is one DMA
beside the GPU's work (CUDA C++ Programming Guide, Page-Locked Host Memory). An integrated GPU such as Jetson
Orin's has no memory of its own: there the registered pages are mapped and read in place (CUDA for Tegra,
Memory Management). A failure is reported in one sentence and never raised, because everything also works from
pageable memory, only slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

_MAPPED = 0x02  # cudaHostRegisterMapped


@dataclass(frozen=True)
class PageLock:
    """The state of host memory: page-locked, mapped, or the reason why it is neither."""

    state: str
    locked: bool = False


class Registration:
    """Memory that is registered with CUDA until `end`, if CUDA takes it; `lock` says whether it did.

    address, size: of the memory, in bytes; it must stay mapped in the process until `end`. mapped: also map
    it for the GPU; None = if the GPU is integrated.
    """

    def __init__(self, address: int, size: int, mapped: bool | None = None):
        self._unregister: Callable[[], object] | None = None
        self._pointer = 0
        self.address, self.size = address, size
        self.lock = PageLock("no CUDA device") if not has_cuda() else self._register(mapped)
        if self._pointer:
            _MAPPINGS[address] = self

    def end(self) -> None:
        """Unregister the memory; calling it again does nothing."""
        _MAPPINGS.pop(self.address, None)
        unregister, self._unregister = self._unregister, None
        if unregister is not None:
            unregister()

    def pointer(self, address: int) -> int:
        """The GPU's address for an address in the memory, which must be mapped."""
        return self._pointer + address - self.address

    def _register(self, mapped: bool | None) -> PageLock:
        import torch

        if mapped is None:
            mapped = bool(torch.cuda.get_device_properties(torch.cuda.current_device()).is_integrated)
        cudart: Any = torch.cuda.cudart()
        result = cudart.cudaHostRegister(self.address, self.size, _MAPPED if mapped else 0)
        if result != cudart.cudaError.success:
            with suppress(RuntimeError):  # CUDA reports the refusal once more, to whatever is called next
                _ = torch.ones(1, device="cuda") * 2
            return PageLock(f"cudaHostRegister refused: {cudart.cudaGetErrorString(result)}")
        self._unregister = lambda: cudart.cudaHostUnregister(self.address)
        if not mapped:
            return PageLock("page-locked", locked=True)
        self._pointer = _device_pointer(self.address)
        return PageLock("mapped" if self._pointer else "page-locked", locked=True)


_MAPPINGS: dict[int, Registration] = {}


def has_cuda() -> bool:
    """Whether there is a GPU to register memory for; imports torch."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def mapped_pointer(array: np.ndarray) -> int:
    """The GPU's address of this array; 0 if it is not in mapped memory."""
    if not _MAPPINGS:  # an array's address takes several microseconds
        return 0
    address = array.ctypes.data
    for start, registration in list(_MAPPINGS.items()):
        if start <= address and address + array.nbytes <= start + registration.size:
            return registration.pointer(address)
    return 0


def _device_pointer(address: int) -> int:
    """The GPU's address of registered memory, which may differ from the host's; 0 if it has none."""
    pointer = ctypes.c_uint64(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        result = driver.cuMemHostGetDevicePointer_v2(
            ctypes.byref(pointer), ctypes.c_void_p(address), ctypes.c_uint(0)
        )
    except (OSError, AttributeError):
        return 0
    return pointer.value if result == 0 else 0
