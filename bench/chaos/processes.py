"""The processes of a fleet: restarted when they die, as by launch files, and watched meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vla_accel_ros.tools.running.processes import NodeProcess, mapped

CLOCK = Path(__file__).with_name("clock.py")
SHARED = Path("/dev/shm")
LOST = b"Fast DDS has lost this process's shared memory"
LAST_BYTES = 4000
NICER = 10
"""By how much the processes are nicer than the one that starts them, if that could be made less nice."""
MB = 1024.0


@dataclass(frozen=True)
class Usage:
    """Of a process at a time (steady seconds). life: its number of starts. own_mb: memory that is its own;
    shared_mb: files and shared memory that it has touched, also of others."""

    life: int
    at_s: float
    own_mb: float
    shared_mb: float
    threads: int
    descriptors: int


class Process(NodeProcess):
    """One node. offset_s: of its clock. wanted: whether it is restarted when it has died. starts_ns: steady
    times of its starts; ended: exit statuses that nobody caused; lost: how often it ended because Fast DDS
    had deleted its shared memory instead of a killed process's; left: the shared memory that it had when it
    was killed, by name; killed_ns: when, in steady time."""

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
        words = ["-r", f"__ns:={namespace}"] if namespace else []
        for old, new in renamed.items():
            words += ["-r", f"{old}:={new}"]
        for key, value in parameters.items():
            words += ["-p", f"{key}:={json.dumps(value)}"]
        nice = ["nice", "-n", str(NICER)] if os.nice(0) < 0 else []
        program = [*nice, sys.executable, str(CLOCK), str(offset_s), module]
        log = folder / f"{name.replace('/', '_')}.log"
        super().__init__(name, words, environment, log, program=program)
        self.wanted = True
        self.starts_ns: list[int] = []
        self.ended: list[int] = []
        self.usage: list[Usage] = []
        self.lost = 0
        self.killed_ns: list[int] = []
        self.left: set[str] = set()
        self._died_s = 0.0
        self._killed = False

    def start(self) -> None:
        """Start it; also after it has ended."""
        super().start()
        self.starts_ns.append(time.monotonic_ns())
        self._killed, self._died_s = False, 0.0

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._killed = True
        self.killed_ns.append(time.monotonic_ns())
        self.left |= {file.name for file in mapped(self.pid)}
        super().kill()

    def tick(self, respawn_s: float) -> None:
        """Restart it when it has been dead for so long."""
        if self.alive or not self.wanted or not self.starts:
            return
        now_s = time.monotonic()
        if not self._died_s:
            self._died_s = now_s
            if not self._killed and LOST in self.log.read_bytes()[-LAST_BYTES:]:
                self.lost += 1
            elif not self._killed:
                self.ended.append(self.process.returncode)
        if now_s - self._died_s >= respawn_s:
            self.start()

    def look(self) -> None:
        """Record its present usage."""
        if not self.alive:
            return
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return
        fields = {
            name: words.split() for name, _, words in (line.partition(":") for line in status.splitlines())
        }
        if "RssAnon" in fields:
            own_kb, file_kb, shared_kb, threads = (
                int(fields[name][0]) for name in ("RssAnon", "RssFile", "RssShmem", "Threads")
            )
            memory = own_kb / MB, (file_kb + shared_kb) / MB
            self.usage.append(Usage(self.starts, time.monotonic(), *memory, threads, descriptors))

    def end(self, patience_s: float = 10.0) -> int:
        """Ask it to end; returns its status, -9 if it had to be killed."""
        self.wanted = False
        return super().end(patience_s)


def abandoned(names: set[str]) -> dict[str, int]:
    """Return the size of files in /dev/shm that killed processes left and no process uses, in bytes."""
    used = {path.name for entry in Path("/proc").glob("[0-9]*") for path in mapped(int(entry.name))}
    sizes = {}
    for name in names - used:
        with suppress(OSError):
            sizes[name] = (SHARED / name).stat().st_blocks * 512
    return sizes


def segments() -> list[str]:
    """Shared memory of this package that no living writer has locked."""
    names = []
    for path in SHARED.glob("vla_accel_ros.*"):
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            names.append(path.name)
    return names
