"""Writes a safetensors file tensor by tensor, so that a model larger than the memory can be written.

The format is a header of names, types, shapes and offsets, and then the numbers one after another. The header
comes first, so names and shapes must be known before the first number is; the library's own writer wants all
numbers at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.models.options import Progress
from vla_accel_ros.models.shards import BYTES

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def write_safetensors(
    file: Path,
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    values: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> str:
    """Write a file that is not there yet; returns its SHA-256.

    layout: name -> (safetensors' dtype, shape), in the order in which values come.
    Raises FileExistsError if the file is there, ValueError if the values are not those of the layout; what
    was written until then is removed.
    """
    header = _header(layout, metadata or {})
    total = sum(BYTES[dtype] * torch.Size(shape).numel() for dtype, shape in layout.values())
    digest, done, waiting = hashlib.sha256(header), 0, list(layout)
    with open(file, "xb") as out:
        try:
            out.write(header)
            for name, value in values:
                if not waiting or waiting.pop(0) != name:
                    raise ValueError(f"{name} does not come where the layout has it.")
                if (DTYPES.get(value.dtype), tuple(value.shape)) != layout[name]:
                    raise ValueError(f"{name} is {value.dtype} {list(value.shape)}, not {layout[name]}.")
                data = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                out.write(data)
                digest.update(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            if waiting:
                raise ValueError(f"{waiting[0]} did not come.")
        except BaseException:
            out.close()
            file.unlink()
            raise
    return digest.hexdigest()


def _header(layout: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + BYTES[dtype] * torch.Size(shape).numel()
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
