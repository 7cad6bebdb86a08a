"""Nodes as processes, the way a user starts them, and the waiting that tests of processes need.

A process is started with the environment that launch files give it; its log is kept in a file and shown in
the error when something does not happen. Processes are ended by their own id, and must end cleanly unless a
test killed them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from fork_server import Forked, ForkServer

from vla_accel_ros.nodes.running.environment import process_environment

LOST = "Fast DDS has lost this process's shared memory"
ROOT = Path(__file__).resolve().parents[2]


def node_environment(folder: Path) -> dict[str, str]:
    """The whole environment of a node of this checkout. folder: where it keeps its state."""
    extra = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    return process_environment({**extra, "XDG_STATE_HOME": str(folder / "state")})


class NodeProcess:
    """One node in its own process. parameters: name -> value, as on a command line. remaps: from -> to.
    program: a file to run instead of the node's module. server: what forks it; None for a process from
    nothing."""

    any_killed = False
    """Whether this process has killed one: its ports may be another's next, which may be lost by that."""

    def __init__(
        self,
        node: str,
        folder: Path,
        namespace: str = "",
        remaps: Mapping[str, str] | None = None,
        program: Path | None = None,
        server: ForkServer | None = None,
        **parameters: object,
    ) -> None:
        self.node, self.namespace, self.parameters = node, namespace, parameters
        self.program, self._remaps, self._server = program, remaps or {}, server
        self.left: set[Path] = set()
        self._log = folder / f"{namespace.strip('/') or 'root'}-{node}.log"
        self._read_from = 0
        self._starting = threading.Lock()
        self.start()

    @property
    def process(self) -> subprocess.Popen[bytes] | Forked:
        """The newest one."""
        return self._newest[0]

    def start(self) -> None:
        """Start it, again after it ended. One that was killed is started again as launch files do it, also
        when it finds that the middleware cannot reach it (nodes/running/shutdown.py).
        """
        arguments = ["--ros-args"]
        if self.namespace:
            arguments += ["-r", f"__ns:=/{self.namespace.strip('/')}"]
        for name, other in self._remaps.items():
            arguments += ["-r", f"{name}:={other}"]
        for name, value in self.parameters.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            # A bare empty value or one that looks like a number would change its type on the way.
            arguments += ["-p", f"{name}:={text}" if not isinstance(value, str) else f"{name}:='{text}'"]
        program = f"vla_accel_ros.nodes.{self.node}" if self.program is None else str(self.program)
        environment = node_environment(self._log.parent)
        command = [sys.executable, *(["-m"] if self.program is None else []), program, *arguments]
        with open(self._log, "ab") as log:
            written = log.tell()
            process: subprocess.Popen[bytes] | Forked
            if self._server is None:
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
            else:
                process = self._server.start(program, arguments, self._log, ROOT, environment)
        self._newest = process, written
        if NodeProcess.any_killed:
            threading.Thread(target=self._start_again, args=self._newest, daemon=True).start()

    def _start_again(self, process: subprocess.Popen[bytes] | Forked, written: int) -> None:
        with suppress(ValueError):  # the fork server was closed
            if self._lost(process.wait(), written):
                with self._starting:  # one of several that wait for this process
                    if process is self.process:
                        self.start()

    def _lost(self, status: int, written: int) -> bool:
        """Whether a process ended because the middleware could not reach it, after one was killed. written:
        the length of the log at its start."""
        return NodeProcess.any_killed and status == 1 and self._says(LOST, written)

    def _says(self, text: str, written: int) -> bool:
        return text.encode() in self._log.read_bytes()[written:]

    @property
    def log(self) -> str:
        """Everything it has written, since `forget_log` if that was called."""
        return self._log.read_bytes()[self._read_from :].decode(errors="replace")

    def forget_log(self) -> None:
        """Of a test before."""
        self._read_from = self._log.stat().st_size

    @property
    def kept(self) -> str:
        """What it and others with its folder keep over a crash: their state files."""
        return "".join(path.read_text() for path in (self._log.parent / "state").rglob("*.json"))

    def wait_for_log(self, text: str, timeout_s: float = 90.0) -> str:
        """Wait until the log holds `text`; returns the log."""
        until(lambda: text in self.log, timeout_s, f"{text!r} in the log of {self.node}", lambda: self.log)
        return self.log

    def kill(self) -> None:
        """kill -9. What it leaves in shared memory is deleted by `sweep`."""
        self.left |= shared_memory(self.process.pid)
        NodeProcess.any_killed = True
        self.process.kill()
        self.process.wait()

    def lose_ports(self, timeout_s: float = 90.0) -> None:
        """Delete what it receives in through shared memory, as who takes it for dead, and wait for its
        end with status 1. It is started again then.
        """
        NodeProcess.any_killed = True
        process, written = self._newest
        threading.Thread(target=self._start_again, args=(process, written), daemon=True).start()
        links = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        for lock in (link for link in links if link.match("/dev/shm/fast*_port*_el")):
            name = lock.name.removesuffix("_el")
            for part in (name, lock.name, f"sem.{name}_mutex"):
                lock.with_name(part).unlink(missing_ok=True)
        assert process.wait(timeout_s) == 1
        until(partial(self._started_after, process), timeout_s, "new process", lambda: self.log)

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 45.0, asked: bool = False) -> int:
        """Ask it to end with a signal; returns its exit status. Killed, and an error, when it does not.

        asked: it was sent one before.
        """
        while True:
            process, written = self._newest
            if process.poll() is None and not asked:
                process.send_signal(number)
            asked = False
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise TimeoutError(
                    f"{self.node} did not end within {timeout_s} s of a signal:\n{self.log}"
                ) from None
            if not self._lost(status, written):
                return status
            until(partial(self._started_after, process), 90.0, "node after it was lost", lambda: self.log)

    def _started_after(self, process: subprocess.Popen[bytes] | Forked) -> bool:
        """Whether another process than this one is the newest, and has said something."""
        newest, written = self._newest
        return newest is not process and self._says(f"{self.node}]:", written)

    def cpu_s(self) -> float:
        """Processor time it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sweep(left: set[Path]) -> None:
    """Delete the Fast DDS shared memory that killed processes left and nobody has mapped."""
    if not left:
        return
    used = set().union(*(shared_memory(int(p.name)) for p in Path("/proc").glob("[0-9]*")))
    for path in left - used:
        for name in (path.name, f"{path.name}_el", f"sem.{path.name}_mutex"):
            path.with_name(name).unlink(missing_ok=True)


def shared_memory(pid: int) -> set[Path]:
    """Files of Fast DDS that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if re.search("/dev/shm/fast(dds|rtps)_", line)}


def until(
    condition: Callable[[], object], timeout_s: float, what: str, detail: Callable[[], str] = lambda: ""
) -> None:
    """Return when the condition holds; raise TimeoutError with the detail when it does not in time.

    For what sends no message to wait on, such as a log file; with messages, Operator.wait.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {timeout_s:g} s\n{detail()}")
        time.sleep(0.02)
