"""Starts nodes by fork, from a process that has imported torch once: a start costs a tenth of a second of one
core then, and not two.

As a program it serves one test process, on the socket that is its standard input, until that closes. It
never has a second thread and never imports rclpy, so that what it forks is what a fresh interpreter would be:
such a child takes the environment, folder and log it was told, runs the node's module as `python -m` does,
and ends as an interpreter does; /proc shows its own arguments and environment. Its parent is this program,
which reports how it ended.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRELOADED = (
    *("cv2", "torch", "triton.knobs", "yaml"),
    *(f"{package}.msg" for package in ("action_msgs", "geometry_msgs", "lifecycle_msgs", "rcl_interfaces")),
    *("lifecycle_msgs.srv", "rcl_interfaces.srv", "std_srvs.srv"),
    *("vla_accel_ros.engine.engine", "vla_accel_ros.models.checkpoints.checkpoint"),
    *("vla_accel_ros.sensing.ingest", "vla_accel_ros.control.force.taking_over", "vla_accel_ros.sim.tasks"),
    *("vla_accel_ros.fleet.serving.scheduler", "vla_accel_ros.planning.verdict"),
    *(f"vla_accel_ros.nodes.fleet.{module}" for module in ("engines", "sessions")),
    *("vla_accel_ros.nodes.recorder.topics", "vla_accel_ros.recording.mcap_writer"),
    "vla_accel_ros.nodes.params.fleet_scheduler",
)
"""What nodes import, as far as it starts no thread and imports no rclpy (which does start some)."""

LOOK_S = 0.1
ROOM = 8192
"""Bytes by which the arguments and the environment of a child may be longer than those of the program."""


class Forked:
    """A process of a fork server, with what subprocess.Popen has of it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    @property
    def returncode(self) -> int | None:
        return self._server.ended.get(self.pid)

    def poll(self) -> int | None:
        """Its status, -N for signal N; None while it runs."""
        self._server.receive(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left_s = LOOK_S if deadline is None else deadline - time.monotonic()
            if left_s < 0.0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._server.receive(min(left_s, LOOK_S))  # another thread may be told of it
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The program, and how the processes ended that it forked. Safe to use from several threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, program_end = socket.socketpair()
        with program_end:
            command, room = [sys.executable, __file__, "." * ROOM], {"FORK_SERVER_ROOM": "." * ROOM}
            self._program = subprocess.Popen(command, stdin=program_end.fileno(), env={**environment, **room})
        self._socket, self._unread = ours, b""
        self._started: list[int] = []
        self._starting, self._reading = threading.Lock(), threading.Lock()
        self.ended: dict[int, int] = {}

    def start(
        self, run: str, arguments: list[str], log: Path, folder: Path, environment: Mapping[str, str]
    ) -> Forked:
        """Run a module (`a.b.c`) or a file (`/a/b.py`); what it prints goes to the end of the log."""
        request = {"run": run, "arguments": arguments, "log": str(log), "folder": str(folder)}
        with self._starting:
            self._socket.sendall(json.dumps({**request, "environment": dict(environment)}).encode() + b"\n")
            while not self._started:
                self.receive(LOOK_S)
            return Forked(self, self._started.pop())

    def receive(self, timeout_s: float) -> None:
        """Take in what the program has said, after waiting for it that long."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return
        with self._reading:
            if select.select([self._socket], [], [], 0.0)[0]:  # else another thread has read it
                self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise RuntimeError(f"the fork server ended with status {self._program.wait()}")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            pid, status = json.loads(line)
            if status is None:
                self._started.append(pid)
            else:
                self.ended[pid] = status

    def close(self) -> None:
        """End the program; what it forked goes on."""
        self._socket.close()
        self._program.wait()


def serve() -> dict[str, Any] | None:
    """Fork for every request. Returns what to be, in the child; None when the socket was closed."""
    client = socket.socket(fileno=os.dup(0))
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    unread = b""
    while True:
        ready, _, _ = select.select([client.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 10)
            for pid, status in _reaped():
                client.sendall(json.dumps([pid, status]).encode() + b"\n")
        if client.fileno() not in ready:
            continue
        data = client.recv(1 << 16)
        if not data:
            return None
        *requests, unread = (unread + data).split(b"\n")
        for request in requests:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for descriptor in (client.detach(), woken, wake):
                    os.close(descriptor)
                return json.loads(request)
            client.sendall(json.dumps([pid, None]).encode() + b"\n")


def _reaped() -> list[tuple[int, int]]:
    """Ids and statuses of the children that have ended."""
    statuses: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid == 0:
            return statuses
        statuses.append((pid, os.waitstatus_to_exitcode(status)))


def show(arguments: list[str], environment: Mapping[str, str]) -> None:
    """Have /proc tell these of this process. Raises ValueError where there is no room for them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_at, arguments_end, environment_at, environment_end = map(int, fields[45:49])
    entries = [f"{name}={value}" for name, value in environment.items()]
    shown = ((arguments_at, arguments_end, arguments), (environment_at, environment_end, entries))
    for begin, end, words in shown:
        shown_bytes = b"".join(word.encode() + b"\0" for word in words)
        if len(shown_bytes) > end - begin:
            raise ValueError(
                f"{len(shown_bytes)} bytes of arguments or environment, there is room for {end - begin}"
            )
        ctypes.memmove(begin, shown_bytes.ljust(end - begin, b"\0"), end - begin)


def become(asked: dict[str, Any], paths: list[str]) -> None:
    """Run what was asked for as a fresh interpreter would. paths: sys.path less what an environment adds."""
    with open(asked["log"], "ab") as log, open(os.devnull) as nothing:
        for number, file in ((0, nothing), (1, log), (2, log)):
            os.dup2(file.fileno(), number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = asked["run"]
    folder = str(Path(run).parent) if run.endswith(".py") else asked["folder"]
    sys.path[:] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    sys.argv[:] = [run, *asked["arguments"]]
    how = [] if run.endswith(".py") else ["-m"]
    show([sys.executable, *how, *sys.argv], asked["environment"])
    # What was preloaded stays exempt: to look through it takes each node a third of a second in all.
    gc.freeze = gc.unfreeze = lambda: None
    status = 0
    try:
        if run.endswith(".py"):
            runpy.run_path(run, run_name="__main__")
        else:
            runpy.run_module(run, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        status = end.code or 0
    leave(status)


def leave(status: int) -> None:
    """End as an interpreter does, but without taking apart what was preloaded: that copies memory which is
    shared with the program, half a second for every node that ends."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    gc.collect()  # what holds the middleware goes, and with it what it has in shared memory
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    for name in PRELOADED:
        __import__(name)
    if len(os.listdir("/proc/self/task")) > 1 or "rclpy" in sys.modules:
        raise RuntimeError("what was preloaded has started a thread or has imported rclpy")
    added = {str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    paths = [path for path in sys.path if path not in added]
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch would take back each of its operators
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who are forked
    gc.collect()
    gc.freeze()
    request = serve()
    if request is not None:
        become(request, paths)


if __name__ == "__main__":
    main()
