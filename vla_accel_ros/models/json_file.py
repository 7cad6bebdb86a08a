"""Read the JSON files of a checkpoint, of a bounded size and in any encoding of JSON, without torch.

Any file of others may be what Git leaves in place of a large one, if its large files were not fetched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOST_JSON_BYTES = 4 << 20
"""Largest JSON file beside a checkpoint: an index of 40,000 tensors. Python needs up to 22 bytes for each
byte."""
POINTER = b"version https://git-lfs.github.com/spec/"
"""What Git leaves in place of a large file begins so."""


def read_json(file: Path, most_bytes: int = MOST_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ValueError if it is unreadable, too large or no object."""
    check_pointer(file)
    try:
        check_bytes(file, most_bytes)
        data = json.loads(file.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{file} is nested too deeply for JSON of a checkpoint; copy it again.") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable JSON ({error}); copy it again.") from error
    if not isinstance(data, dict):
        raise ValueError(f"{file} holds a {type(data).__name__}; it must hold an object.")
    return data


def check_bytes(file: Path, most: int) -> None:
    """Raise ValueError if a file is larger than `most` bytes, or not the file itself."""
    check_pointer(file)
    size = file.stat().st_size
    if size > most:
        raise ValueError(f"{file} has {size} bytes, no such file has more than {most}; copy it again.")


def check_pointer(file: Path) -> None:
    """Raise ValueError if a file is a Git LFS pointer. Whatever cannot be read is no pointer."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(POINTER))
    except OSError:
        return
    if start == POINTER:
        raise ValueError(
            f"{file} is a Git LFS pointer and not the file itself; run git lfs install and git lfs pull in "
            f"{file.parent}, or download the file again."
        )
