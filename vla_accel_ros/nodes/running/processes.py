"""Our nodes among the processes of this machine, read from /proc.

A process that is in the graph and does not answer is starting, works, or hangs; only its machine knows which.
One is starting while it is young, or while it reads or writes much: weights come from a disk or a network.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vla_accel_ros.nodes.params.tables import NODES

YOUNG_S = 120.0
_READING = 1 << 20
"""Bytes between two looks that are more than a log."""


@dataclass(frozen=True)
class Process:
    """A running node of ours: its process and start environment.

    namespace: with slashes at both ends. stopped: by a signal. cpu_s: processor time used. age_s: since its
    start. io_bytes: read and written. preempted: how often others took its processor.
    """

    pid: int
    node: str
    environment: Mapping[str, str]
    namespace: str = "/"
    stopped: bool = False
    cpu_s: float = 0.0
    age_s: float = field(default=float("inf"), compare=False)
    io_bytes: int = 0
    preempted: int = 0

    def is_starting(self, before: Process | None) -> bool:
        """Whether it is young, or has read or written much since an earlier look."""
        busy = before is not None and self.io_bytes - before.io_bytes > _READING
        return not self.stopped and (self.age_s < YOUNG_S or busy)


def processes(proc: Path = Path("/proc")) -> list[Process]:
    """Our nodes that run here as this user."""
    running = []
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            node = _node(words)
            if node:
                entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
                running.append(
                    Process(
                        int(folder.name),
                        node,
                        environment,
                        _namespace(words),
                        *_stat((folder / "stat").read_text()),
                        io_bytes=sum(_numbers(folder / "io", "rchar", "wchar", "read_bytes")),
                        preempted=sum(_numbers(folder / "status", "nonvoluntary_ctxt_switches")),
                    )
                )
        except OSError:
            continue  # it has ended, or belongs to another user
    return running


def of_node(name: str, running: Sequence[Process]) -> list[Process]:
    """Those that could be the node of this full name in this process's ROS domain."""
    namespace, _, node = name.rpartition("/")
    identity = (node, f"{namespace}/", domain(os.environ))
    return [p for p in running if (p.node, p.namespace, domain(p.environment)) == identity]


def domain(environment: Mapping[str, str]) -> str:
    """The ROS domain of a process with this environment."""
    return environment.get("ROS_DOMAIN_ID") or "0"


def _node(words: Sequence[str]) -> str:
    """Which of our nodes a command line starts, by executable or module; empty for none."""
    for word in words[:4]:
        module = re.fullmatch(r"vla_accel_ros\.nodes\.(\w+)", word)
        name = module[1] if module else Path(word).name if "vla_accel_ros" in Path(word).parts else ""
        name = "inference" if name.endswith("_inference") else name
        if name in NODES:
            return name
    return ""


def _namespace(words: Sequence[str]) -> str:
    namespaces = [word.partition(":=")[2] for word in words if re.match(r"(.*:)?__ns:=", word)]
    inside = namespaces[0].strip("/") if namespaces else ""
    return f"/{inside}/" if inside else "/"


def _stat(text: str) -> tuple[bool, float, float]:
    """Whether a process is stopped, its processor time and its age, from its /proc/PID/stat."""
    fields, tick = text.rpartition(")")[2].split(), os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / tick
    return fields[0] in "Tt", (int(fields[11]) + int(fields[12])) / tick, age_s


def _numbers(path: Path, *names: str) -> list[int]:
    """Numbers by name from a file of /proc; none where it cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    pairs = (line.split(":") for line in lines if ":" in line)
    return [int(text) for name, text in pairs if name.strip() in names]
