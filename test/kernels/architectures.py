"""What the architectures have that kernels are compiled for, by CUDA's documentation of compute capabilities.

Of a capability one device is taken that robots and their servers have. All are compiled for in every run: a
minute of one core each, a third of it if Triton has compiled these kernels before.
"""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    """device: whose processors; shared_bytes: that a block may have."""

    device: str
    processors: int
    shared_bytes: int


REGISTERS = 64 << 10
"""Of a block, on all of them."""

ARCHITECTURES = {
    "80": Architecture("A100", 108, 163 << 10),
    "86": Architecture("RTX 3090", 82, 99 << 10),
    "87": Architecture("Jetson AGX Orin", 16, 163 << 10),
    "89": Architecture("RTX 4090", 128, 99 << 10),
    "90": Architecture("H200", 132, 227 << 10),
    "100": Architecture("B200", 148, 227 << 10),
    "120": Architecture("RTX 5090", 170, 99 << 10),
}
