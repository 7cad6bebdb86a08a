"""Keeps weights of a tower's layers in host memory, and copies them to the device while other layers compute.

After Nova, section III-E. `LayerRing` keeps some layers on the device and streams the others through K slots:
a copy stream fills a slot as soon as its previous layer has been computed. In a captured graph those waits
are edges, so a replay needs no Python. Every run copies every streamed layer again, so a graph does not
depend on what another left in a slot, and the stages of one tower share one ring as long as they run one
after another. The results are bit for bit those of resident layers.
Only matrices are streamed. Biases and norms stay resident: they are a thousandth of a layer, and the norm
after a product reads its bias when the layer's slot may already have been refilled. On a CPU the copies are
synchronous.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.stages.memory.host_memory import Registration
from vla_accel_ros.models.layers.fused import fuse

ALIGNMENT = 256
"""A matrix's place in a slot is a multiple of this many bytes, because products choose their kernels by
alignment."""

Layer = Sequence[Sequence[nn.Linear]]
"""A layer's products in the order in which a ring gives their matrices; the rows of several make one
matrix."""


def check(offload: float, fast: bool, device: torch.device) -> None:
    """Raise ValueError, in one sentence, if weights cannot be streamed. offload: a share, 0 = none."""
    if not offload:
        return
    if not fast:
        raise ValueError("offload is vision, which only the fast stages have; set fast, too.")
    if device.type == "cuda" and torch.cuda.get_device_properties(device).is_integrated:
        raise ValueError(
            f"offload is vision, but {torch.cuda.get_device_name(device)} shares the host's memory, so "
            "nothing would be saved; use none."
        )


def spread(layers: int, share: float) -> tuple[int, ...]:
    """Indices of the streamed layers: that share, at least one, spread as far apart as possible; none for 0.

    As many layers come before the first as between two, because its copy begins with the tower. If all are
    streamed, nothing comes before the first.
    """
    count = max(1, round(share * layers)) if share else 0
    return tuple((number + 1) * (layers - 1) // count for number in range(count))


def slots_for(layers: int, streamed: int) -> int:
    """Number of slots, each the memory of one layer: one if at least two resident layers lie between streamed
    ones, which is time enough for a copy; three if one resident layer lies between some and none between
    others, so that copies do not pause; else two."""
    if 3 * streamed <= layers:
        return min(streamed, 1)
    return min(streamed, 3 if layers < 2 * streamed < 2 * layers else 2)


class _Layout:
    """Places of a layer's matrices in one piece of memory of `size` numbers."""

    def __init__(self, layer: Layer) -> None:
        self.shapes = [(sum(len(linear.weight) for linear in group), group[0].in_features) for group in layer]
        self.dtype = layer[0][0].weight.dtype
        unit = ALIGNMENT // self.dtype.itemsize
        padded = (-(-rows * width // unit) * unit for rows, width in self.shapes)
        *self._starts, self.size = accumulate(padded, initial=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return self.dtype.itemsize * sum(rows * width for rows, width in self.shapes)

    def matrices(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Views of the matrices in memory [size]."""
        places = zip(self._starts, self.shapes, strict=True)
        return tuple(flat[start : start + rows * width].view(rows, width) for start, (rows, width) in places)


class LayerRing:
    """The layers of a tower: iterating gives each layer's matrices on the device, in order.

    All work that reads a layer's matrices must be put into the current stream before the next item is taken.
    Run one iteration at a time, to its end. layers: all of the same shapes. share: of the layers to stream.
    slots: number of slots, None = see slots_for.
    The parameters of streamed layers move to host memory, so the plain modules no longer compute on a GPU.
    Another ring of the same tower moves them again; this one still works.
    Raises ValueError, in one sentence, if the host has too little memory for them.
    """

    def __init__(
        self, layers: Sequence[Layer], share: float, device: torch.device, slots: int | None = None
    ) -> None:
        self._device, self._layout = device, _Layout(layers[0])
        self.layers, self.streamed = len(layers), spread(len(layers), share)
        self._numbers = {index: number for number, index in enumerate(self.streamed)}
        count = slots_for(self.layers, len(self.streamed)) if slots is None else slots
        count = min(count, len(self.streamed))
        self._host = self._take_host()
        for index, number in self._numbers.items():
            _move(layers[index], self._layout.matrices(self._host[number]))
        if self.streamed and device.type == "cuda":
            torch.cuda.empty_cache()  # give the streamed layers' memory back to the device
        self._slots = [
            torch.zeros(self._layout.size, dtype=self._layout.dtype, device=device) for _ in range(count)
        ]
        self._matrices = [self._place(index, layer) for index, layer in enumerate(layers)]
        self._copies, self._stream = True, None
        if self.streamed and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._filled, self._read = ([torch.cuda.Event() for _ in self._slots] for _ in range(2))

    @property
    def slots(self) -> int:
        """Number of layers' memory on the device that the streamed layers share."""
        return len(self._slots)

    @property
    def total_bytes(self) -> int:
        """Bytes of the matrices of all layers."""
        return self.layers * self._layout.nbytes

    @property
    def saved_bytes(self) -> int:
        """Bytes of device memory that streaming saves."""
        return (len(self.streamed) - self.slots) * self._layout.nbytes

    @property
    def streamed_bytes(self) -> int:
        """Bytes that every run copies from the host."""
        return len(self.streamed) * self._layout.nbytes

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.between(0, self.layers)

    def between(self, first: int, end: int) -> Iterator[tuple[Tensor, ...]]:
        """Like iterating, for the layers from `first` to the one before `end`."""
        numbers = [number for index, number in self._numbers.items() if first <= index < end]
        last = max(numbers, default=-1)
        self._begin(numbers)  # copy at once: the work before the first layer takes time, too
        return self._in_order(first, end, last)

    def _in_order(self, first: int, end: int, last: int) -> Iterator[tuple[Tensor, ...]]:
        for index in range(first, end):
            number, matrices = self._numbers.get(index), self._matrices[index]
            if number is None:
                yield matrices
                continue
            self._await(number)
            yield matrices
            self._release(number, last)

    @contextmanager
    def without_copies(self) -> Iterator[None]:
        """In the block nothing is copied, to time the layers alone. Results are wrong."""
        self._copies = False
        try:
            yield
        finally:
            self._copies = True

    @torch.inference_mode()
    def fill(self) -> None:
        """Copy every streamed layer once, in the current stream."""
        for number in range(len(self.streamed)):
            self._slots[number % self.slots].copy_(self._host[number], non_blocking=True)

    def _begin(self, numbers: Sequence[int]) -> None:
        if numbers and self._copies and self._stream is not None:
            self._stream.wait_stream(current_stream(self._device))
        for number in numbers[: self.slots]:
            self._copy(number)

    def _copy(self, number: int) -> None:
        """Copy a streamed layer into its slot."""
        if not self._copies:
            return
        slot = number % self.slots
        if self._stream is None:
            self._slots[slot].copy_(self._host[number])
            return
        with torch.cuda.stream(self._stream):
            self._slots[slot].copy_(self._host[number], non_blocking=True)
            self._filled[slot].record(self._stream)

    def _await(self, number: int) -> None:
        if self._copies and self._stream is not None:
            current_stream(self._device).wait_event(self._filled[number % self.slots])

    def _release(self, number: int, last: int) -> None:
        """A streamed layer has been computed: copy the next layer of its slot, up to the last."""
        following = number + self.slots
        if following > last:
            return  # a wait without a copy would never join the graph
        if self._copies and self._stream is not None:
            self._read[number % self.slots].record(current_stream(self._device))
            self._stream.wait_event(self._read[number % self.slots])
        self._copy(following)

    def _place(self, index: int, layer: Layer) -> tuple[Tensor, ...]:
        """The matrices of a layer when it is computed."""
        number = self._numbers.get(index)
        if number is None:
            return tuple(_resident(linears, self._device) for linears in layer)
        return self._layout.matrices(self._slots[number % self.slots])

    def _take_host(self) -> Tensor:
        """Memory [streamed layers, size], page-locked as long as the ring exists."""
        host = torch.empty(0)
        if not self.streamed:
            return host
        needed = len(self.streamed) * self._layout.size * self._layout.dtype.itemsize
        available = available_bytes()
        if available is not None and needed > available:
            raise ValueError(_too_much(needed, f"{_gb(available)} GB are available"))
        host = torch.empty(len(self.streamed), self._layout.size, dtype=self._layout.dtype)
        if self._device.type == "cuda":
            registration = Registration(host.data_ptr(), host.nbytes, mapped=False)
            if not registration.lock.locked:
                raise ValueError(_too_much(needed, registration.lock.state))
            weakref.finalize(self, registration.end)
        return host


def available_bytes() -> int | None:
    """Bytes of host memory available without swapping; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return next(sizes, None)


def _resident(linears: Sequence[nn.Linear], device: torch.device) -> Tensor:
    """The weights of some linear layers as one matrix on the device."""
    for linear in linears:
        if not linear.weight.is_meta:  # meta: only fewer bits are left, nobody reads it here
            linear.weight.data = linear.weight.data.to(device)
    return fuse(linears)[0]


def _move(layer: Layer, places: Sequence[Tensor]) -> None:
    """Move a layer's weights into these matrices, with their values."""
    for linears, matrix in zip(layer, places, strict=True):
        for linear, rows in zip(
            linears, matrix.split([len(linear.weight) for linear in linears]), strict=True
        ):
            linear.weight.data = rows.copy_(linear.weight.data)


def _too_much(needed: int, why: str) -> str:
    return (
        f"offload is vision, which needs {_gb(needed)} GB of page-locked host memory, but {why}; use a "
        "smaller share, such as vision:0.25, or none."
    )


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f}"
