"""The processes of a fleet: started again when they die, as launch files do, and looked at meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CLOCK = Path(__file__).with_name("clock.py")
SHARED = Path("/dev/shm")
LOST = b"Fast DDS has lost this process's shared memory"
LAST_BYTES = 4000
NICER = 10
"""By how much the processes are nicer than the one that starts them, if that could be made less nice."""


class Process:
    """One node. offset_s: of its clock. wanted: whether it is started again when it has died. starts_ns:
    steady times of its starts; ended: exit statuses that nobody caused; lost: how often it ended because
    Fast DDS had deleted its shared memory for that of one that was killed; left: the shared memory
    that it had when it was killed, by name."""

    def __init__(
        self,
        name: str,
        module: str,
        namespace: str,
        parameters: Mapping[str, object],
        renamed: Mapping[str, str],
        offset_s: float,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.name, self.wanted = name, True
        self.starts_ns: list[int] = []
        self.ended: list[int] = []
        self.usage: list[list[float]] = []
        words = ["-r", f"__ns:={namespace}"] if namespace else []
        for old, new in renamed.items():
            words += ["-r", f"{old}:={new}"]
        for key, value in parameters.items():
            words += ["-p", f"{key}:={json.dumps(value)}"]
        nice = ["nice", "-n", str(NICER)] if os.nice(0) < 0 else []
        self._command = [*nice, sys.executable, str(CLOCK), str(offset_s), module, "--ros-args", *words]
        self._environment = {**environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.log = folder / f"{name.replace('/', '_')}.log"
        self.lost = 0
        self.left: set[str] = set()
        self._died_s = 0.0
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again after it ended."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts_ns.append(time.monotonic_ns())
        self._killed, self._died_s = False, 0.0

    @property
    def pid(self) -> int:
        """Of the newest one."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._killed = True
        self.left |= {file.name for file in mapped(self.pid)}
        self._process.kill()
        self._process.wait()

    def tick(self, respawn_s: float) -> None:
        """Start it again when it has been dead for so long."""
        if self.alive or not self.wanted or self._process is None:
            return
        now_s = time.monotonic()
        if not self._died_s:
            self._died_s = now_s
            if not self._killed and LOST in self.log.read_bytes()[-LAST_BYTES:]:
                self.lost += 1
            elif not self._killed:
                self.ended.append(self._process.returncode)
        if now_s - self._died_s >= respawn_s:
            self.start()

    def look(self) -> None:
        """Write down [start, time (s), RSS (MB), threads, descriptors] of now."""
        if not self.alive:
            return
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return
        fields = dict(line.split(":", 1) for line in status.splitlines())
        if "VmRSS" in fields:
            used = [int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"])]
            self.usage.append([len(self.starts_ns), time.monotonic(), *used, descriptors])

    def last_words(self) -> str:
        """The end of its log."""
        return f"{self.name}: {self.log.read_bytes()[-LAST_BYTES:].decode(errors='replace')}"

    def end(self, patience_s: float = 10.0) -> int:
        """Ask it to end; its status, -9 when it had to be killed."""
        self.wanted = False
        if self._process is None:
            return 0
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()


def mapped(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line}


def abandoned(names: set[str]) -> dict[str, int]:
    """Of files in /dev/shm that killed processes had: bytes of those that are there and that nobody has."""
    used = {path.name for entry in Path("/proc").glob("[0-9]*") for path in mapped(int(entry.name))}
    found = {}
    for name in names - used:
        with suppress(OSError):
            found[name] = (SHARED / name).stat().st_blocks * 512
    return found


def segments() -> list[str]:
    """Shared memory of this package that no living writer has locked."""
    found = []
    for path in SHARED.glob("vla_accel_ros.*"):
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found.append(path.name)
    return found
