"""Compile CUDA C++ at run time with NVRTC, and launch it through NVIDIA's own bindings.

PyTorch's CUDA builds bring both (cuda-bindings, nvidia-cuda-nvrtc); without them this module is not used. A
kernel is compiled once per process for the present device, with its sizes as macros.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

HEADER = "hopper.cuh"
SWIZZLES = {64: "128B", 32: "64B", 16: "32B", 8: "NONE"}
MOST_BLOCKS = 8
"""Most blocks of a cluster."""
SHARED_BYTES = 227 << 10
"""Most shared memory of a block on sm_90."""
ROWS = 64
"""Rows of a wgmma tile."""
CARVEOUT = 100
"""Percentage of an SM's L1 that is shared memory: as much as possible."""


class TensorMap(ctypes.Structure):
    """A TMA descriptor of a matrix, as the driver encodes it."""

    _fields_ = (("opaque", ctypes.c_ubyte * 128),)


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether NVIDIA's bindings and the compiler library are installed."""
    try:
        from cuda.bindings import driver, nvrtc

        return bool(driver) and int(nvrtc.nvrtcVersion()[0]) == 0
    except (
        ImportError,
        RuntimeError,
    ):  # the bindings load the compiler library at the first call
        return False


def launchable(tensor: Tensor) -> bool:
    """Return whether kernels for sm_90 can run on a tensor's device."""
    return available() and tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) == (9, 0)


def tile_rows(rows: int) -> int:
    """Return the rows of a tile for `rows` rows: rounded up to a multiple of 8, at most ROWS."""
    return min(ROWS, -(-rows // 8) * 8)


def compiled(name: str, macros: Mapping[str, int], architecture: str) -> bytes:
    """Return the cubin of NAME.cu for an architecture such as "sm_90a". Raises RuntimeError with the
    compiler's log."""
    from cuda.bindings import nvrtc

    folder = resources.files("vla_accel_ros.kernels.cuda")
    source, header = ((folder / file).read_bytes() for file in (f"{name}.cu", HEADER))
    program = _checked(
        nvrtc.nvrtcCreateProgram(source, f"{name}.cu".encode(), 1, [header], [HEADER.encode()])
    )
    options = [f"--gpu-architecture={architecture}", "--std=c++17"]
    options += [f"-D{macro}={value}" for macro, value in macros.items()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"{name}.cu does not compile for {architecture}: {log.decode(errors='replace')}")
    code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return bytes(code)


class Kernel:
    """The function `name` of FILE.cu on a device of compute capability 9.0.

    threads, shared_bytes: of a block. Raises RuntimeError if it does not compile or load.
    """

    def __init__(
        self, file: str, name: str, macros: Mapping[str, int], device: torch.device, threads: int,
        shared_bytes: int,
    ) -> None:  # fmt: skip
        from cuda.bindings import driver

        self._driver, self._threads, self._shared = driver, threads, shared_bytes
        code = compiled(file, macros, "sm_90a")
        self._library = _checked(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
        kernel = _checked(driver.cuLibraryGetKernel(self._library, name.encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        index = torch.cuda.current_device() if device.index is None else device.index
        _checked(driver.cuKernelSetAttribute(attribute, shared_bytes, kernel, driver.CUdevice(index)))
        # An SM changes its carve-out only when it is idle: all kernels ask for the same one, so that blocks
        # of two launches can share an SM.
        share = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        _checked(driver.cuKernelSetAttribute(share, CARVEOUT, kernel, driver.CUdevice(index)))
        self._function = driver.CUfunction(int(kernel))
        self._at_once: dict[tuple[int, int], int] = {}

    def launch(
        self, grid: tuple[int, int, int], arguments: tuple[ctypes.Structure, ...], pdl: bool, cluster: int = 1
    ) -> None:
        """Launch on the current stream.

        arguments: copied by the driver. pdl: whether it may start before the previous launch has ended.
        cluster: blocks of a cluster, along the first grid dimension.
        """
        if (trial := _TRIAL.get()) is not None:
            trial.append((self, cluster, math.prod(grid) // cluster))
            return
        config = self._config(grid, torch.cuda.current_stream().cuda_stream, cluster, pdl)
        addresses = (ctypes.c_void_p * len(arguments))(
            *(ctypes.addressof(argument) for argument in arguments)
        )
        _checked(self._driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(addresses), 0))

    def at_once(self, cluster: int, stream: int = 0) -> int:
        """Return how many clusters of so many blocks run at once on the processors of a stream, 0 = of the
        device."""
        if (cluster, stream) not in self._at_once:
            config = self._config((cluster, 1, 1), stream, cluster)
            told = self._driver.cuOccupancyMaxActiveClusters(self._function, config)
            self._at_once[cluster, stream] = int(_checked(told))
        return self._at_once[cluster, stream]

    def _config(self, grid: tuple[int, int, int], stream: int, cluster: int, pdl: bool = False) -> Any:
        driver = self._driver
        config: Any = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes, config.hStream = self._shared, stream
        clusters, early = driver.CUlaunchAttribute(), driver.CUlaunchAttribute()
        clusters.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        clusters.value.clusterDim.x, clusters.value.clusterDim.y, clusters.value.clusterDim.z = cluster, 1, 1
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = int(pdl)
        config.attrs, config.numAttrs = [clusters, early], 2
        return config


_TRIAL: ContextVar[list[tuple[Kernel, int, int]] | None] = ContextVar("trial", default=None)


def clusters_of(launch: Callable[[], object]) -> tuple[Kernel, int, int]:
    """Return the kernel of a launch, the blocks of its clusters, and their number, without launching it."""
    trial: list[tuple[Kernel, int, int]] = []
    token = _TRIAL.set(trial)
    try:
        launch()
    finally:
        _TRIAL.reset(token)
    return trial[0]


def tensor_map(tensor: Tensor, box: tuple[int, ...]) -> TensorMap:
    """Return a TMA descriptor of a bfloat16 tensor, swizzled to the width of the box's rows; out of bounds
    reads 0.

    box: a size for each dimension, the last one 64, 32, 16 or, not swizzled, 8. Raises ValueError if rows do
    not begin at multiples of 16 bytes.
    """
    from cuda.bindings import driver

    strides = [stride * tensor.element_size() for stride in tensor.stride()]
    if strides[-1] != 2 or any(stride % 16 for stride in strides[:-1]) or tensor.data_ptr() % 16:
        raise ValueError(f"rows of {list(tensor.shape)} do not begin at multiples of 16 bytes.")
    swizzle = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[box[-1]]}")
    descriptor = _checked(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            tensor.ndim,
            tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in reversed(tensor.shape)],
            [driver.cuuint64_t(stride) for stride in reversed(strides[:-1])],
            [driver.cuuint32_t(size) for size in reversed(box)],
            [driver.cuuint32_t(1)] * tensor.ndim,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return TensorMap.from_buffer_copy(ctypes.string_at(descriptor.getPtr(), ctypes.sizeof(TensorMap)))


def _checked(told: tuple[Any, ...]) -> Any:
    """Return the results of a call after its status. Raises RuntimeError unless it succeeded."""
    status, *values = told
    if int(status) != 0:
        raise RuntimeError(f"CUDA: {status!r}")
    return values[0] if values else None
