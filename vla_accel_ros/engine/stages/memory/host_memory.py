"""Host memory that a GPU reads by itself: page-locked for its copy engine, mapped where it shares the memory.

A copy from ordinary memory is staged by the driver and holds the caller up; from page-locked memory it is one
DMA beside whatever the GPU computes (CUDA C++ Programming Guide, Page-Locked Host Memory). An integrated GPU,
Jetson Orin's for one, has no memory of its own to copy to: there the registered pages are mapped and read in
place (CUDA for Tegra, Memory Management). What could not be had is a sentence, never an error: everything
works from ordinary memory too, and slower.
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
    """How a piece of host memory lies. state: page-locked, mapped (and that), or why it is neither."""

    state: str
    locked: bool = False


class Registration:
    """Memory registered with CUDA from construction to `end`, if CUDA takes it; `lock` says what came of it.

    address, size: of the memory, in bytes; it must stay mapped until `end`. mapped: have it mapped, too; None
    decides by whether the GPU is integrated.
    """

    def __init__(self, address: int, size: int, mapped: bool | None = None):
        self._unregister: Callable[[], object] | None = None
        self._pointer = 0
        self.address, self.size = address, size
        self.lock = PageLock("no CUDA device") if not has_cuda() else self._register(mapped)
        if self._pointer:
            _MAPPINGS[address] = self

    def end(self) -> None:
        """Give it back to the pageable; again does nothing."""
        _MAPPINGS.pop(self.address, None)
        unregister, self._unregister = self._unregister, None
        if unregister is not None:
            unregister()

    def pointer(self, address: int) -> int:
        """Where the GPU finds that address of the memory; only of mapped memory."""
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
    """Where the GPU reads this array in place; 0 when it does not lie in mapped memory."""
    if not _MAPPINGS:
        return 0
    address = array.ctypes.data
    for start, registration in list(_MAPPINGS.items()):
        if start <= address and address + array.nbytes <= start + registration.size:
            return registration.pointer(address)
    return 0


def _device_pointer(address: int) -> int:
    """The GPU's address of registered memory, which need not be the host's; 0 where it has none."""
    pointer = ctypes.c_uint64(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        result = driver.cuMemHostGetDevicePointer_v2(
            ctypes.byref(pointer), ctypes.c_void_p(address), ctypes.c_uint(0)
        )
    except (OSError, AttributeError):
        return 0
    return pointer.value if result == 0 else 0
