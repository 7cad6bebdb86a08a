"""Random tensors of odd shapes, the device and dtypes to test on, and how near kernels are to references."""

from __future__ import annotations

import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# bfloat16 products are wrong in Triton's interpreter.
DTYPES = (torch.float32, torch.float16, *((torch.bfloat16,) if CUDA else ()))
NEAR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Drawing:
    """Numbers in order of a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator) * spread
        return drawn.to(DEVICE, dtype)


def ints(*values: int) -> Tensor:
    """int32 on the device"""
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def poison(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A place to write, none of whose values may be left."""
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def assert_near(kernel: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """By the norm of the difference, which no single rounding dominates, and finite everywhere."""
    assert torch.isfinite(kernel).all()
    error = (kernel.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    assert error <= NEAR[dtype], f"{error:.3g}"
