"""The messages between robots and the scheduler, on a network that doubles, delays, reorders and loses them.

The robots' own topics are renamed to `local/...`; the network publishes under the original names. So a robot
can vanish from the graph at once, like a robot that loses its radio.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.publisher import Publisher

from vla_accel_msgs.msg import FleetAdmission, FleetAnswer, FleetCall, FleetRequest, FleetRobot
from vla_accel_ros.nodes import qos

LOCAL = "local"
TOLD = {"robot": (FleetRobot, qos.LATCHED), "request": (FleetRequest, qos.REPORT)}
HEARD = {
    "admission": (FleetAdmission, qos.LATCHED),
    "answer": (FleetAnswer, qos.REPORT),
    "call": (FleetCall, qos.REPORT),
}
STEP_S = 0.005


@dataclass(frozen=True)
class Weather:
    """Shares of the messages that are late (by up to late_s more), doubled (again within late_s) and lost.
    Every message takes up to delay_s, so late ones are overtaken."""

    late: float = 0.05
    doubled: float = 0.1
    lost: float = 0.01
    delay_s: float = 0.03
    late_s: float = 2.0


USUAL = Weather()


class Network:
    """The network of some robots, by namespace. Use it from the node's thread unless a method says otherwise.
    counts: messages by outcome; requests, answers: time of the last one that passed, by robot (steady
    seconds); begun: when each robot said who it is and when each was told whether it is served (steady ns),
    by robot and topic."""

    def __init__(self, node: Node, robots: Iterable[str], seed: int, weather: Weather = USUAL) -> None:
        self._node, self._weather, self._random = node, weather, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.requests: dict[str, float] = {}
        self.answers: dict[str, float] = {}
        self.begun: dict[tuple[str, str], list[int]] = {}
        self.wanted = set(robots)  # any thread may change who is to be connected
        self._links: dict[str, list[Any]] = {}
        self._out: dict[tuple[str, str], Publisher] = {}
        self._flying: list[tuple[float, int, tuple[str, str], bytes]] = []
        for robot in robots:
            for name, (kind, profile) in TOLD.items():
                self._hear(f"{robot}/{LOCAL}/{name}", (robot, name), kind, profile)
            for name, (kind, profile) in HEARD.items():
                topic = f"{robot}/{LOCAL}/{name}"
                self._out[robot, name] = node.create_publisher(kind, topic, profile)
        node.create_timer(STEP_S, self._step, clock=Clock(clock_type=ClockType.STEADY_TIME))

    @staticmethod
    def renamed() -> dict[str, str]:
        """The remappings with which a robot's node is started."""
        return {f"fleet/{name}": f"{LOCAL}/{name}" for name in (*TOLD, *HEARD)}

    def in_flight(self, robot: str) -> bool:
        """Whether the robot waits for an answer. Call it from any thread."""
        return self.requests.get(robot, 0.0) > self.answers.get(robot, 0.0)

    def _hear(self, topic: str, link: tuple[str, str], kind: type, profile: object) -> Any:
        return self._node.create_subscription(kind, topic, partial(self._take, link), profile, raw=True)

    def _take(self, link: tuple[str, str], data: bytes) -> None:
        robot, name = link
        if name == "request":
            self.requests[robot] = time.monotonic()
        if name in ("robot", "admission"):
            self.begun.setdefault(link, []).append(time.monotonic_ns())
        draw, weather = self._random.random, self._weather
        self.counts["messages"] += 1
        if draw() < weather.lost:
            self.counts["lost"] += 1
            return
        is_late = draw() < weather.late
        self.counts["late"] += is_late
        self._send(link, data, draw() * (weather.late_s if is_late else weather.delay_s))
        if draw() < weather.doubled:
            self.counts["doubled"] += 1
            self._send(link, data, draw() * weather.late_s)

    def _send(self, link: tuple[str, str], data: bytes, delay_s: float) -> None:
        heapq.heappush(self._flying, (time.monotonic() + delay_s, self.counts["sent"], link, data))
        self.counts["sent"] += 1

    def _step(self) -> None:
        for robot in self.wanted - self._links.keys():
            self._connect(robot)
        for robot in self._links.keys() - self.wanted:
            for end in self._links.pop(robot):
                destroy = self._node.destroy_publisher if isinstance(end, Publisher) else None
                (destroy or self._node.destroy_subscription)(end)
            for name in TOLD:
                self._out.pop((robot, name))
        while self._flying and self._flying[0][0] <= time.monotonic():
            _, number, link, data = heapq.heappop(self._flying)
            if link not in self._out:
                continue
            self.counts["overtaken"] += any(n < number and to == link for _, n, to, _ in self._flying)
            if link[1] == "answer":
                self.answers[link[0]] = time.monotonic()
            self._out[link].publish(data)

    def _connect(self, robot: str) -> None:
        ends = self._links[robot] = []
        for name, (kind, profile) in TOLD.items():
            self._out[robot, name] = self._node.create_publisher(kind, f"{robot}/fleet/{name}", profile)
            ends.append(self._out[robot, name])
        for name, (kind, profile) in HEARD.items():
            ends.append(self._hear(f"{robot}/fleet/{name}", (robot, name), kind, profile))
