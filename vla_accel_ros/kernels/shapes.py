"""What a launch's speed depends on (Shape), and how it is launched (Config)."""

from __future__ import annotations

from dataclasses import dataclass

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1}
"""By the name of a dtype; int4 weights are uint8, two in a byte."""
ATTENTION = ("attend", "attend_rotary")
WAYS = ("triton", "cuda")
PARTED = "product_in_parts"
"""A cuBLAS product, whose tiles change with every few rows."""
PARTED_ROWS = 256
INT8_PRODUCT, INT8_GATED = "int8_product", "int8_gated"
"""Products of int8 rows and weights; gated: with two tiles of weights."""


@dataclass(frozen=True)
class Config:
    """Launch parameters. block_m, block_n, block_k: rows, columns and inner dimension of a tile. split: parts
    of the inner dimension, or of the keys. warps: of a block. stages: loads in flight. way: "triton", or
    "cuda" for kernels/cuda, which choose some of these themselves. down, across: blocks of a cluster that
    share weights, and activations (cuda/tiles.cu). Raises ValueError if a value is out of range."""

    block_m: int
    block_n: int
    block_k: int
    split: int = 1
    warps: int = 4
    stages: int = 3
    way: str = "triton"
    down: int = 1
    across: int = 1

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way is {self.way!r}; a kernel is one of {', '.join(WAYS)}.")
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if value < 16 or value % 16 or (self.way == "triton" and value & (value - 1)):
                raise ValueError(f"{name} is {value}; a tile needs a power of two of at least 16.")
        smallest = min(self.split, self.stages, self.down, self.across)
        if smallest < 1 or self.warps not in (1, 2, 4, 8, 16):
            raise ValueError(
                f"{self} cannot launch a kernel; give 1 to 16 warps, and at least 1 for all else."
            )


@dataclass(frozen=True)
class Shape:
    """What a kernel's speed depends on.

    kernel: its name in kernels.ops. rows: of its activations. columns: that it makes (keys, for attention).
    inner: inner dimension. dtype: of its weights, such as "bfloat16". sequences, key_heads: of an attention,
    which a table does not tell apart.
    """

    kernel: str
    rows: int
    columns: int
    inner: int
    dtype: str
    sequences: int = 1
    key_heads: int = 1

    @property
    def key(self) -> str:
        """The key in a table: rows rounded up to a power of two (PARTED: to 256), any number of keys."""
        columns = "any" if self.kernel in ATTENTION else self.columns
        rows = -(-self.rows // PARTED_ROWS) * PARTED_ROWS if self.kernel == PARTED else round_up(self.rows)
        return f"{self.kernel}/{rows}/{columns}/{self.inner}/{self.dtype}"

    @property
    def itemsize(self) -> int:
        """Bytes of an element, as it is stored."""
        return ITEMSIZES[self.dtype]


def round_up(n: int) -> int:
    """Return the smallest power of two that is at least n and 16."""
    return max(16, 1 << (n - 1).bit_length())
