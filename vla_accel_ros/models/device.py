"""The device that a policy is on: found by its name, and whether it still answers."""

from __future__ import annotations

import torch


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
