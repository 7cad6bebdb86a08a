"""Runs a command as on a slower machine: every process of it gets at most 1/N of one core.

    python bench/slowly.py N COMMAND...        e.g. python bench/slowly.py 3 vla demo --headless --episodes 12

Each process that the command starts gets its own cgroup (version 1 or 2, needs root) with a CPU quota of 1/N
of every 10 ms: short enough that a callback takes N times as long, instead of being late now and then. A
process with several busy threads is slowed more than on a machine whose every core is N times slower, never
less. At the end it prints the CPU time of each process and how long its quota made it wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

PERIOD_US = 10_000
LOOK_S = 0.02


class Quota:
    """A cgroup for each process; raises OSError if they cannot be made."""

    def __init__(self, share: float) -> None:
        first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
        self._old = (first / "cpu.cfs_quota_us").exists()
        self._root = (first if self._old else second) / f"slowly-{os.getpid()}"
        self._root.mkdir()
        if not self._old:
            (second / "cgroup.subtree_control").write_text("+cpu")
            (self._root / "cgroup.subtree_control").write_text("+cpu")
        self._quota_us = round(PERIOD_US * share)
        self._folders: dict[int, tuple[Path, str]] = {}

    def take(self, pid: int) -> None:
        """Slow this process, unless it is slowed already."""
        if pid in self._folders:
            return
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
        except OSError:
            return
        folder = self._root / str(pid)
        folder.mkdir()
        self._folders[pid] = folder, command
        if self._old:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(self._quota_us))
        else:
            (folder / "cpu.max").write_text(f"{self._quota_us} {PERIOD_US}")
        with suppress(OSError):  # it has ended
            (folder / "cgroup.procs").write_text(str(pid))

    def end(self) -> None:
        """Print the effect of the quotas, and delete the cgroups, which are empty now."""
        for folder, command in self._folders.values():
            stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            waited_s = int(stat.get("throttled_time", 0)) * 1e-9 + int(stat.get("throttled_usec", 0)) * 1e-6
            print(f"waited {waited_s:.1f} s in {stat['nr_throttled']} periods: {command}", file=sys.stderr)
            folder.rmdir()
        self._root.rmdir()


def descendants(pid: int) -> list[int]:
    """This process and all that it has started, from /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def main() -> int:
    """Run, and return the command's status."""
    times, *command = sys.argv[1:] or ["0"]
    if not command or not float(times) > 1.0:
        print(__doc__, file=sys.stderr)
        return 2
    quota = Quota(1.0 / float(times))
    with subprocess.Popen(command) as process:
        ended = threading.Event()

        def slow() -> None:
            while not ended.wait(LOOK_S):
                for pid in descendants(process.pid):
                    quota.take(pid)

        thread = threading.Thread(target=slow)
        thread.start()
        try:
            status = process.wait()
        finally:
            ended.set()
            thread.join()
    quota.end()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
