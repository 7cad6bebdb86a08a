"""The device of a policy: find it by name, and check whether it still works."""

from __future__ import annotations

import torch


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of that name; convolutions of float32 are of float32 from then on, not of cuDNN's
    tf32. Raises ValueError if the name is invalid or the device is not there."""
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is '{device}'; use 'cpu', 'cuda' or 'cuda:<n>'.") from error
    count = torch.cuda.device_count()
    if target.type == "cuda" and (target.index or 0) >= count:
        raise ValueError(
            f"device is '{device}' but torch finds {count} CUDA devices; use 'cpu' or a torch built for CUDA."
        )
    if target.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return target


def device_fault(error: BaseException) -> bool:
    """Return whether the GPU fails every call of this process after `error`.

    It does after a fault in a kernel (an illegal address, a failed assertion), but not after running out of
    memory. Do not call it during a graph capture.
    """
    if not (isinstance(error, RuntimeError) and torch.cuda.is_initialized()):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
