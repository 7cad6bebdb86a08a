"""Identifies the measured GPU, and lets only one process measure it.

CUDA_VISIBLE_DEVICES renumbers the GPUs of a process, which NVML and NVIDIA's MPS do not know. So everything
about a GPU outside of torch (its energy, its lock, another process that should use it) goes by its UUID.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vla_accel_ros.private_files import open_private


def gpu_id(device: torch.device) -> str | None:
    """GPU-UUID, as NVML and CUDA_VISIBLE_DEVICES name it; None for a CPU."""
    if device.type != "cuda":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


@contextmanager
def alone(name: str | None) -> Iterator[None]:
    """Keep other measurements of this user off a GPU during the block; None: no GPU, nothing to do.

    Raises RuntimeError if another measurement uses it.
    """
    if name is None:
        yield
        return
    with open_private("bench", f"{name}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{name} is being measured by another process: give each a GPU to itself, by "
                "CUDA_VISIBLE_DEVICES."
            ) from None
        yield
