"""Weights of a tower's layers in the host's memory, copied to the device while other layers compute.

After Nova, section III-E. `LayerRing` keeps some layers on the device and streams the others through K slots:
a slot is filled on a copy stream, which waits only until the layer that had it before has been computed. In
a captured graph those waits are edges, and a replay needs nothing of Python. Every run copies every streamed
layer anew, so a graph depends on nothing that another left in a slot, and the stages of one tower share one
ring as long as they run one after another. The numbers are those of resident layers to the bit.
Matrices alone are streamed. Biases and norms stay: they are a thousandth of a layer, and the norm after a
product reads its bias when the layer's slot may have been given away. On a CPU the copies are synchronous.
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
"""Bytes of which a matrix's place in a slot is a multiple: products choose their kernels by alignment."""

Layer = Sequence[Sequence[nn.Linear]]
"""The layers' products in the order in which a ring gives their matrices; several are rows of one matrix."""


def check(offload: float, fast: bool, device: torch.device) -> None:
    """Raise ValueError, in one sentence, where no weights can be streamed. offload: a share, 0 = none."""
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
    """Which of so many layers are streamed: that share, at least one, as far apart as can be; none for 0.

    As many layers come before the first as from one to the next, because its copy begins with the tower. If
    all are streamed nothing comes before it.
    """
    count = max(1, round(share * layers)) if share else 0
    return tuple((number + 1) * (layers - 1) // count for number in range(count))


def slots_for(layers: int, streamed: int) -> int:
    """How many slots, each a layer's memory: one where two resident layers or more lie between streamed ones,
    whose time is as good for a copy; three where one lies between some of them and none between others, so
    that copies go on meanwhile; else two."""
    if 3 * streamed <= layers:
        return min(streamed, 1)
    return min(streamed, 3 if layers < 2 * streamed < 2 * layers else 2)


class _Layout:
    """Where a layer's matrices lie in one piece of memory of `size` numbers."""

    def __init__(self, layer: Layer) -> None:
        self.shapes = [(sum(len(linear.weight) for linear in group), group[0].in_features) for group in layer]
        self.dtype = layer[0][0].weight.dtype
        unit = ALIGNMENT // self.dtype.itemsize
        padded = (-(-rows * width // unit) * unit for rows, width in self.shapes)
        *self._starts, self.size = accumulate(padded, initial=0)

    @property
    def nbytes(self) -> int:
        """Of the matrices."""
        return self.dtype.itemsize * sum(rows * width for rows, width in self.shapes)

    def matrices(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Of the memory [size], views."""
        places = zip(self._starts, self.shapes, strict=True)
        return tuple(flat[start : start + rows * width].view(rows, width) for start, (rows, width) in places)


class LayerRing:
    """The layers of a tower: iterating gives each layer's matrices on the device, in their order.

    What is put into the current stream between one item and the next must be all that reads that layer's
    matrices. One iteration at a time, to its end. layers: all of the same shapes. share: of them that are
    streamed. slots: physical layers, None = see slots_for.
    The parameters of streamed layers are the host's from now on, so the plain modules compute on a GPU no
    longer; a further ring of the same tower puts them where it wants them, and this one still works.
    Raises ValueError, in one sentence, where the host has too little memory for them.
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
            torch.cuda.empty_cache()  # what the streamed layers had is for others now
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
        """Layers on the device that streamed ones share."""
        return len(self._slots)

    @property
    def total_bytes(self) -> int:
        """Of the matrices of all layers."""
        return self.layers * self._layout.nbytes

    @property
    def saved_bytes(self) -> int:
        """Memory of the device that the ring does not need, and resident layers would."""
        return (len(self.streamed) - self.slots) * self._layout.nbytes

    @property
    def streamed_bytes(self) -> int:
        """That come from the host in every run."""
        return len(self.streamed) * self._layout.nbytes

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.between(0, self.layers)

    def between(self, first: int, end: int) -> Iterator[tuple[Tensor, ...]]:
        """The same of layers from the first to the one before `end`."""
        numbers = [number for index, number in self._numbers.items() if first <= index < end]
        last = max(numbers, default=-1)
        self._begin(numbers)  # now, not with the first layer: what comes before it takes time, too
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
        """Within, slots keep what they hold, for the time of the layers alone. Results are wrong."""
        self._copies = False
        try:
            yield
        finally:
            self._copies = True

    @torch.inference_mode()
    def fill(self) -> None:
        """Copy every streamed layer once, behind what is in the current stream and waited for by it."""
        for number in range(len(self.streamed)):
            self._slots[number % self.slots].copy_(self._host[number], non_blocking=True)

    def _begin(self, numbers: Sequence[int]) -> None:
        if numbers and self._copies and self._stream is not None:
            self._stream.wait_stream(current_stream(self._device))
        for number in numbers[: self.slots]:
            self._copy(number)

    def _copy(self, number: int) -> None:
        """A streamed layer into its slot."""
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
        """A streamed layer has been computed: the next of its slot may come, up to the last."""
        following = number + self.slots
        if following > last:
            return  # a wait that no copy follows would never be joined to the graph
        if self._copies and self._stream is not None:
            self._read[number % self.slots].record(current_stream(self._device))
            self._stream.wait_event(self._read[number % self.slots])
        self._copy(following)

    def _place(self, index: int, layer: Layer) -> tuple[Tensor, ...]:
        """Where a layer's matrices are when it is computed."""
        number = self._numbers.get(index)
        if number is None:
            return tuple(_resident(linears, self._device) for linears in layer)
        return self._layout.matrices(self._slots[number % self.slots])

    def _take_host(self) -> Tensor:
        """Memory [streamed layers, size], page-locked for as long as the ring is there."""
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
    """Memory that the host could give without swapping; None where nobody says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return next(found, None)


def _resident(linears: Sequence[nn.Linear], device: torch.device) -> Tensor:
    """One matrix of the weights of some layers, on the device."""
    for linear in linears:
        if not linear.weight.is_meta:  # else it is there in fewer bits alone, and nobody reads it here
            linear.weight.data = linear.weight.data.to(device)
    return fuse(linears)[0]


def _move(layer: Layer, places: Sequence[Tensor]) -> None:
    """Make a layer's weights parts of matrices elsewhere, with the numbers that they have."""
    for linears, place in zip(layer, places, strict=True):
        for linear, rows in zip(
            linears, place.split([len(linear.weight) for linear in linears]), strict=True
        ):
            linear.weight.data = rows.copy_(linear.weight.data)


def _too_much(needed: int, why: str) -> str:
    return (
        f"offload is vision, which needs {_gb(needed)} GB of page-locked host memory, but {why}; use a "
        "smaller share, such as vision:0.25, or none."
    )


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f}"
