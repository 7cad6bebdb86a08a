"""Judge the inference node's GPU: whether torch sees it, its driver, memory and formats."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass, replace

from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning

_LITTLE = 1 << 30
HOPPER = (9, 0)
"""The compute capability of kernels/cuda."""


@dataclass(frozen=True)
class Gpu:
    """What torch and the driver report.

    name: empty if torch sees no CUDA device. built: the CUDA version torch was built for, empty for a CPU
    build. driver: the newest CUDA version of the driver, empty without one. free, total: its memory in bytes.
    triton: whether it is installed. bindings: whether NVIDIA's are, which compile kernels/cuda.
    """

    torch: str
    built: str = ""
    driver: str = ""
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    free: int = 0
    total: int = 0
    bfloat16: bool = False
    triton: bool = True
    bindings: bool = True


def look() -> Gpu:
    """Query torch and the driver."""
    import torch

    from vla_accel_ros.kernels.cuda import compiling

    gpu = Gpu(torch.__version__, torch.version.cuda or "", _driver())
    if not torch.cuda.is_available():
        return gpu
    free, total = torch.cuda.mem_get_info()
    return replace(
        gpu,
        name=torch.cuda.get_device_name(),
        capability=torch.cuda.get_device_capability(),
        free=free,
        total=total,
        bfloat16=torch.cuda.is_bf16_supported(),
        triton=importlib.util.find_spec("triton") is not None,
        bindings=compiling.available(),
    )


def judge(gpu: Gpu, device: str, dtype: str, weights: int) -> list[Finding]:
    """Return the findings. device, dtype: parameters of the inference node. weights: bytes of the checkpoint,
    0 if unknown."""
    if device == "cpu":
        return [ok("gpu", "not asked for: device is cpu")]
    if not gpu.name:
        return [_unseen(gpu, device)]
    findings = []
    room = f"{gpu.free / 1e9:.1f} GB left of {gpu.total / 1e9:.1f} GB"
    if dtype == "bfloat16" and not gpu.bfloat16:
        fact = f"{gpu.name} has no bfloat16 (capability {gpu.capability[0]}.{gpu.capability[1]})"
        findings.append(error("gpu", fact, "set dtype to float32"))
    if gpu.free < _LITTLE:
        fix = "normal while the model is loaded there; else end what else is using it"
        findings.append(warning("gpu", f"{gpu.name} has {room}", fix))
    elif weights > gpu.total:
        fact = f"the checkpoint has {weights / 1e9:.1f} GB, {gpu.name} {gpu.total / 1e9:.1f} GB"
        findings.append(error("gpu", fact, "set dtype to bfloat16, or take a larger GPU"))
    versions = f"torch {gpu.torch} for CUDA {gpu.built}, driver for CUDA {gpu.driver or '?'}"
    return (findings or [ok("gpu", f"{gpu.name}, {room}, {versions}")]) + _kernels(gpu)


def _kernels(gpu: Gpu) -> list[Finding]:
    """Return what keeps the fast stages below full speed on this GPU."""
    if not gpu.triton:
        return [warning("gpu", "triton is not installed, which fast stages need", "pip install triton")]
    if gpu.capability == HOPPER and not gpu.bindings:
        fact = f"kernels/cuda, which are for {gpu.name}, cannot be compiled: Triton's are used"
        return [warning("gpu", fact, "pip install cuda-bindings nvidia-cuda-nvrtc, of torch's CUDA version")]
    return []


def _unseen(gpu: Gpu, device: str) -> Finding:
    if not gpu.built:
        fact = f"torch {gpu.torch} is built for the CPU, where a large model takes seconds"
        fix = "install a torch that is built for CUDA"
    elif not gpu.driver:
        fact = f"torch {gpu.torch} sees no CUDA device, and there is no NVIDIA driver"
        fix = "install the driver, or give the container the GPU (--gpus all)"
    else:
        fact = f"torch {gpu.torch} for CUDA {gpu.built} sees no device, the driver knows CUDA {gpu.driver}"
        fix = "look at CUDA_VISIBLE_DEVICES; a newer torch may need a newer driver"
    return (error if device == "cuda" else warning)("gpu", fact, fix)


def _driver() -> str:
    """Return the newest CUDA version of the driver, empty without a driver."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return ""
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
