"""Counts the kernels that a call of plain torch would launch on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NO_LAUNCH = ("empty", "detach", "promote_types", "split", "unbind", "rand", "scalar_tensor")
TWICE = ("masked_fill.",)
"""Those that copy first."""


class Launches(TorchDispatchMode):
    """Operations of a call that write memory, as a GPU would launch them one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        inputs = [a for a in args if isinstance(a, torch.Tensor)]
        viewed = isinstance(made, torch.Tensor) and any(
            made.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for a in inputs
        )
        if not viewed and not func.__name__.startswith(NO_LAUNCH):
            self.count += 2 if func.__name__.startswith(TWICE) else 1
        return made
