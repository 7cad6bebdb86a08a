"""Which checkpoint it is: one SHA-256 over all files that a policy is made of, and that of one file.

Names and contents count, times and places do not, so that a copy is the same checkpoint. What says nothing
about the policy (hidden files, notes in Markdown) is left out. Gigabytes take seconds, so it can be broken
off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_BLOCK = 1 << 22


def checksum(folder: str | Path, stop: Callable[[], bool] = lambda: False) -> str:
    """64 hexadecimal digits of a checkpoint folder; empty when `stop` said True meanwhile.

    Raises OSError when a file cannot be read, ValueError when there is none.
    """
    root = Path(folder)
    files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    files = [path for path in files if path.suffix != ".md" and not _hidden(path)]
    if not files:
        raise ValueError(f"{folder} has no file of a checkpoint; give the checkpoint's folder.")
    total = hashlib.sha256()
    for path in files:
        content = _digest(root / path, stop)
        if not content:
            return ""
        total.update(f"{path.as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def sha256(file: Path, progress: Callable[[int], object] = lambda count: None) -> str:
    """Of a file's bytes, 64 hexadecimal digits. progress: gets the bytes of each piece that was read."""
    digest = hashlib.sha256()
    with open(file, "rb", buffering=0) as opened:
        while piece := opened.read(_BLOCK):
            digest.update(piece)
            progress(len(piece))
    return digest.hexdigest()


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _digest(path: Path, stop: Callable[[], bool]) -> str:
    content, block = hashlib.sha256(), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while not stop():
            n = file.readinto(block)
            if not n:
                return content.hexdigest()
            content.update(memoryview(block)[:n])
    return ""
