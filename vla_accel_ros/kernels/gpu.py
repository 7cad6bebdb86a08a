"""What the time of a launch depends on, of a GPU: its multiprocessors, their rates, and its memories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # planning reads this module without torch
    import torch


class Multiprocessor(NamedTuple):
    """A multiprocessor of one compute capability, by CUDA's documentation and the datasheets of its GPUs.

    flop: of dense bfloat16 products summed in float32, a cycle; byte_flop: of int8 or fp8 products. shared:
    bytes of shared memory. block_shared: bytes that one block may have. threads: that it holds.
    """

    flop: int
    byte_flop: int
    shared: int
    block_shared: int
    threads: int


KIB = 1 << 10
MULTIPROCESSORS = {
    80: Multiprocessor(2048, 4096, 164 * KIB, 163 * KIB, 2048),
    86: Multiprocessor(512, 2048, 100 * KIB, 99 * KIB, 1536),
    87: Multiprocessor(2048, 4096, 164 * KIB, 163 * KIB, 1536),
    89: Multiprocessor(512, 2048, 100 * KIB, 99 * KIB, 1536),
    90: Multiprocessor(4096, 8192, 228 * KIB, 227 * KIB, 2048),
    100: Multiprocessor(8192, 16384, 228 * KIB, 227 * KIB, 2048),
    110: Multiprocessor(8192, 16384, 228 * KIB, 227 * KIB, 1536),
    120: Multiprocessor(512, 2048, 100 * KIB, 99 * KIB, 1536),
    121: Multiprocessor(512, 2048, 100 * KIB, 99 * KIB, 1536),
}
"""By capability. 86, 89 and 120: GeForce; the professional cards have twice the bfloat16 rate."""
REGISTERS = 64 * KIB
"""Of a multiprocessor, on all of them."""
PORT_BYTES = 64
"""That a multiprocessor takes from L2 in a cycle."""
L2_SHARE = 0.43
"""Of all multiprocessors' ports, what L2 delivers at once: 7.1 TB/s measured on an H100."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, or an SM partition of one. processors: multiprocessors that kernels may use; of_all: that it
    has, None = the same. capability: such as 90. clock_ghz: of the multiprocessors. bandwidth_gb_s: of its
    memory."""

    processors: int
    capability: int = 80
    clock_ghz: float = 1.4
    bandwidth_gb_s: float = 1000.0
    of_all: int | None = None

    @property
    def multiprocessor(self) -> Multiprocessor:
        """The nearest known capability that is not newer; the oldest for those before it."""
        older = [capability for capability in MULTIPROCESSORS if capability <= self.capability]
        return MULTIPROCESSORS[max(older, default=min(MULTIPROCESSORS))]

    def flop_us(self, itemsize: int) -> float:
        """FLOP of a multiprocessor in a microsecond, for numbers of so many bytes."""
        of_cycle = self.multiprocessor.byte_flop if itemsize == 1 else self.multiprocessor.flop
        return 1e3 * self.clock_ghz * of_cycle

    @property
    def port_bytes_us(self) -> float:
        """Bytes that a multiprocessor takes from L2 in a microsecond."""
        return 1e3 * self.clock_ghz * PORT_BYTES

    @property
    def l2_bytes_us(self) -> float:
        """Bytes that L2 delivers to all multiprocessors in a microsecond."""
        return L2_SHARE * (self.of_all or self.processors) * self.port_bytes_us

    @property
    def memory_bytes_us(self) -> float:
        """Bytes that the memory delivers in a microsecond."""
        return 1e3 * self.bandwidth_gb_s


@cache
def gpu_of(device: torch.device, multiprocessors: int | None = None) -> Gpu:
    """Return a CUDA device in numbers, as its driver tells them; a small GPU for any other device, where
    kernels are interpreted. multiprocessors: of an SM partition."""
    import torch

    if device.type != "cuda":
        return Gpu(16)
    properties = torch.cuda.get_device_properties(device)
    # Older versions of torch do not tell them.
    clock, memory_clock, bits = (
        getattr(properties, name, 0) for name in ("clock_rate", "memory_clock_rate", "memory_bus_width")
    )
    of_memory = 2e-6 * memory_clock * bits / 8  # two transfers in a cycle
    return Gpu(
        multiprocessors or properties.multi_processor_count,
        10 * properties.major + properties.minor,
        1e-6 * clock or Gpu.clock_ghz,
        of_memory or Gpu.bandwidth_gb_s,
        properties.multi_processor_count,
    )
