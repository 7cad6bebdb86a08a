"""CPU time of processes by purpose of their threads.

The first thread of a node spins it: the executor. Fast DDS names the threads of the middleware. The others
are the engine's lanes and loops, and threads of Python or CUDA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

PURPOSES = EXECUTOR, MIDDLEWARE, OTHERS = ("executor", "middleware", "others")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Shares:
    """From when it is made. pids: of processes, by name."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids, self._began_s = pids, time.monotonic()
        self._before = {name: used_s(pid) for name, pid in pids.items()}

    def so_far(self) -> dict[str, dict[str, float]]:
        """Shares of a core, by process and purpose."""
        passed_s = time.monotonic() - self._began_s
        return {
            name: {
                purpose: round((used - self._before[name][purpose]) / passed_s, 3)
                for purpose, used in used_s(pid).items()
            }
            for name, pid in self._pids.items()
        }


def used_s(pid: int) -> dict[str, float]:
    """By a process that runs, in seconds, by purpose. Threads that have ended are left out."""
    times_s = dict.fromkeys(PURPOSES, 0.0)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, tail = (task / "stat").read_text().rpartition(")")
        except OSError:
            continue  # ended since
        fields = tail.split()
        purpose = _purpose(int(task.name) == pid, head.partition("(")[2])
        times_s[purpose] += _TICK_S * (int(fields[11]) + int(fields[12]))
    return times_s


def _purpose(first: bool, name: str) -> str:
    return EXECUTOR if first else MIDDLEWARE if name.startswith("dds.") else OTHERS
