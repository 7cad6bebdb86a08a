"""A process of the fork server finds what one finds that is started from nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fork_server import Forked, ForkServer
from running import ROOT, node_environment

TELL = """\
import atexit, json, os, signal, sys, threading

if __name__ == "__main__":
    atexit.register(print, "the end")
    print(json.dumps({
        "arguments": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "ignored": [n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_IGN],
        "default": [n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_DFL],
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "rclpy": "rclpy" in sys.modules,
    }))
"""


class Start:
    """start(what, *arguments): by the fork server if `forks`, with its log in `log`."""

    def __init__(self, server: ForkServer, folder: Path, forks: bool) -> None:
        self.server, self.folder, self.forks = server, folder, forks
        self.log = folder / f"{forks}.log"
        self.environment = {**node_environment(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}

    def __call__(self, what: str, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        words = list(arguments)
        with self.log.open("ab") as log:
            if self.forks:
                return self.server.start(what, words, self.log, self.folder, self.environment)
            module = [] if what.endswith(".py") else ["-m"]
            command = [sys.executable, *module, what, *words]
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def told(self) -> dict[str, Any]:
        return json.loads(self.log.read_text().splitlines()[0])


@pytest.fixture
def ways(fork_server: ForkServer, tmp_path: Path) -> tuple[Start, Start]:
    """Of starting: from nothing, and by the fork server."""
    (tmp_path / "tell.py").write_text(TELL)
    return Start(fork_server, tmp_path, False), Start(fork_server, tmp_path, True)


@pytest.mark.parametrize("module", [True, False])
def test_it_finds_what_a_process_from_nothing_finds(ways: tuple[Start, Start], module: bool) -> None:
    for start in ways:
        program = "tell" if module else str(start.folder / "tell.py")
        assert start(program, "--ros-args").wait(90.0) == 0
        assert start.log.read_text().endswith("the end\n")
    plain, forked = (start.told() for start in ways)
    assert plain["environment"].pop("VLA_LAUNCHER") == forked["environment"].pop("VLA_LAUNCHER")
    if module:  # the name of the module, or the file that it was found in
        assert Path(plain["arguments"].pop(0)).stem == Path(forked["arguments"].pop(0)).stem
    assert forked == plain
    assert forked["threads"] == 1 and not forked["rclpy"]


def test_when_the_server_has_ended_a_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1')")
    server = ForkServer({**node_environment(tmp_path), "PYTHONPATH": str(tmp_path)})
    with pytest.raises(RuntimeError, match="status 1"):
        server.start("tell", [], tmp_path / "log", tmp_path, {})
    server.close()
