"""Which rows of a packed forward belong to which segment, and where their keys and values are.

The shape of a forward (rows of each segment, who sees whom) is fixed when it is made, so that it can be
captured. What changes between forwards (addresses, lengths, positions) is one small table in device memory,
updated by one asynchronous copy. A part of a past is an address, strides and a length, so prefixes in slots,
tails in pages and others are read where they lie, in any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

ALIGNMENT = 16
"""Alignment of an address, since a kernel reads 16 bytes at once; strides must be multiples of 8 elements."""

OF_SEGMENT = 8
"""Numbers per segment in the table: past tokens, position, rows to write, and their destination (5)."""

OF_PART = 6
"""Numbers per part: addresses of keys and values in layer 0, strides of layer, head and token, tokens."""


class Part(Protocol):
    """A view of keys and values: [layers, 1, kv_heads, tokens, head_dim], the last dimension contiguous."""

    @property
    def k(self) -> Tensor: ...

    @property
    def v(self) -> Tensor: ...


class Where(NamedTuple):
    """Addresses of keys and values in layer 0 [bytes], strides [elements], tokens."""

    k: int
    v: int
    layer: int
    head: int
    token: int
    tokens: int


NOWHERE = Where(0, 0, 0, 0, 0, 0)


def where(part: Part) -> Where:
    """Return where a part is. Raises ValueError if the layouts of its keys and values differ."""
    k, v = part.k, part.v
    layer, _, head, token, last = k.stride()
    if v.stride() != k.stride() or last != 1:
        raise ValueError(
            f"keys with strides {k.stride()} and values with {v.stride()}: they must be alike and end with 1"
        )
    return Where(k.data_ptr(), v.data_ptr(), layer, head, token, k.shape[3])


class Shape(NamedTuple):
    """A segment's rows. seen: how many of them, from the first on, each row sees."""

    rows: int
    seen: tuple[int, ...]


@dataclass
class Rows:
    """What changes of a segment from one forward to the next.

    past: what comes before it. start: position of its first row. out: where the keys and values of its first
    `tokens` rows go; NOWHERE = nowhere.
    """

    past: Sequence[Part]
    places: Sequence[Where]
    start: int = 0
    out: Where = NOWHERE
    to: Part | None = None


class Work:
    """The metadata of packed forwards of one shape, at fixed addresses. Not thread-safe.

    block_m: rows times query heads of one key head that a kernel block takes. groups: query heads per key
    head. splits: ranges of the keys of a row. parts: most parts of all pasts together. first int32 [segments
    + 1]: rows of segment s are first[s] to first[s + 1]. owner, within int32 [rows]: segment of a row and its
    place there. seen int32 [rows]. tiles int32 [tiles, 2]: segment, and first of its block_m.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        parts: int,
        groups: int,
        device: torch.device,
        block_m: int = 16,
        splits: int = 1,
    ) -> None:
        self.shapes, self.groups, self.block_m, self.splits = tuple(shapes), groups, block_m, splits
        self.capacity = parts
        counts = [shape.rows for shape in shapes]
        self.starts = [sum(counts[:index]) for index in range(len(counts) + 1)]
        self.rows = self.starts[-1]
        self.first = _int32(self.starts, device)
        self.owner = _int32([s for s, count in enumerate(counts) for _ in range(count)], device)
        self.within = _int32([row for count in counts for row in range(count)], device)
        self.seen = _int32([seen for shape in shapes for seen in shape.seen], device)
        self.tiles = _int32(
            [(s, m) for s, count in enumerate(counts) for m in range(0, count * groups, block_m)], device
        )
        segments = len(shapes)
        # An even number, so that the whole table is equally aligned and one kernel serves every number.
        begins = segments + 1 + (segments + 1) % 2
        self._sizes = [segments * OF_SEGMENT, begins, parts * OF_PART]
        self._table = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        self.segments, self.begin, self.parts = self._table.split(self._sizes)
        self.now: list[Rows] = [Rows((), ()) for _ in shapes]

    def point(self, rows: Sequence[Rows]) -> None:
        """Set what the next forward works on, for each segment or for the first few: the others then attend
        to nothing and write nowhere. Raises ValueError if there are too many parts."""
        idle = [Rows((), ()) for _ in range(len(self.shapes) - len(rows))]
        self.now = [*rows, *idle]
        segments: list[int] = []
        begin, parts = [0], list[int]()
        for segment in self.now:
            past = sum(part.tokens for part in segment.places)
            segments += [past, segment.start, segment.out.tokens, *segment.out[:5]]
            for part in segment.places:
                parts += part
            begin.append(len(parts) // OF_PART)
        if begin[-1] > self.capacity:
            raise ValueError(f"{begin[-1]} parts of pasts, but there is room for {self.capacity}")
        begin += [begin[-1]] * (self._sizes[1] - len(begin))
        host = torch.tensor(segments + begin + parts, dtype=torch.int64, pin_memory=self._table.is_cuda)
        self._table[: host.numel()].copy_(host, non_blocking=True)


def aligned(place: Where) -> Where:
    """Return the place. Raises ValueError if a kernel could not read it 16 bytes at a time."""
    if place.k % ALIGNMENT or place.v % ALIGNMENT or any(stride % 8 for stride in place[2:5]):
        raise ValueError(
            f"keys and values at {place} are not aligned: addresses must be multiples of {ALIGNMENT} bytes "
            "and strides of 8 elements, so a head_dim must be a multiple of 8"
        )
    return place


def _int32(values: Sequence[object], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
