"""Ends a program by a signal, once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

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
