"""Publishes to each robot the sessions of the engines that make its chunks: fleet/session, latched, per
replica.

A robot republishes it as its own `session`, so that its bag can be replayed. The checksum of gigabytes of
weights takes seconds, and no robot waits for it: a session is first published without the checksum, and again
when a thread has computed it. The checksum is of the scheduler's copy of the checkpoint; actors load from the
same path.
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
from vla_accel_ros.nodes.messages import convert

Tell = Callable[[str, SessionMessage], None]


class Sessions:
    """The sessions of one scheduler process, named `scheduler`. model: the checkpoint's folder. tell: called
    with the robot and the message, in the calling thread. warn: called with a sentence if there is no
    checksum."""

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
        """A replica is ready for a robot: publish its session."""
        settings = {**json.loads(session.settings), REPLICA: f"{self._scheduler}/{replica}"}
        session = replace(session, settings=json.dumps(settings, sort_keys=True), checksum=self._found)
        if self._checksum is not None:
            self._without[robot, replica] = session
        self._tell(robot, convert.session_to_message(session, self._now_ns()))

    def look(self) -> None:
        """Publish the sessions again that had no checksum, once it is known."""
        if self._checksum is None or not self._checksum.done():
            return
        try:
            self._found = self._checksum.result()
        except (OSError, ValueError) as error:
            self._warn(f"bags of this fleet's robots will not identify the model: {error}")
        self._checksum = None
        for (robot, _), session in self._without.items():
            complete = replace(session, checksum=self._found)
            self._tell(robot, convert.session_to_message(complete, self._now_ns()))
        self._without.clear()

    def close(self) -> None:
        """Stop the checksum."""
        self._stop.set()
        self._thread.shutdown()
