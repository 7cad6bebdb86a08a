"""What the architectures have that kernels are compiled for, by CUDA's documentation of compute capabilities.

Of a capability one device is taken that robots and their servers have. All are compiled for in every run: a
minute of one core each, a third of it if Triton has compiled these kernels before.
"""

from __future__ import annotations

from typing import NamedTuple

from vla_accel_ros.kernels.gpu import Gpu


class Architecture(NamedTuple):
    """device: which it is; shared_bytes: that a block may have."""

    device: str
    gpu: Gpu
    shared_bytes: int


REGISTERS = 64 << 10
"""Of a block, on all of them."""

ARCHITECTURES = {
    "80": Architecture("A100", Gpu(108, 80, 1.41, 2039), 163 << 10),
    "86": Architecture("RTX 3090", Gpu(82, 86, 1.70, 936), 99 << 10),
    "87": Architecture("Jetson AGX Orin", Gpu(16, 87, 1.30, 205), 163 << 10),
    "89": Architecture("RTX 4090", Gpu(128, 89, 2.52, 1008), 99 << 10),
    "90": Architecture("H200", Gpu(132, 90, 1.98, 4800), 227 << 10),
    "100": Architecture("B200", Gpu(148, 100, 1.92, 8000), 227 << 10),
    "110": Architecture("Jetson AGX Thor", Gpu(20, 110, 1.57, 273), 227 << 10),
    "120": Architecture("RTX 5090", Gpu(170, 120, 2.41, 1792), 99 << 10),
    "121": Architecture("GB10", Gpu(48, 121, 2.42, 273), 99 << 10),
}
