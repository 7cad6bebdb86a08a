"""What a library does to the scheduling of a process, undone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_THREADS = Path("/proc/self/task")


@contextmanager
def as_before() -> Iterator[None]:
    """After the block the caller's thread, and all that begin in it, are scheduled as the caller was before.

    SVT-AV1 makes its threads and its caller real-time tasks of the highest priority where it may, as root in
    a container: above the control loops of a robot beside it, and inherited by every process begun later.
    Does nothing where threads are not listed in /proc.
    """
    if not _THREADS.is_dir():
        yield
        return
    threads, policy, parameters = set(os.listdir(_THREADS)), os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (0, *map(int, set(os.listdir(_THREADS)) - threads)):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, parameters)
