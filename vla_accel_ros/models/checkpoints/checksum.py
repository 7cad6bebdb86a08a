"""SHA-256 of a checkpoint: one digest over all files of a policy, or the digest of one file.

File names and contents count; paths and times do not, so a copy has the same digest. Hidden files and
Markdown notes are left out. Hashing gigabytes takes seconds, so it can be interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_BLOCK = 1 << 22


def checksum(folder: str | Path, stop: Callable[[], bool] = lambda: False) -> str:
    """Return the 64 hexadecimal digits of a checkpoint folder, or "" if `stop` returned True while hashing.

    Raises OSError if a file cannot be read, ValueError if the folder has no checkpoint file.
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
    """Return a file's SHA-256 as 64 hexadecimal digits. progress: called with the byte count of each block
    read."""
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
