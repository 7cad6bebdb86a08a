"""Modules that only hold others, so that parameters have their published names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn


class Holder(nn.Module):
    """Holds modules by name, in this order."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
