"""What the architectures have that kernels are compiled for, by CUDA's documentation of compute capabilities.

Of a capability one device is taken that robots and their servers have.
"""

from __future__ import annotations

import os
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

EACH_RUN = ("87", "90", "100", "120")
"""Of each instruction set one, with as little shared memory as the others of its kind: sm_80 has the
instructions and the shared memory of sm_87, sm_86 and sm_89 have the shared memory of sm_120, which
multiplies in fp8 as sm_89 does. `make kernels` takes all of them."""

COMPILED_FOR = tuple(ARCHITECTURES) if os.environ.get("EVERY_CASE") == "1" else EACH_RUN
