"""Sets of a GPU's multiprocessors, with streams whose work runs only on them (CUDA green contexts).

A graph that is captured on such a stream keeps its multiprocessors wherever it is replayed. The driver
divides the device once: the first set gets at least as many as wanted, in steps that the driver chooses (8 on
Hopper), and the second gets the rest, so the two never overlap. torch.cuda.green_contexts always takes the
first multiprocessors, so two of its contexts would overlap; therefore this module calls the driver directly
(CUDA Driver API, Green Contexts, from CUDA 12.4 on).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

_SM = 1
"""CU_DEV_RESOURCE_TYPE_SM."""
_OWN_STREAM = 1
"""CU_GREEN_CTX_DEFAULT_STREAM, and CU_STREAM_NON_BLOCKING."""
_RESOURCE_BYTES = 256
"""More than the size of a CUdevResource in any version: it grows at its end."""
_COUNT_AT = 96
"""Byte offset of its number of multiprocessors."""


class CannotDivide(RuntimeError):
    """This driver or device cannot divide the multiprocessors."""


@dataclass(frozen=True)
class Partition:
    """sms: number of multiprocessors. streams: their work runs on these multiprocessors only."""

    sms: int
    streams: tuple[torch.cuda.Stream, ...]


def divide(
    device: torch.device,
    first: int,
    priorities: tuple[Sequence[int], Sequence[int]] = ((0,), (0,)),
    driver: Any = None,
) -> tuple[Partition, Partition]:
    """Divide a device in two sets: at least `first` multiprocessors, and the rest. They last as long as the
    process.

    priorities: of the streams in each; lower is more urgent. driver: libcuda, None = the installed one.
    Raises ValueError if one set would be empty; CannotDivide, in one sentence, if the driver cannot divide
    the device.
    """
    driver = driver or _driver()
    number, first_part, second_part = _split(device, first, driver)
    one_side, other_side = (
        _partition(driver, number, part, levels)
        for part, levels in zip((first_part, second_part), priorities, strict=True)
    )
    return one_side, other_side


def sizes(device: torch.device, first: int, driver: Any = None) -> tuple[int, int]:
    """Number of multiprocessors in each set that `divide` would make; raises the same errors."""
    _, first_part, second_part = _split(device, first, driver or _driver())
    return _count(first_part), _count(second_part)


def of_size(device: torch.device, count: int, driver: Any = None) -> Partition:
    """A partition of so many multiprocessors, from either side of a split, or of the next larger number there
    is."""
    driver = driver or _driver()
    first_part, second_part = sizes(device, count, driver)
    other = first_part + second_part - count
    with suppress(ValueError):  # the other side may leave nothing
        if first_part != count and sizes(device, other, driver)[1] == count:
            return divide(device, other, driver=driver)[1]
    return divide(device, count, driver=driver)[0]


def _split(device: torch.device, first: int, driver: Any) -> tuple[ctypes.c_int, Any, Any]:
    number = ctypes.c_int()
    _call(driver, "cuDeviceGet", ctypes.byref(number), device.index or 0)
    whole, first_part, second_part = (ctypes.create_string_buffer(_RESOURCE_BYTES) for _ in range(3))
    _call(driver, "cuDeviceGetDevResource", number, whole, _SM)
    available = _count(whole)
    if not 0 < first < available:
        raise ValueError(
            f"a partition of {first} multiprocessors was asked for; {device} has {available} in all."
        )
    groups = ctypes.c_uint(1)
    split = first_part, ctypes.byref(groups), whole, second_part, 0, first
    _call(driver, "cuDevSmResourceSplitByCount", *split)
    if not _count(first_part) or not _count(second_part):
        raise ValueError(
            f"a partition of {first} multiprocessors leaves none of the {available} of {device}: give fewer."
        )
    return number, first_part, second_part


def _partition(driver: Any, number: ctypes.c_int, part: Any, priorities: Sequence[int]) -> Partition:
    described, context = ctypes.c_void_p(), ctypes.c_void_p()
    _call(driver, "cuDevResourceGenerateDesc", ctypes.byref(described), part, 1)
    _call(driver, "cuGreenCtxCreate", ctypes.byref(context), described, number, _OWN_STREAM)
    streams = []
    for priority in priorities:
        stream = ctypes.c_void_p()
        _call(driver, "cuGreenCtxStreamCreate", ctypes.byref(stream), context, _OWN_STREAM, priority)
        streams.append(torch.cuda.ExternalStream(stream.value or 0, device=number.value))
    return Partition(_count(part), tuple(streams))


def _count(resource: Any) -> int:
    return int(ctypes.c_uint.from_buffer(resource, _COUNT_AT).value)


def _call(driver: Any, name: str, *given: Any) -> None:
    function = getattr(driver, name, None)
    if function is None:
        raise CannotDivide(f"this GPU driver has no {name} (one of CUDA 12.4 or newer has it)")
    result = function(*given)
    if result != 0:
        raise CannotDivide(f"{name} failed with error {result}")


def _driver() -> Any:
    torch.cuda.init()
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotDivide(f"the GPU driver's library cannot be loaded ({error})") from error
