"""Ends a program by a signal, once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """The first of SIGINT, SIGTERM and SIGHUP raises KeyboardInterrupt(number); further ones do nothing,
    so that cleaning up is not disturbed."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, lambda *_: None)
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, on_signal) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
