"""Subscribes to a robot's topics for somebody who looks, and takes what is there when asked.

Queues are short and nothing is reliable but what is latched, so a slow viewer loses messages and holds nobody
up. Nothing runs between two polls: ten a second cost the same whatever the rates of the topics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock

from vla_accel_msgs.msg import Session as SessionMessage
from vla_accel_ros.engine.session import Session
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.processes import domain

WAIT_S = 0.05


class Viewer(ClientNode):
    """In the graph of this process's environment, in a robot's namespace. A context manager.

    session: the newest of the robot's inference node, None before any.
    """

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        self.session: Session | None = None
        self._clock_ns = 0
        self._opened: list[tuple[Any, Callable[[Any, int], object]]] = []
        self._own = [
            (self._node.create_subscription(Clock, "/clock", print, qos.SENSOR), self._on_clock),
            (self._node.create_subscription(SessionMessage, "session", print, qos.LATCHED), self._on_session),
        ]

    @property
    def namespace(self) -> str:
        """The robot's, "" for none."""
        return self._node.get_namespace().rstrip("/")

    @property
    def now_ns(self) -> int:
        """The time of /clock if there is one, else of this machine."""
        return self._clock_ns or time.time_ns()

    def await_session(self, timeout_s: float) -> Session:
        """The robot's session. Raises TimeoutError, in one sentence with the namespaces of those that there
        are."""
        end_s = time.monotonic() + timeout_s
        while self.session is None or (self._node.count_publishers("/clock") and not self._clock_ns):
            if time.monotonic() > end_s:
                raise TimeoutError(self._nobody(timeout_s))
            time.sleep(WAIT_S)
            self.poll()
        return self.session

    def subscribe(
        self,
        topic: str,
        kind: str,
        take: Callable[[Any, int], object],
        depth: int = 1,
        latched: bool = False,
        raw: bool = False,
    ) -> None:
        """Let `poll` call `take` with a message of this type, its bytes if raw, and the time of the poll."""
        profile = (
            qos.LATCHED if latched else QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)
        )
        subscription = self._node.create_subscription(
            interface(kind, f"looking at {topic}"), topic, print, profile, raw=raw
        )
        self._opened.append((subscription, take))

    def unsubscribe(self) -> None:
        """End what `subscribe` began."""
        while self._opened:
            self._node.destroy_subscription(self._opened.pop()[0])

    def poll(self) -> None:
        """Take every message that has arrived."""
        for subscription, take in (*self._own, *self._opened):
            with subscription.handle:
                while (
                    answer := subscription.handle.take_message(subscription.msg_type, subscription.raw)
                ) is not None:
                    take(answer[0], self.now_ns)

    def _on_clock(self, message: Clock, _: int) -> None:
        self._clock_ns = convert.stamp_ns(message.clock)

    def _on_session(self, message: SessionMessage, _: int) -> None:
        self.session = Session.from_message(message)

    def _nobody(self, timeout_s: float) -> str:
        kind = "vla_accel_msgs/msg/Session"
        namespaces = sorted(
            name.removesuffix("/session") or "/"
            for name, kinds in self._node.get_topic_names_and_types()
            if kind in kinds and name.endswith("/session") and self._node.count_publishers(name)
        )
        fix = (
            f"give --namespace with one of {', '.join(namespaces)}"
            if namespaces
            else f"start its inference node, or set ROS_DOMAIN_ID to its own, now {domain(os.environ)}"
        )
        if self.session is not None:
            return f"/clock has a publisher but no time within {timeout_s:g} s: start the simulation"
        return f"no robot in namespace {self.namespace or '/'} says its session within {timeout_s:g} s: {fix}"
