"""Runs nodes as processes: starts them as launch files do, and leaves nothing behind.

Each process has its own session, so Ctrl-C in the terminal reaches only the program, which then ends the
nodes; if the program itself is killed, they end with it. The shared-memory files of a killed node outlive it.
The files that our processes mapped are therefore remembered and, unless another process has mapped them,
deleted at the end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from vla_accel_ros.nodes.running.environment import share_path

END_S = 5.0
LOG_LINES = 12


def resident_mb(pid: int) -> float:
    """The resident memory of a process [MB]; 0 if there is none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") * 1e-6


class NodeProcess:
    """One node. arguments: what follows --ros-args. log: file for the output of all its starts. module:
    the module of vla_accel_ros.nodes to run, None for the one called `name`. program: a command to run
    instead."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        log: Path,
        module: str | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self.name, self.log, self.starts = name, log, 0
        program = program or (sys.executable, "-m", f"vla_accel_ros.nodes.{module or name}")
        self._command = [*program, "--ros-args", *arguments]
        self._environment = {**environment, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        log.write_text("")

    def start(self) -> None:
        """Start the node, also after it has ended."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1
        self.mark()

    @property
    def pid(self) -> int:
        """The process id of the newest start."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the node was started and runs."""
        return bool(self.starts) and self.status is None

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self.process.poll()

    def how_it_ended(self) -> str:
        """ "ended with status 2" or "was ended by SIGKILL"."""
        status = self.status
        if status is not None and status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def last_words(self) -> str:
        """Return the last LOG_LINES lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def mark(self) -> None:
        """Count processor time from now on; start does so too."""
        self._marked = (time.monotonic(), self._cpu_s())

    def cpu_share(self) -> float:
        """Return the processor time since the mark, as a share of one core."""
        since, used_s = self._marked
        return (self._cpu_s() - used_s) / max(time.monotonic() - since, 1e-3)

    def memory_mb(self) -> float:
        """Return the resident memory; 0 if it does not run."""
        return resident_mb(self.process.pid)

    def _cpu_s(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, patience_s: float = END_S) -> int:
        """Send SIGTERM, kill after `patience_s`, and return the exit status; 0 if it was never started."""
        if not self.starts:
            return 0
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Kill the process and its group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class NodeProcesses:
    """All node processes; `end` and `sweep` leave no process and no shared memory."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        self.nodes = nodes
        self._shared: set[Path] = set()

    def __getitem__(self, name: str) -> NodeProcess:
        return next(node for node in self.nodes if node.name == name)

    def start(self) -> None:
        """Start every node."""
        for node in self.nodes:
            node.start()

    def dead(self) -> list[NodeProcess]:
        """Return the nodes that have ended."""
        return [node for node in self.nodes if node.starts and node.status is not None]

    def note_shared_memory(self) -> None:
        """Remember the shared-memory files that the processes have mapped now."""
        for node in self.nodes:
            if node.starts:
                self._shared |= _of_fast_dds(node.process.pid)

    def end(self, patience_s: float = END_S) -> None:
        """Send SIGTERM to all, and kill those that still run after `patience_s`."""
        self.note_shared_memory()
        running = [node for node in self.nodes if node.alive]
        for node in running:
            node.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        for node in running:
            node.end(max(0.0, deadline - time.monotonic()))

    def sweep(self) -> None:
        """Delete the remembered shared-memory files that no process maps; call it when the graph is empty."""
        remaining = {path for path in self._shared if path.exists()}
        if not remaining:
            return
        used: set[Path] = set()
        for process in Path("/proc").glob("[0-9]*"):
            used |= _of_fast_dds(int(process.name))
        for path in remaining - used:
            # Fast DDS has a lock and, for a port, a semaphore beside each segment; neither is mapped.
            for name in (path.name, f"{path.name}_el", f"sem.{path.name}_mutex"):
                path.with_name(name).unlink(missing_ok=True)


def mapped(pid: int) -> set[Path]:
    """Return the files in /dev/shm that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line}


def _of_fast_dds(pid: int) -> set[Path]:
    return {path for path in mapped(pid) if path.name.startswith(("fastdds_", "fastrtps_"))}


def arguments(
    node: str, parameters: dict[str, object], namespace: str = "", file: Path | None = None
) -> list[str]:
    """Return what follows --ros-args for a node of the package: its parameter file, which `file` replaces,
    then the given values."""
    own = {"sim_robot": "config/sim.yaml", "fleet": "config/fleet.yaml"}.get(node, "config/params.yaml")
    arguments = ["--params-file", str(file or share_path(own))]
    if namespace:
        arguments += ["-r", f"__ns:={namespace}"]
    for name, value in parameters.items():
        # Quotes keep a string one, even if it is empty or looks like a number.
        text = str(value).lower() if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"
        arguments += ["-p", f"{name}:={text}"]
    return arguments


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt(number) at the first SIGINT, SIGTERM or SIGHUP; ignore later ones, so that they
    do not disturb cleaning up."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        for ending in ENDING:
            signal.signal(ending, lambda *_: None)
        raise KeyboardInterrupt(number)

    handlers = {number: signal.signal(number, on_signal) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
