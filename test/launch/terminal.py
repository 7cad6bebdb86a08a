"""A command in a terminal of its own: what it prints, and that ctrl-c leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Terminal:
    """A command in a process group of its own, and what it prints."""

    def __init__(self, command: str) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.printed = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    def wait_for(self, pattern: str, timeout_s: float = 150.0) -> str:
        """The first match in what it prints."""
        end = time.monotonic() + timeout_s
        while not (match := re.search(pattern, self.printed)):
            assert time.monotonic() < end and self.process.poll() is None, f"no {pattern}\n{self.printed}"
            time.sleep(0.1)
        return match.group()


@contextmanager
def launched(command: str) -> Iterator[Terminal]:
    """Ended by SIGINT as by ctrl-c, which must leave nothing behind."""
    terminal = Terminal(command)
    try:
        yield terminal
    finally:
        os.killpg(terminal.process.pid, signal.SIGINT)
        try:
            terminal.process.wait(40.0)
        finally:
            started = [
                int(pid) for pid in re.findall(r"process started with pid \[(\d+)\]", terminal.printed)
            ]
            alive = [pid for pid in started if Path(f"/proc/{pid}").exists()]
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
    assert not alive, f"{alive} were left\n{terminal.printed}"
