"""Page-locked host memory for a stage's inputs and results, allocated once.

A copy between ordinary memory and a GPU makes the host wait for all that is in the stream; one from or to
page-locked memory does not. Inputs go through a ring of blocks: each has an event behind its last copy, so
that the host does not overwrite what the copy still reads. A result's block belongs to the caller that
waits for it, and is used again afterwards, so there are as many blocks as results waited for at once. On a
CPU everything is there at once and inputs are written where the stage reads them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 256
"""Fields of a block begin at multiples of so many bytes."""

BLOCKS = 4
"""Of the host for the inputs of one stage: so many calls may be put behind a busy device without waiting."""

Field = tuple[torch.dtype, tuple[int, ...]]
Floats = TypeVar("Floats", Tensor, np.ndarray)
Value = Tensor | np.ndarray | Sequence[int] | Sequence[float] | Sequence[Sequence[float]]


def _fields_of(block: Tensor, fields: Mapping[str, Field]) -> dict[str, Tensor]:
    """Views of a uint8 block, one after another."""
    views, start = {}, 0
    for name, (dtype, shape) in fields.items():
        end = start + math.prod(shape) * dtype.itemsize
        views[name] = block[start:end].view(dtype).view(shape)
        start = -(-end // ALIGNMENT) * ALIGNMENT
    return views


def _bytes_of(fields: Mapping[str, Field]) -> int:
    sizes = (math.prod(shape) * dtype.itemsize for dtype, shape in fields.values())
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


class HostRing:
    """Blocks of host memory with the same fields, taken in turn. Not for several threads at once.

    For each block: `fill`, write, copy from it in the current stream, `sent`.
    """

    def __init__(self, device: torch.device, fields: Mapping[str, Field], blocks: int = BLOCKS) -> None:
        self._cuda, size = device.type == "cuda", _bytes_of(fields)
        made = [torch.zeros(size, dtype=torch.uint8, pin_memory=self._cuda) for _ in range(blocks)]
        self.blocks = [(block, _fields_of(block, fields)) for block in made]
        self._read = [torch.cuda.Event() for _ in made] if self._cuda else []
        self._now = 0

    def fill(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The next block and its fields; waits until the copies from it have ended."""
        if self._cuda:
            self._read[self._now].synchronize()
        return self.blocks[self._now]

    def sent(self) -> None:
        """All copies from the block are in the current stream."""
        if self._cuda:
            self._read[self._now].record()
        self._now = (self._now + 1) % len(self.blocks)


class Inputs:
    """A stage's inputs: one block of device memory, and one copy to it for each call.

    fields: names with dtype and shape. beside: fields of the host alone, for what is copied to elsewhere in
    the same call. Not for several threads at once.
    """

    def __init__(
        self,
        device: torch.device,
        fields: Mapping[str, Field],
        blocks: int = BLOCKS,
        beside: Mapping[str, Field] | None = None,
    ) -> None:
        cuda, beside = device.type == "cuda", beside or {}
        self._ring = HostRing(device, {**fields, **beside}, blocks if cuda else 0)
        self._block = torch.zeros(_bytes_of(fields), dtype=torch.uint8, device=device)
        self.fields = _fields_of(self._block, fields)
        self._beside = {} if cuda else {name: torch.zeros(of[1], dtype=of[0]) for name, of in beside.items()}

    def put(self, also: Callable[[Mapping[str, Tensor]], None] | None = None, **values: Value | None) -> None:
        """Set fields, in the current stream's order, without waiting for what is in it.

        Values are of the host or the device and of the field's shape, or are broadcast to it. On a GPU what a
        field that is not named or None holds afterwards is undefined. also: is given the fields of the host
        alone, may write and copy from them.
        """
        given = {name: value for name, value in values.items() if value is not None}
        if not self._ring.blocks:
            for name, value in given.items():
                write(self.fields[name], value)
            if also is not None:
                also(self._beside)
            return
        block, host = self._ring.fill()
        there = {name: value for name, value in given.items() if isinstance(value, Tensor) and value.is_cuda}
        for name, value in given.items():
            if name not in there:
                write(host[name], value)
        self._block.copy_(block[: len(self._block)], non_blocking=True)
        if also is not None:
            also(host)
        self._ring.sent()
        for name, value in there.items():
            self.fields[name].copy_(value, non_blocking=True)


def write(host: Tensor, value: Value) -> None:
    """Into a tensor of the host."""
    if isinstance(value, Tensor):
        host.copy_(value)
    else:
        host.numpy()[...] = value


