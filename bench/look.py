"""What it costs a running robot that somebody looks at it: processor time of its nodes and of `vla look`.

    python bench/look.py [--rounds N] [--seconds S]

`vla demo` drives the simulated arm, two cameras of 224 x 224 at 30 Hz and joint states at 125 Hz. In turn for
`seconds` each, nobody looks, and somebody looks: `vla look` serves a page that is asked for ten moments a
second, as a browser does. Shares are processor seconds per second of one core: of inference, trajectory and
sim_robot together (`nodes`), and of `vla look` from its first moment on. `age_ms` is the median image to
trajectory that the trajectory node reports meanwhile. "load" is how many cores were busy before.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from run import Bench, Given, Row, main
from vla_accel_ros.tools.running.graph import own_graph

if TYPE_CHECKING:
    from vla_accel_ros.nodes.clients.viewer import Viewer

NODES = ("inference", "trajectory", "sim_robot")
HZ = 10.0


def used_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def nodes_of(parent: int) -> list[int]:
    """The robot's nodes among the children of a process."""
    modules = {f"vla_accel_ros.nodes.{name}".encode() for name in NODES}
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and modules & set((process / "cmdline").read_bytes().split(b"\0")):
                pids.append(int(process.name))
    return pids


class Looking:
    """`vla look` with a page that asks for moments; a context manager."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "vla_accel_ros.tools.cli", "look", "--port", "0", "--timeout", "60"]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        address = urllib.parse.urlsplit(self._process.stdout.readline().split()[2])
        self._connection = http.client.HTTPConnection(address.netloc)
        self.ask()
        self.pid = self._process.pid

    def ask(self) -> None:
        """One moment, over one connection, as a browser does."""
        self._connection.request("GET", "/moment")
        self._connection.getresponse().read()

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()


def note(ages: list[float], message: Any) -> None:
    """Keep what the trajectory node reports of the ages of its trajectories."""
    if message.loop == "image_to_trajectory" and message.p50_s > 0:
        ages.append(message.p50_s)


def watched(
    nodes: list[int], viewer: Viewer, ages: list[float], seconds: float, looking: Looking | None
) -> Row:
    """The shares of some seconds."""
    pids = [*nodes, *([looking.pid] if looking else [])]
    viewer.poll()
    ages.clear()
    begin, before = time.monotonic(), [used_s(pid) for pid in pids]
    moments = 0
    while (passed := time.monotonic() - begin) < seconds:
        if looking is not None:
            looking.ask()
            moments += 1
        viewer.poll()
        time.sleep(max(0.0, 1.0 / HZ - (time.monotonic() - begin - passed)))
    shares = [(used_s(pid) - used) / passed for pid, used in zip(pids, before)]
    row = {"nodes": sum(shares[: len(nodes)]), "age_ms": 1e3 * float(np.median(ages)) if ages else None}
    return row if looking is None else {**row, "look": shares[-1], "moments_hz": moments / passed}


def measure(given: Given) -> Iterator[Row]:
    """Rounds of both, of one robot."""
    from vla_accel_ros.nodes.clients.viewer import Viewer

    with own_graph() as environment, tempfile.TemporaryDirectory() as folder:
        demo = [sys.executable, "-m", "vla_accel_ros.tools.cli", "demo", "--headless", "--out", folder]
        demo += ["--domain", environment["ROS_DOMAIN_ID"], "--seconds", "100000"]
        robot = subprocess.Popen(demo, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert robot.stdout is not None
            while not robot.stdout.readline().startswith("episode"):
                if robot.poll() is not None:
                    raise RuntimeError("the demo ended before its first episode: run `vla demo --headless`")
            nodes = nodes_of(robot.pid)
            with Viewer() as viewer:
                ages: list[float] = []
                viewer.subscribe(
                    "loop_stats", "vla_accel_msgs/msg/LoopStats", lambda m, _: note(ages, m), depth=10
                )
                for number in range(given.rounds):
                    alone = watched(nodes, viewer, ages, given.seconds, None)
                    with Looking(environment) as looking:
                        beside = watched(nodes, viewer, ages, given.seconds, looking)
                    yield {"round": number, "alone": rounded(alone), "looked_at": rounded(beside)}
        finally:
            robot.send_signal(signal.SIGINT)
            robot.communicate()


def rounded(row: Row) -> Row:
    """Four digits after the point."""
    return {name: None if value is None else round(value, 4) for name, value in row.items()}


def options(add: Callable[..., Any]) -> None:
    """How long."""
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=20.0)


BENCH = Bench("look", measure, options, rows="rows", smoke="--rounds 1 --seconds 2", starts_nodes=True)

if __name__ == "__main__":
    sys.exit(main(BENCH))
