"""What robots are told of the engines that make their chunks: fleet/session, latched, one for each replica.

A robot tells it again as its own `session`, so that a bag of it can be replayed. The checksum of gigabytes of
weights takes seconds that no robot waits for: a session is told without it at first, and again when a thread
knows it. It is of the scheduler's copy of the checkpoint, which actors load from the same path.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.engine.session import REPLICA, Session
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.nodes import convert

Tell = Callable[[str, SessionMessage], None]


class Sessions:
    """Of one scheduler's process, which is named `scheduler`. model: the checkpoint's folder. tell: gets the
    robot and the message, in the thread that calls. warn: gets a sentence if there is no checksum."""

    def __init__(
        self,
        scheduler: str,
        model: Path,
        now_ns: Callable[[], int],
        tell: Tell,
        warn: Callable[[str], object],
    ) -> None:
        self._scheduler, self._now_ns, self._tell, self._warn = scheduler, now_ns, tell, warn
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "checksum")
        self._checksum: Future[str] | None = self._thread.submit(checksum, model, self._stop.is_set)
        self._found = ""
        self._without: dict[tuple[str, str], Session] = {}

    def told(self, robot: str, replica: str, session: Session) -> None:
        """A replica is ready for a robot."""
        settings = {**json.loads(session.settings), REPLICA: f"{self._scheduler}/{replica}"}
        session = replace(session, settings=json.dumps(settings, sort_keys=True), checksum=self._found)
        if self._checksum is not None:
            self._without[robot, replica] = session
        self._tell(robot, convert.session_to_message(session, self._now_ns()))

    def look(self) -> None:
        """Tell those again that were told without the checksum, once it is there."""
        if self._checksum is None or not self._checksum.done():
            return
        try:
            self._found = self._checksum.result()
        except (OSError, ValueError) as error:
            self._warn(f"bags of this fleet's robots will not say which model it was: {error}")
        self._checksum = None
        for (robot, _), session in self._without.items():
            complete = replace(session, checksum=self._found)
            self._tell(robot, convert.session_to_message(complete, self._now_ns()))
        self._without.clear()

    def close(self) -> None:
        """Break off what is computed."""
        self._stop.set()
        self._thread.shutdown()