def to_host(values: Tensor) -> Tensor:
    """A copy in page-locked memory, which is there when all is done that is in the current stream now. The
    memory is used again once nobody refers to it and the copy has ended."""
    if not values.is_cuda:
        return values.clone()
    there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return there.copy_(values, non_blocking=True)


class Samples(NamedTuple):
    """Sampled chunks on the host: actions float32 [B, H, A], normalised; update float32 [B, H, A]: what the
    last step added to them; magnitudes float32 [S, B, H]: how far each step moved each action, see
    kernels.reference.flow.Magnitudes."""

    actions: np.ndarray
    update: np.ndarray
    magnitudes: np.ndarray


class Pending:
    """Samples on their way to the host."""

    def __init__(self, samples: Samples | None = None, copy: _Copy | None = None) -> None:
        self._samples, self._copy, self._lock = samples, copy, threading.Lock()

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        copy = self._copy
        return copy is None or copy.arrived.query()

    def wait(self) -> Samples:
        """The samples, the caller's own; the same each time."""
        with self._lock:
            if self._copy is not None:
                self._copy.arrived.synchronize()
                self._samples = self._copy.samples()
                self._copy = None
            assert self._samples is not None
            return self._samples


class _Copy:
    """A host block while a result is copied to it; it goes back when nobody refers to it."""

    def __init__(self, readback: Readback, block: Tensor, arrived: torch.cuda.Event, batch: int) -> None:
        self.arrived, self._readback, self._block, self._batch = arrived, readback, block, batch

    def samples(self) -> Samples:
        return self._readback.samples(self._block, self._batch)

    def __del__(self) -> None:
        self._readback.give_back(self._block, self.arrived)


class Readback:
    """Results of a stage: one block of device memory, x and update float32 [B, H, A] and magnitudes float32
    [B, S, H] in it, and page-locked blocks of the host that it is copied to."""

    def __init__(self, device: torch.device, batch: int, horizon: int, dims: int, steps: int) -> None:
        self._shape = batch, horizon, dims, steps
        self._block = torch.zeros(self._floats(batch), device=device)
        self.x, self.update, self.magnitudes = parts = self._cut(self._block, batch)
        self._rows = [[part[row].flatten() for part in parts] for row in range(batch)]
        self._free: list[tuple[Tensor, torch.cuda.Event]] = []
        self.made = 0

    def all(self) -> Pending:
        """Every chunk, as it is when all is done that is in the current stream now."""
        return self._copy([self._block], self._shape[0])

    def one(self, row: int) -> Pending:
        """One chunk, likewise."""
        return self._copy(self._rows[row], 1)

    def samples(self, block: Tensor, batch: int) -> Samples:
        """A copy of what is in a host block."""
        x, update, magnitudes = (part.copy() for part in self._cut(block.numpy(), batch))
        return Samples(x, update, magnitudes.swapaxes(0, 1))

    def give_back(self, block: Tensor, arrived: torch.cuda.Event) -> None:
        """A host block may be used again, once its last copy has arrived."""
        self._free.append((block, arrived))

    def _copy(self, parts: Sequence[Tensor], batch: int) -> Pending:
        if not self._block.is_cuda:
            return Pending(self.samples(torch.cat([*parts]), batch))
        block, arrived = self._host_block()
        start = 0
        for part in parts:
            block[start : start + len(part)].copy_(part, non_blocking=True)
            start += len(part)
        arrived.record()
        return Pending(copy=_Copy(self, block, arrived, batch))

    def _host_block(self) -> tuple[Tensor, torch.cuda.Event]:
        try:
            block, arrived = self._free.pop()
        except IndexError:
            self.made += 1
            size = self._floats(self._shape[0])
            return torch.zeros(size, pin_memory=True), torch.cuda.Event()
        arrived.synchronize()  # at once, unless its result was dropped
        return block, arrived

    def _floats(self, batch: int) -> int:
        _, horizon, dims, steps = self._shape
        return batch * horizon * (2 * dims + steps)

    def _cut(self, block: Floats, batch: int) -> tuple[Floats, Floats, Floats]:
        """Views: x, update and magnitudes of so many chunks."""
        _, horizon, dims, steps = self._shape
        size, shape = batch * horizon * dims, (batch, horizon, dims)
        magnitudes = block[2 * size : 2 * size + batch * horizon * steps]
        x, update = block[:size], block[size : 2 * size]
        return x.reshape(shape), update.reshape(shape), magnitudes.reshape(batch, steps, horizon)
