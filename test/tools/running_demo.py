"""A demo that runs as a user runs it: `vla demo` or `vla fleet-demo`, watched from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """A `vla demo --headless`, or another of its subcommands, that is running; a context manager that lets
    nothing survive the test."""

    def __init__(self, folder: Path, domain: int, *arguments: str, subcommand: str = "demo") -> None:
        self.out, self.domain = folder / "out", domain
        self.lines: list[str] = []
        # Children inherit it, so that they can be told from every other process.
        self._mark = f"VLA_DEMO_TEST={uuid.uuid4()}"
        command = [sys.executable, "-m", "vla_accel_ros.tools.cli", subcommand, "--headless"]
        command += ["--domain", str(domain), "--out", str(self.out), *arguments]
        name, value = self._mark.split("=")
        self._errors = folder / "stderr"
        self._before: list[str] = []
        self._before = self.shared_memory()
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, name: value, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.stdout.close()

    @property
    def stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def read_until(self, text: str) -> None:
        """Read lines until one has `text`."""
        for line in self.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return
        raise AssertionError(f"it ended without {text!r}:\n" + "\n".join(self.lines) + self.errors)

    def end(self) -> int:
        """Read the rest; its exit status."""
        self.lines += self.stdout.read().splitlines()
        return self.process.wait(60)

    def alive(self, with_word: str = "") -> list[int]:
        """Processes of this demo, itself included."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if self._mark.encode() in environment.split(b"\0") and with_word.encode() in words:
                found.append(int(process.name))
        return found

    def shared_memory(self) -> list[str]:
        """Fast DDS' port files of the demo's domain (250 ports from 7400 + 250 x domain on) that it made."""
        first = 7400 + 250 * self.domain
        ports = {str(port) for port in range(first, first + 250)}
        names = (path.name for path in Path("/dev/shm").glob("*fast*_port*"))
        return [
            name for name in names if "".join(filter(str.isdigit, name)) in ports and name not in self._before
        ]
