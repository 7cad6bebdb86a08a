"""Where there is no CUDA device the kernels are run by Triton's interpreter, on tensors of the CPU.

The interpreter has to be chosen before triton is imported, which only kernels/triton does: each folder of
tests that may import that imports this first.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
