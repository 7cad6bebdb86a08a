"""How a checkpoint is loaded and onto what: the same few choices for every format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

DTYPES = (torch.float32, torch.bfloat16)

Progress = Callable[[int, int], None]
"""(bytes read so far, bytes in all), told after every tensor."""

LayerLoaded = Callable[[str, nn.Module], object]
"""(path of a layer in its model, the layer), told as soon as all its parameters are there."""


@dataclass(frozen=True)
class Options:
    """What whoever loads may choose; see checkpoint.load_policy. model: the network that is there already, of
    which no weight is read; see checkpoint.with_statistics."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    delta_mask: np.ndarray | None = None
    statistics: str | None = None
    normalize: bool = True
    prompt_state: str = "auto"
    progress: Progress | None = None
    model: Any = None
    layer_loaded: LayerLoaded | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype}; use torch.float32 or torch.bfloat16.")

    def network(self, config: object, where: str, read: Callable[[], Any]) -> Any:
        """The network of a folder whose sizes are `config`: the one that is there, or what `read` reads.

        Raises ValueError if the one that is there has other sizes.
        """
        if self.model is not None and self.model.config != config:
            raise ValueError(
                f"{where} is of a network of other sizes or cameras than the policy's; give the folder that "
                "the policy was loaded from, or a copy of it with other statistics."
            )
        return read() if self.model is None else self.model

    def actions(self, relative: np.ndarray | None, width: int, where: str) -> np.ndarray:
        """bool [D], which of a policy's actions are relative to the state.

        relative: what the checkpoint says of it, None if nothing. width: D if nobody says.
        Raises ValueError if the checkpoint and delta_mask differ.
        """
        if self.delta_mask is None:
            return np.zeros(width, np.bool_) if relative is None else relative
        given = np.asarray(self.delta_mask)
        if relative is not None and given.shape == relative.shape and (given != relative).any():
            odd = int(np.flatnonzero(given != relative)[0])
            trained, asked = ("relative", "absolute") if relative[odd] else ("absolute", "relative")
            raise ValueError(
                f"{where} was trained with action {odd} {trained} to the joints, not {asked}; in the "
                f"contract write action: {'delta' if relative[odd] else 'absolute'}."
            )
        return given


def device_fault(error: BaseException) -> bool:
    """Whether the GPU refuses every call of this process since what raised this.

    So it does after a fault in a kernel (an illegal address, a failed assertion), and not when it is out of
    memory. Call it while nothing is being captured.
    """
    if not (isinstance(error, RuntimeError) and torch.cuda.is_initialized()):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def find_device(device: str | torch.device) -> torch.device:
    """The device of that name. Raises ValueError if it is no device or not there."""
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is '{device}'; use 'cpu', 'cuda' or 'cuda:<n>'.") from error
    found = torch.cuda.device_count()
    if target.type == "cuda" and (target.index or 0) >= found:
        raise ValueError(
            f"device is '{device}' but torch finds {found} CUDA devices; use 'cpu' or a torch built for CUDA."
        )
    return target
