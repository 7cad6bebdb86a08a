"""Page-locked host memory for a stage's inputs and results, allocated once.

A copy between pageable memory and a GPU makes the host wait for all work in the stream; a copy from or to
page-locked memory does not. Inputs go through a ring of blocks: events behind the copies keep the host from
overwriting what a copy still reads. A result's block belongs to the caller that waits for it, and is reused
afterwards, so there are as many blocks as results waited for at once. On a CPU results are there at once, and
inputs are written directly where the stage reads them.

The work for each chunk is a few device calls, because each delays the next step: a ring has one event for
each half of its blocks, one copy brings all results of a step to the host, and views are made once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.models.flow.sampling import Pending, Samples

ALIGNMENT = 256
"""Fields of a block begin at multiples of this many bytes."""

BLOCKS = 4
"""Host blocks for the inputs of one stage: this many calls may be queued behind a busy device without
blocking."""

Field = tuple[torch.dtype, tuple[int, ...]]
Floats = TypeVar("Floats", Tensor, np.ndarray)
Value = Tensor | np.ndarray | Sequence[int] | Sequence[float] | Sequence[Sequence[float]]


def _fields_of(block: Tensor, fields: Mapping[str, Field]) -> dict[str, Tensor]:
    """Consecutive views of a uint8 block."""
    views, start = {}, 0
    for name, (dtype, shape) in fields.items():
        end = start + math.prod(shape) * dtype.itemsize
        views[name] = block[start:end].view(dtype).view(shape)
        start = -(-end // ALIGNMENT) * ALIGNMENT
    return views


class Block(NamedTuple):
    """uint8 host memory and its fields, as tensors and as arrays."""

    memory: Tensor
    fields: dict[str, Tensor]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, memory: Tensor, fields: Mapping[str, Field]) -> Block:
        views = _fields_of(memory, fields)
        return cls(memory, views, {name: view.numpy() for name, view in views.items()})

    def write(self, name: str, value: Value) -> None:
        """Set a field."""
        if isinstance(value, Tensor):
            self.fields[name].copy_(value)
        else:
            self.arrays[name][...] = value


def _bytes_of(fields: Mapping[str, Field]) -> int:
    sizes = (math.prod(shape) * dtype.itemsize for dtype, shape in fields.values())
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


class HostRing:
    """A ring of host blocks with the same fields. Not safe for several threads at once.

    For each block call `fill`, write, copy from it in the current stream, then `sent`. On the device, copies
    from a block must come after those from the blocks before it, as they do if all go to one buffer.
    blocks: this many may be filled behind a busy device without blocking; there are twice as many, and an
    event behind the copies from either half.
    """

    def __init__(self, device: torch.device, fields: Mapping[str, Field], blocks: int = BLOCKS) -> None:
        self._device, self._cuda, size = device, device.type == "cuda", _bytes_of(fields)
        memory = [torch.zeros(size, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(2 * blocks)]
        self.blocks = [Block.of(block, fields) for block in memory]
        self._read = [torch.cuda.Event() for _ in range(2)] if self._cuda else []
        self._now, self._half = 0, blocks

    def fill(self) -> Block:
        """The next block; waits until the copies from it have ended."""
        if self._cuda and self._now % self._half == 0:
            self._read[self._now // self._half].synchronize()
        return self.blocks[self._now]

    def sent(self) -> None:
        """Note that all copies from the block are in the current stream."""
        self._now += 1
        if self._cuda and self._now % self._half == 0:
            self._read[self._now // self._half - 1].record(current_stream(self._device))
        self._now %= len(self.blocks)


class Inputs:
    """A stage's inputs: one block of device memory, and one copy to it per call.

    fields: names with dtype and shape. Not safe for several threads at once.
    """

    def __init__(self, device: torch.device, fields: Mapping[str, Field], blocks: int = BLOCKS) -> None:
        self._ring = HostRing(device, fields, blocks if device.type == "cuda" else 0)
        self._block = torch.zeros(_bytes_of(fields), dtype=torch.uint8, device=device)
        self.fields = _fields_of(self._block, fields)
        self._here = None if self._ring.blocks else Block.of(self._block, fields)

    def put(self, **values: Value | None) -> None:
        """Set fields, in the current stream's order, without blocking.

        Values are on the host or the device and have the field's shape, or are broadcast to it. On a GPU,
        fields that are not named or None are undefined afterwards.
        """
        block, on_device = self._here or self._ring.fill(), list[tuple[Tensor, Tensor]]()
        for name, value in values.items():
            if isinstance(value, Tensor) and value.is_cuda:
                on_device.append((self.fields[name], value))
            elif value is not None:
                block.write(name, value)
        if self._here is None:
            self._block.copy_(block.memory, non_blocking=True)
            self._ring.sent()
        for field, value in on_device:
            field.copy_(value, non_blocking=True)


class Parts(NamedTuple, Generic[Floats]):
    """The parts of a block of results: x [B, H, A], magnitudes [B, S, H]."""

    x: Floats
    magnitudes: Floats


class CopiedSamples(Pending):
    """Some rows of a copy to the host."""

    def __init__(self, copy: _Copy, rows: slice) -> None:
        self._copied: Samples | None = None
        self._copy: _Copy | None = copy
        self._rows, self._lock = rows, threading.Lock()

    def ready(self) -> bool:
        copy = self._copy
        return copy is None or copy.host.arrived.query()

    def wait(self) -> Samples:
        with self._lock:
            if self._copy is not None:
                self._copy.wait()
                self._copied = _samples(self._copy.host.parts, self._rows)
                self._copy = None
            assert self._copied is not None
            return self._copied


class _Host(NamedTuple):
    """A host block, its parts, and the event behind the copy to it."""

    block: Tensor
    parts: Parts[np.ndarray]
    arrived: torch.cuda.Event


class _Copy:
    """Holds a host block while results are copied to it; frees it when nobody refers to this object."""

    def __init__(self, readback: Readback, host: _Host) -> None:
        self.host, self._readback, self._there = host, readback, False

    def wait(self) -> None:
        """Return when the results are there."""
        if not self._there:
            self.host.arrived.synchronize()
            self._there = True

    def __del__(self) -> None:
        self._readback.give_back(self.host, self._there)


class Readback:
    """Results of a stage: one block of device memory, with x float32 [B, H, A] and magnitudes float32
    [B, S, H], and page-locked host blocks to which it is copied."""

    def __init__(self, device: torch.device, batch: int, horizon: int, dims: int, steps: int) -> None:
        self._device, self._shape = device, (batch, horizon, dims, steps)
        self._block = torch.zeros(batch * horizon * (dims + steps), device=device)
        self.x, self.magnitudes = self._parts = self._cut(self._block)
        self._free: list[tuple[_Host, bool]] = []
        self.made = 0

    def all(self) -> Pending:
        """Every chunk, in the state after all work now in the current stream."""
        (pending,) = self._pending([slice(None)])
        return pending

    def some(self, rows: Sequence[int]) -> Sequence[Pending]:
        """Some of the chunks, each by itself, in the same state."""
        return self._pending([slice(row, row + 1) for row in rows])

    def give_back(self, host: _Host, there: bool) -> None:
        """Reuse a host block once its last copy has arrived. there: it has arrived."""
        self._free.append((host, there))

    def _pending(self, rows: Sequence[slice]) -> Sequence[Pending]:
        """Copies all chunks to the host, whichever are asked for: a second copy would take the host
        longer."""
        if self._device.type != "cuda":
            parts = Parts(*(part.numpy() for part in self._parts))
            return [Pending(_samples(parts, which)) for which in rows]
        copy = _Copy(self, self._host())
        copy.host.block.copy_(self._block, non_blocking=True)
        copy.host.arrived.record(current_stream(self._device))
        return [CopiedSamples(copy, which) for which in rows]

    def _host(self) -> _Host:
        try:
            host, is_read = self._free.pop()
        except IndexError:
            self.made += 1
            block = torch.zeros(self._block.shape, pin_memory=True)
            return _Host(block, self._cut(block.numpy()), torch.cuda.Event())
        if not is_read:  # its result was never read
            host.arrived.synchronize()
        return host

    def _cut(self, block: Floats) -> Parts[Floats]:
        """Views of all chunks."""
        batch, horizon, dims, steps = self._shape
        size = batch * horizon * dims
        x, magnitudes = block[:size], block[size:]
        return Parts(x.reshape(batch, horizon, dims), magnitudes.reshape(batch, steps, horizon))


def _samples(parts: Parts[np.ndarray], rows: slice) -> Samples:
    """A copy of some chunks."""
    return Samples(parts.x[rows].copy(), parts.magnitudes[rows].copy().swapaxes(0, 1))
