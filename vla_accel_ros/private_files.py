"""Files that only this user can use, in a shared folder such as /tmp.

Another user can create there what we are about to open: a link to one of our files, which would then be
overwritten or locked, or the folder itself, to stop us at will. So the folder belongs to this user with mode
0700, files are opened relative to it and never through a link, and anything that belongs to another user is
refused.
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
    """Return the folder for a purpose: vla_accel_ros-<purpose>-<uid> in the temporary directory."""
    return Path(tempfile.gettempdir()) / f"vla_accel_ros-{purpose}-{os.geteuid()}"


def open_private(purpose: str, name: str) -> IO[str]:
    """Open a file in that folder, for locking. Both are created if missing; existing content is kept.

    Raises RuntimeError, with one sentence, if the folder or the file is not a plain one that belongs to this
    user.
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
    """Return a descriptor, after checking owner and kind. within: the folder's descriptor, for a file."""
    try:
        descriptor = os.open(path if within is None else path.name, flags | _PLAIN, 0o600, dir_fd=within)
    except OSError as error:
        raise RuntimeError(f"{path} cannot be used ({error.strerror}): {_MEND}") from error
    status = os.fstat(descriptor)
    if not right(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise RuntimeError(f"{path} is not a plain one of this user (but user {status.st_uid}'s): {_MEND}")
    return descriptor


_MEND = "remove it, or set TMPDIR to a folder of your own"
