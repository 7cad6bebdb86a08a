"""Whether this process can still be sent anything through Fast DDS's shared memory.

Every process receives in a port: a file in /dev/shm with a number, and a lock that says who reads it. When
a process is killed, its ports stay behind, and whoever meets one may delete it and make it again. Two that do
so at the same time (the process that was started again, and one that still sends to the dead one) can end
with a reader whose port is deleted and a sender that writes into another of the same name. Neither notices.
The process looks alive, sees every topic in the graph, and receives nothing of its own machine for as long as
it lives. It is rare, and comes when the machine is busy. What is left is to end and be started again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

LOOK_S = 1.0
_PORT = re.compile(r"/fastdds_port(\d+)( \(deleted\))?$")
_LOCK = re.compile(r"/fastdds_port(\d+)_el( \(deleted\))?$")


def lost_ports(process: Path = Path("/proc/self")) -> frozenset[int]:
    """The ports that a process reads, but which nobody can write to any more. Empty where there is no /proc.

    A sender that has not yet noticed that a port was made again is not meant: it reads nothing there.
    """
    try:
        mapped = {(match[1], bool(match[2])) for match in map(_PORT.search, _maps(process)) if match}
        read = {match[1] for match in map(_LOCK.search, _open_files(process)) if match}
    except OSError:
        return frozenset()
    return frozenset(int(port) for port, deleted in mapped if deleted and port in read - _kept(mapped))


def watch(fail: Callable[[str], object], over: threading.Event) -> None:
    """Look once a second, in a thread of its own, until `over`; say once through `fail` what is lost.

    Fast DDS makes a port again of its own accord when a sender has found it broken: what is lost for one look
    only does not count.
    """
    threading.Thread(target=_watch, args=(fail, over), name="hearing", daemon=True).start()


def _watch(fail: Callable[[str], object], over: threading.Event) -> None:
    before: frozenset[int] = frozenset()
    while not over.wait(LOOK_S):
        lost = lost_ports()
        if both := lost & before:
            ports = ", ".join(map(str, sorted(both)))
            fail(
                f"Fast DDS has lost this process's shared memory (port {ports}: another process was killed "
                "while both used it), so that nothing of this machine arrives"
            )
            return
        before = lost


def _kept(mapped: set[tuple[str, bool]]) -> set[str]:
    return {port for port, deleted in mapped if not deleted}


def _maps(process: Path) -> list[str]:
    return (process / "maps").read_text().splitlines()


def _open_files(process: Path) -> list[str]:
    files = []
    for link in (process / "fd").iterdir():
        try:
            files.append(str(link.readlink()))
        except OSError:
            continue  # closed since
    return files
