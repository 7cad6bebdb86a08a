"""What one launch computes and moves: the unit in which stages are described and priced.

Bytes are those that cross the device's memory if nothing stays in a cache: weights, inputs and outputs. Rows
are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 4 / 64, "fp4": 0.5 + 1 / 16}
"""Bytes of a number, with its share of a group's scale."""


PLAIN, SDPA, PACKED, ROWS, GATED = BY = ("plain", "sdpa", "packed", "rows", "gated rows")
"""plain: an operation of plain torch. sdpa: its scaled_dot_product_attention. packed: attention of packed
forwards (kernels.triton.packed_attention). rows: a product of 8-bit rows (kernels.triton.int8). gated: the
same with its gate in the epilogue."""


class Kind(str, Enum):
    """The kind of launch, which decides its cost.

    DENSE: a product in tiles, by cuBLAS or similar. NARROW: a product for a few dozen rows, which reads
    weights with all SMs. ATTENTION. PASS: one pass over rows (a norm, an activation).
    """

    DENSE = "dense"
    NARROW = "narrow"
    ATTENTION = "attention"
    PASS = "pass"


@dataclass(frozen=True)
class Op:
    """`count` launches of one shape.

    A product: rows x inner times inner x columns, weights of dtype `weights` [inner, columns], multiplied in
    dtype `compute`. An attention: `rows` query rows of all heads together, `inner` keys for each, `columns`
    numbers in a head; weight_bytes are keys and values; heads: query heads of a token. A pass: only
    moved_bytes. by: which code launches it, where that changes its time, one of BY; "" = kernels of this
    project.
    """

    name: str
    kind: Kind
    count: int
    rows: int = 0
    columns: int = 0
    inner: int = 0
    weights: str = "bf16"
    compute: str = "bf16"
    weight_bytes: float = 0.0
    moved_bytes: float = 0.0
    by: str = ""
    heads: int = 0

    @property
    def flops(self) -> float:
        """FLOP of one launch: two for a multiplication and an addition."""
        factor = {Kind.ATTENTION: 4.0, Kind.PASS: 0.0}.get(self.kind, 2.0)
        return factor * self.rows * self.columns * self.inner

    @property
    def bytes(self) -> float:
        """Bytes of one launch."""
        return self.weight_bytes + self.moved_bytes

    def times(self, count: int) -> Op:
        """Return the operation with `count` times as many launches."""
        return replace(self, count=self.count * count)


def product(
    name: str,
    count: int,
    rows: int,
    columns: int,
    inner: int,
    weights: str = "bf16",
    compute: str | None = None,
    kind: Kind = Kind.DENSE,
    by: str = "",
) -> Op:
    """Return a product rows x inner times inner x columns. compute: None = the dtype of the weights."""
    used = compute or weights
    moved = rows * inner * BYTES[used] + rows * columns * (4.0 if used == "fp32" else 2.0)
    read = BYTES[weights] * columns * inner
    return Op(name, kind, count, rows, columns, inner, weights, used, read, moved, by)


def of_rows(ops: Iterable[Op]) -> list[Op]:
    """Return the same launches, with 8-bit products by kernels.triton.int8."""
    converted = []
    for op in ops:
        if op.kind is Kind.DENSE and op.compute == "int8" and not op.by:
            op = replace(op, by=GATED if op.name == "gate and up" else ROWS)
        converted.append(op)
    return converted


def one_pass(
    name: str, count: int, rows: int, read: int, written: int, itemsize: float = 2.0, by: str = ""
) -> Op:
    """Return a pass. read, written: numbers of a row."""
    return Op(name, Kind.PASS, count, rows, moved_bytes=itemsize * rows * (read + written), by=by)


def total_flops(ops: Iterable[Op]) -> float:
    """Return the FLOP of all launches."""
    return sum(op.count * op.flops for op in ops)


def total_launches(ops: Iterable[Op]) -> int:
    """Return the number of launches."""
    return sum(op.count for op in ops)
