"""The streams of robots that run on one engine, whose loop has a thread while there are any."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from vla_accel_ros.engine.request import MicroBatch


@dataclass(frozen=True)
class Stream:
    """Callbacks of a running stream. due_s: returns when its next frame is expected, on the clock. on_ran:
    called with each micro-batch and when it began."""

    due_s: Callable[[], float] = lambda: math.inf
    on_ran: Callable[[MicroBatch, float], None] = lambda batch, began_s: None


class Streams:
    """The running streams by robot (`running`). start, stop: called with the first stream, and after the
    last."""

    def __init__(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self.running: dict[str, Stream] = {}
        self._start, self._stop = start, stop
        self._joining, self._ending = threading.Condition(), False

    def join(self, robot: str, stream: Stream) -> None:
        """Begin a robot's stream. Raises ValueError if it runs already."""
        with self._joining:
            self._joining.wait_for(lambda: not self._ending)
            if robot in self.running:
                raise ValueError(f"a stream of robot '{robot}' runs on this engine already; stop it first.")
            self.running[robot] = stream
            if len(self.running) == 1:
                self._start()

    def leave(self, robot: str) -> bool:
        """End a robot's stream. Returns whether it ran."""
        with self._joining:
            if self.running.pop(robot, None) is None:
                return False
            if self.running:
                return True
            self._ending = True
        try:
            self._stop()
        finally:
            with self._joining:
                self._ending = False
                self._joining.notify_all()
        return True

    def due_s(self) -> float:
        """When the next frame of any stream is expected."""
        return min((stream.due_s() for stream in tuple(self.running.values())), default=math.inf)

    def ran(self, batch: MicroBatch, began_s: float) -> None:
        """Report a micro-batch to all streams."""
        for stream in tuple(self.running.values()):
            stream.on_ran(batch, began_s)
