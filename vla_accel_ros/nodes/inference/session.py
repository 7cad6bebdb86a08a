"""The latched topic `session`: what chunks are computed with, for whoever records them.

The checksum of gigabytes of weights takes seconds that the robot need not wait for: a thread of its own
computes it, and the session is told when it is there, whatever the lifecycle state.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.engine.session import Session
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.nodes import convert, qos
from vla_accel_ros.nodes.lifecycle import ManagedNode


class SessionTopic:
    """Tells the session of a node's engine, once its checkpoint's checksum is known, until the node's
    release."""

    def __init__(self, node: ManagedNode, session: Session) -> None:
        self.session = session
        self._node, self._stop = node, threading.Event()
        self._made_ns = node.now_ns()
        self._publisher = node.create_publisher(SessionMessage, "session", qos.LATCHED)
        self._thread = threading.Thread(target=self._tell, name="session", daemon=True)
        self._thread.start()
        node.on_release(self._close)

    def _tell(self) -> None:
        try:
            found = checksum(self.session.model, self._stop.is_set)
        except (OSError, ValueError) as error:
            self._node.get_logger().warning(f"a bag of this run will not say which model it was: {error}")
            found = ""
        if not self._stop.is_set():
            self.session = replace(self.session, checksum=found)
            self._publisher.publish(convert.session_to_message(self.session, self._made_ns))

    def _close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._node.destroy_publisher(self._publisher)
