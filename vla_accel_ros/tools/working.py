"""Tells a person at a terminal that a command works, where it is silent for a second, and on a busy host."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SILENT_S = 1.0


@contextmanager
def working(name: str, silent_s: float = SILENT_S) -> Iterator[None]:
    """While the block runs, write one line to stderr if nothing else was written before `silent_s`. Does
    nothing unless stderr is a terminal. name: of the command."""
    out, errors = sys.stdout, sys.stderr
    if not errors.isatty():
        yield
        return

    def tell() -> None:
        from vla_accel_ros.nodes.running.host import Host

        busy = Host().waiting_percent
        reason = f", on a busy host: tasks waited in {busy:.0f} % of the last 10 s" if busy else ""
        print(f"{name}: working{reason} (Ctrl-C ends it)", file=errors, flush=True)

    timer = threading.Timer(silent_s, tell)
    timer.daemon = True
    streams: tuple[Any, Any] = (_Noticed(out, timer.cancel), _Noticed(errors, timer.cancel))
    sys.stdout, sys.stderr = streams
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sys.stdout, sys.stderr = out, errors


class _Noticed:
    """A stream that calls `notice` when it is written to."""

    def __init__(self, stream: Any, notice: Callable[[], object]) -> None:
        self._stream, self._notice = stream, notice

    def write(self, text: str) -> int:
        self._notice()
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
