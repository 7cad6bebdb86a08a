"""All robots of recorded tasks in one process: real messages, and the motion of simulated robots.

A robot asks, is called and is answered by the topics of fleet/. fleet.simulator.robot decides when it asks
and what it executes, by this process's monotonic clock. Everything sent and received is written to a bag.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import serialize_message

from vla_accel_msgs.msg import FleetAdmission, FleetAnswer, FleetCall, FleetRequest, FleetRobot
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import ChunkRequest, EncodedObservation, RobotDescription, Round
from vla_accel_ros.fleet.simulator.robot import Robot
from vla_accel_ros.fleet.simulator.simulation import Outcome
from vla_accel_ros.fleet.simulator.traces import Trace
from vla_accel_ros.fleet.task import Task
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic

ENGINE, WITHIN_S = "replayed", 600.0


@dataclass
class Ran:
    """Of the robots together. outcome: as of a simulation. links_s: what a request and its answer were on
    their way, together. over_s: how much longer chunks took than was recorded. calls: observed anew."""

    outcome: Outcome = field(default_factory=lambda: Outcome(busy_s={"replay": 0.0}))
    links_s: list[float] = field(default_factory=list)
    over_s: list[float] = field(default_factory=list)
    calls: int = 0


class Robots:
    """The robots /r0, /r1, ... of the tasks of a trace, in the namespace of none. bag: a folder that is not
    there yet. lead_s: see the simulator's Settings."""

    def __init__(self, node: Node, trace: Trace, contract: Path, bag: Path, lead_s: float) -> None:
        assert trace.step_s is not None
        self._node, self._trace, self._lead_s, self._step_s = node, trace, lead_s, trace.step_s
        self._contract, text = Contract.load(contract), contract.read_text()
        self._bag, self._topics = McapBag(bag), set[str]()
        self._robots: dict[str, Robot] = {}
        self._sent_s: dict[str, float] = {}
        self._events: list[tuple[float, str]] = []
        self.admitted: set[str] = set()
        self.refusals: list[str] = []
        self.ran = Ran()
        self._requests = {}
        self._descriptions = []
        for number in range(len(trace.scripts)):
            name = f"/r{number}"
            described = node.create_publisher(FleetRobot, f"{name}/fleet/robot", qos.LATCHED)
            self._requests[name] = node.create_publisher(FleetRequest, f"{name}/fleet/request", qos.COMMAND)
            for kind, topic, heard, profile in (
                (FleetAdmission, "admission", self._on_admission, qos.LATCHED),
                (FleetCall, "call", self._on_call, qos.COMMAND),
                (FleetAnswer, "answer", self._on_answer, qos.REPORT),
            ):
                node.create_subscription(kind, f"{name}/fleet/{topic}", partial(heard, name), profile)
            told = RobotDescription(ENGINE, name, text, chunks_per_s=1e-3)
            described.publish(fleet_convert.description_to_message(told, time.time_ns()))
            self._descriptions.append(described)  # latched: it must live

    def run(self, timeout_s: float) -> Ran:
        """Wait until all are admitted, then do the tasks. Raises TimeoutError."""
        executor = SingleThreadedExecutor(context=self._node.context)
        executor.add_node(self._node)
        end_s = time.monotonic() + timeout_s
        try:
            while len(self.admitted) < len(self._requests):
                self._spin(executor, 0.1, end_s)
            arrived_s, begin_s = self._trace.arrived_s or (), time.monotonic() + 1.0
            self._events = [(begin_s + at_s, f"/r{number}") for number, at_s in enumerate(arrived_s)]
            heapq.heapify(self._events)
            while len(self.ran.outcome.robots) < len(self._trace.scripts):
                wait_s = self._events[0][0] - time.monotonic() if self._events else 0.1
                self._spin(executor, min(max(wait_s, 0.0), 0.1), end_s)
                while self._events and self._events[0][0] <= time.monotonic():
                    self._happens(*heapq.heappop(self._events))
        finally:
            executor.shutdown()
            self._bag.close()
        self.ran.outcome.ended_s = max(self.ran.outcome.ends_s)
        return self.ran

    def _spin(self, executor: SingleThreadedExecutor, wait_s: float, end_s: float) -> None:
        if time.monotonic() > end_s:
            done = len(self.ran.outcome.robots)
            raise TimeoutError(
                f"{len(self.admitted)} robots were admitted, {done} tasks done: {self.refusals[-1:]}"
            )
        executor.spin_once(wait_s)

    def _happens(self, at_s: float, name: str) -> None:
        """A robot begins, ends, or asks for its next chunk, now at the earliest."""
        robot = self._robots.get(name)
        if robot is not None and robot.done:
            self.ran.outcome.robots.append(robot)
            self.ran.outcome.ends_s.append(robot.stops_s)
            return
        if robot is None:
            script = self._trace.scripts[int(name.removeprefix("/r"))]
            task = Task(name, 0, script.kind, at_s)
            robot = Robot(name, script, task, at_s, self._step_s, self._lead_s)
            self._robots[name] = robot
        self._ask(robot)

    def _ask(self, robot: Robot) -> None:
        now_s, now_ns = time.monotonic(), time.time_ns()
        robot.observe(now_s)
        executed_s, left_s = robot.told(now_s)
        cameras = [camera.name for camera in self._contract.cameras]
        images: dict[str, bytes | np.ndarray] = {name: np.zeros((4, 4, 3), np.uint8) for name in cameras}
        state = np.zeros(len(self._contract.joint_names), np.float32)
        seen = EncodedObservation(images, dict.fromkeys(cameras, now_ns), state, robot.script.kind, now_ns)
        remaining = math.floor(left_s / self._step_s + 1e-6)
        request = ChunkRequest(
            Round(ENGINE, robot.name, 0, robot.rounds), 0, now_ns, seen,
            executed_s, remaining, robot.stalled_s, WITHIN_S,
        )  # fmt: skip
        message = fleet_convert.request_to_message(request)
        self._sent_s[robot.name] = now_s
        self.ran.outcome.requests += 1
        self._requests[robot.name].publish(message)
        self._write(f"{robot.name}/fleet/request", message, now_ns)

    def _on_admission(self, name: str, message: FleetAdmission) -> None:
        if message.admitted:
            self.admitted.add(name)
        else:
            self.refusals.append(message.reason)

    def _on_call(self, name: str, message: FleetCall) -> None:
        robot = self._robots[name]
        if message.round == robot.rounds:
            self.ran.calls += 1
            self._ask(robot)

    def _on_answer(self, name: str, message: FleetAnswer) -> None:
        now_s, ran, robot = time.monotonic(), self.ran, self._robots[name]
        self._write(f"{name}/fleet/answer", message, time.time_ns())
        if message.refusal:
            self.refusals.append(message.refusal)
            return
        if message.round != robot.rounds:
            return
        took_s = message.served_s
        ran.over_s.append(took_s - (robot.script.serves_s(robot.rounds) or 0.0))
        if not ran.calls or message.queued_s < 1e-2:  # nobody was called for this one
            ran.links_s.append(now_s - self._sent_s[name] - message.queued_s - took_s)
        ran.outcome.served.append((name, robot.rounds))
        ran.outcome.batches.append(1)
        ran.outcome.busy_s["replay"] += took_s
        robot.receive(now_s)
        heapq.heappush(self._events, (robot.stops_s if robot.done else robot.asks_s(now_s), name))

    def _write(self, topic: str, message: Any, now_ns: int) -> None:
        kind = type_name(type(message))
        if topic not in self._topics:
            self._topics.add(topic)
            self._bag.add(Topic(topic, kind, definition(kind), True))
        self._bag.write(topic, now_ns, serialize_message(message))
