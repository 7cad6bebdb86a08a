"""How near two ways to compute the same numbers must be: by the dtype and by how large the numbers are.

Processors add in different orders (AVX-512, AVX2 and plain kernels of torch on CPUs, GPUs), which moves a
result by some units in the last place of the largest number that went into it. An absolute bound fits one
magnitude only: 1e-5 is 84 units at 1 and 14 units at 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNITS = 84
"""1e-5 for numbers around 1 in float32."""


def rounding(reference: Tensor, units: float = UNITS) -> float:
    """The greatest absolute difference that rounding explains: `units` of the last place of the greatest of
    1 and |reference|, in the reference's dtype."""
    return units * torch.finfo(reference.dtype).eps * max(1.0, float(reference.detach().abs().max()))


def assert_near(ours: Tensor, reference: Tensor, units: float = UNITS) -> None:
    """The same shape and dtype, finite, and apart by rounding at most."""
    assert torch.isfinite(reference).all()
    torch.testing.assert_close(ours, reference, rtol=0, atol=rounding(reference, units))
