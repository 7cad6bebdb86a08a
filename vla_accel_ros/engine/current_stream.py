"""The CUDA stream that a thread computes in, asked for several times a chunk.

torch.cuda.current_stream makes an object each time, which takes the interpreter some 5 us. An object for each
stream is kept here instead: which stream is current is still asked of torch each time. Streams of a process
are few and are never given back.
"""

from __future__ import annotations

import torch

_MADE: dict[tuple[int, int], torch.cuda.Stream] = {}


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """As torch.cuda.current_stream."""
    index = torch.cuda.current_device() if device.index is None else device.index
    key = index, torch._C._cuda_getCurrentRawStream(index)
    stream = _MADE.get(key)
    if stream is None:
        stream = _MADE[key] = torch.cuda.current_stream(device)
    return stream
