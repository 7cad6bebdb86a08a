"""Where there is no CUDA device the kernels are run by Triton's interpreter, on tensors of the CPU.

The interpreter has to be chosen before triton is imported, which only kernels/triton does: each folder of
tests that may import that imports this first. For every launch and every function that a kernel calls it goes
through all members of Triton's language, a quarter of its time; here they are listed once.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def _builtins(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if core.is_builtin(member)]

    def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        """As in triton.runtime.interpreter. A kernel that runs has replaced all of a package's, or none."""
        members = _builtins(package)
        if members and getattr(package, members[0][0]) is members[0][1]:
            for name, member in members:
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = _patch_builtin
