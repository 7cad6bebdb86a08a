"""What every network of a policy has: a device, a dtype, and a precision to be cast to."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

_N = TypeVar("_N", bound="Network")


class Network(nn.Module):
    """A whole network. Its first parameter is one that no stage moves or frees."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of what a prefix leaves."""
        return next(self.parameters()).dtype

    def set_precision(self: _N, dtype: torch.dtype) -> _N:
        """Cast to dtype, except what the family's own code keeps in float32."""
        return self.to(dtype)
