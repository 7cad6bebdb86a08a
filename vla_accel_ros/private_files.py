"""Files of this user alone in a folder that everybody shares, as /tmp is.

There another user can make what we are about to open: a link to a file of ours that would be overwritten or
locked, or the folder itself, to end us whenever it suits. So the folder is this user's with mode 0700, files
are opened within it and never through a link, and what is there and is not ours is refused.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW


def private_folder(purpose: str) -> Path:
    """The folder for a purpose: vla_accel_ros-<purpose>-<uid> where temporary files go."""
    return Path(tempfile.gettempdir()) / f"vla_accel_ros-{purpose}-{os.geteuid()}"


def open_private(purpose: str, name: str) -> IO[str]:
    """A file in that folder, to be locked; both are made if they are not there, and what is there is kept.

    Raises RuntimeError, one sentence, where the folder or the file is not a plain one of this user's.
    """
    folder = private_folder(purpose)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    within = _opened(folder, os.O_RDONLY | os.O_DIRECTORY, stat.S_ISDIR)
    try:
        os.fchmod(within, 0o700)
        file = _opened(folder / name, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, stat.S_ISREG, within)
    finally:
        os.close(within)
    return os.fdopen(file, "r+")


def _opened(path: Path, flags: int, right: Callable[[int], bool], within: int | None = None) -> int:
    """A descriptor of what is ours and of the right kind. within: that of its folder, if it is a file."""
    try:
        descriptor = os.open(path if within is None else path.name, flags | _PLAIN, 0o600, dir_fd=within)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be used ({error.strerror}): {_MEND}") from error
    status = os.fstat(descriptor)
    if not right(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise RuntimeError(f"{path} is not a plain one of ours (user {status.st_uid}'s): {_MEND}")
    return descriptor


_MEND = "remove it, or set TMPDIR to a folder of your own"
