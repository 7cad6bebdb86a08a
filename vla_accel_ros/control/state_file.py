"""What a node must still know after its process died: a small file of the user's.

There is one for each node, named by ROS domain and fully qualified name, in $XDG_STATE_HOME/vla_accel_ros
(~/.local/state/vla_accel_ros). It holds the last state kept, and whether the process ended cleanly: `clean`
is false on disk from the first `keep` until `finish`. Anyone who can write it can start a held robot, so the
folder must be the user's alone (0700) and links are not followed. A file that is another user's, damaged or
too large is not believed: `problem` says so, and the reader should hold. One thread replaces the file as a
whole, so that a disk that hangs cannot stop the watchdog. A replaced file survives the process. Another
thread then syncs it, in case the machine loses power: a damaged file means hold.
"""

from __future__ import annotations

import json
import os
import queue
import stat
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "vla_accel_ros"
LARGEST = 64 << 10
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Restored:
    """What the previous process left. clean: it ended cleanly, or there was none. problem: a sentence if the
    file cannot be believed; `fields` is then empty."""

    fields: dict[str, Any] = field(default_factory=dict)
    clean: bool = True
    problem: str = ""


class StateFile:
    """The file of one node.

    node: fully qualified name. environment: where XDG_STATE_HOME and HOME are looked up.
    """

    def __init__(self, node: str, domain: int, environment: Mapping[str, str] = os.environ) -> None:
        home = Path(environment.get("HOME") or os.path.expanduser("~"))
        base = Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state")
        self.folder = base / FOLDER
        # A ROS name has no dots, so no two nodes share a file.
        self.name = f"{domain}{node.replace('/', '.')}.json"
        self._queue: queue.SimpleQueue[tuple[dict[str, Any], Future[str]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._replaced = threading.Event()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / self.name

    def restore(self) -> Restored:
        """Read what the previous process left."""
        try:
            with _opened(self.folder) as folder:
                content = self._read(folder)
        except FileNotFoundError:
            return Restored()
        except OSError as error:
            return Restored(clean=False, problem=_sentence(self.path, error))
        try:
            fields = json.loads(content)
            clean = fields.pop("clean")
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return Restored(clean=False, problem=f"{self.path} is damaged: delete it when the robot may move")
        return Restored(fields, clean is True)

    def keep(self, fields: Mapping[str, Any]) -> Future[str]:
        """Have this written, in the order of calls. The result is an empty string when the next process will
        read it, else a sentence that says why not."""
        return self._write({**fields, "clean": False})

    def finish(self, fields: Mapping[str, Any]) -> Future[str]:
        """As `keep`, for a process that ends cleanly."""
        return self._write({**fields, "clean": True})

    def _write(self, content: dict[str, Any]) -> Future[str]:
        written: Future[str] = Future()
        self._queue.put((content, written))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="state file", daemon=True)
            self._thread.start()
            threading.Thread(target=self._sync, name="state file sync", daemon=True).start()
        return written

    def _run(self) -> None:
        while True:
            content, written = self._queue.get()
            try:
                self._replace(json.dumps(content, sort_keys=True).encode())
                written.set_result("")
                self._replaced.set()
            except OSError as error:
                written.set_result(_sentence(self.path, error))

    def _sync(self) -> None:
        while True:
            self._replaced.wait()
            self._replaced.clear()
            with suppress(OSError), _opened(self.folder) as folder:
                descriptor = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder)
                try:
                    os.fsync(descriptor)
                    os.fsync(folder)
                finally:
                    os.close(descriptor)

    def _read(self, folder: int) -> bytes:
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=folder)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise PermissionError("it is not a file that only this user can write: delete it")
            if status.st_size > LARGEST:
                raise PermissionError(f"it has {status.st_size} bytes, more than {LARGEST}: delete it")
            return file.read(LARGEST)

    def _replace(self, content: bytes) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        with _opened(self.folder) as folder:
            new = f"{self.name}.new"
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)  # left by a process that died while it wrote
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=folder)
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(new, self.name, src_dir_fd=folder, dst_dir_fd=folder)


class _opened:
    """The descriptor of a folder that only this user can write. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        status = os.fstat(self._descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            os.close(self._descriptor)
            raise PermissionError(f"{folder} must be this user's alone: chown it, and chmod 700")

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _sentence(path: Path, error: OSError) -> str:
    return f"{path} cannot be used: {error.strerror or error}"
