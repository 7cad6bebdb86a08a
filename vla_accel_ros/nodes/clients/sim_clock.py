"""Publishes /clock: simulated time, which advances at a chosen share of real time.

The steps always have the same size, so nodes with use_sim_time see the same resolution at any share. A late
step is not made up for: simulated time is then slower.
"""

from __future__ import annotations

import threading
import time

from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock

from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.messages import convert

STEP_NS = 10_000_000
LISTENERS = QoSProfile(depth=10)


class SimClock(ClientNode):
    """In the graph of this process's environment, starting at the present. factor: simulated over real time,
    which may be set at any time. Publishes from `__enter__` on, in its own thread."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.now_ns = time.time_ns()
        self._publisher = self._node.create_publisher(Clock, "/clock", LISTENERS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="clock", daemon=True)

    def __enter__(self) -> SimClock:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        super().__exit__(*error)

    def _tick(self) -> None:
        message = Clock()
        due_s = time.monotonic()
        while not self._over.is_set():
            self.now_ns += STEP_NS
            convert.set_stamp(message.clock, self.now_ns)
            self._publisher.publish(message)
            due_s = max(due_s + STEP_NS * 1e-9 / self.factor, time.monotonic())
            self._over.wait(due_s - time.monotonic())
