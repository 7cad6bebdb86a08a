"""A lane: where one micro-batch runs at a time.

Whoever waits for a request may step a lane that nobody steps, so a script needs no thread. A running stack
gives each lane a thread of its own (`Lane.run`). On a CPU there is one lane.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT_S = 1.0


class Lane:
    """name: as policies know it. lock: held by who steps the lane."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether a thread of its own steps it."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: Callable[[], object], wait: Callable[[Callable[[], bool]], None]) -> None:
        """Step in a thread: `step` says whether it ran anything, `wait` returns when something may be new, or
        when what it is given says so."""
        if self.running:
            raise RuntimeError(f"lane '{self.name}' runs already; stop it first.")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(step, wait), name=self.name, daemon=True)
        self._thread.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """End the thread after its present micro-batch, and wait for it."""
        self._stopping.set()
        wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self, step: Callable[[], object], wait: Callable[[Callable[[], bool]], None]) -> None:
        while not self._stopping.is_set():
            try:
                ran = bool(step())
            except Exception:  # a request's own error is in the request; this is a defect, and must be seen
                _LOG.exception("lane '%s': a step failed; it goes on", self.name)
                ran = False
            if not ran:
                wait(self._stopping.is_set)


def sleep_s(wake_s: float, now_s: float | None = None) -> float:
    """How long to wait until wake_s, of time.monotonic: not for ever, and not less than nothing."""
    left_s = wake_s - (time.monotonic() if now_s is None else now_s)
    return _LONGEST_WAIT_S if math.isinf(left_s) else min(max(left_s, 0.0), _LONGEST_WAIT_S)
