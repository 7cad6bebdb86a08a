"""A robot of the fleet that has no arm: it sends noise and its number, and asks again when it was answered.

In a process of its own: `python scheduler_robot.py NAMESPACE CONTRACT`, until it is killed.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from vla_accel_msgs.msg import FleetAdmission, FleetAnswer, FleetCall, FleetRequest, FleetRobot, Session
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import (
    ChunkAnswer,
    ChunkRequest,
    EncodedObservation,
    RobotDescription,
    Round,
)
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert

AGAIN_S = 2.0


class AskingRobot:
    """One robot. answers, refusals: what came; sessions: of its replicas; strange: answers that were for
    somebody else. asking: whether it goes on."""

    def __init__(self, node: Node, contract: Path, chunks_per_s: float = 2.0, horizon: str = "") -> None:
        self.node, self.contract = node, Contract.load(contract)
        self.name, self.engine = node.get_namespace(), uuid.uuid4().hex
        self.answers: list[ChunkAnswer] = []
        self.refusals: list[str] = []
        self.sessions: list[Session] = []
        self.strange: list[FleetAnswer] = []
        self.admissions: list[FleetAdmission] = []
        self.calls, self.number, self.attempt, self.asking = 0, 0, 0, True
        self.asked_s, self.seen_ns = 0.0, 0
        self.told = node.create_publisher(FleetRobot, "fleet/robot", qos.LATCHED)
        self.requests = node.create_publisher(FleetRequest, "fleet/request", qos.COMMAND)
        node.create_subscription(FleetAdmission, "fleet/admission", self.admissions.append, qos.LATCHED)
        node.create_subscription(Session, "fleet/session", self.sessions.append, qos.ALL_LATCHED)
        node.create_subscription(FleetAnswer, "fleet/answer", self.on_answer, qos.REPORT)
        node.create_subscription(FleetCall, "fleet/call", self.on_call, qos.COMMAND)
        self.description = RobotDescription(
            self.engine, self.name, contract.read_text(), horizon=horizon, chunks_per_s=chunks_per_s
        )
        self.describe()
        node.create_timer(0.1, self.look)

    def describe(self) -> None:
        now_ns = self.node.get_clock().now().nanoseconds
        self.told.publish(fleet_convert.description_to_message(self.description, now_ns))

    def look(self) -> None:
        """Ask for the round again if nothing came."""
        admitted = bool(self.admissions) and self.admissions[-1].admitted
        if self.asking and admitted and time.monotonic() - self.asked_s > AGAIN_S:
            self.attempt += 1
            self.ask()

    def ask(self) -> None:
        self.asked_s = time.monotonic()
        self.requests.publish(fleet_convert.request_to_message(self.request()))

    def request(self) -> ChunkRequest:
        now_ns = self.node.get_clock().now().nanoseconds
        self.seen_ns, rng = now_ns, np.random.default_rng(self.number)
        names = [camera.name for camera in self.contract.cameras]
        images = {name: rng.integers(0, 256, (28, 28, 3), dtype=np.uint8) for name in names}
        state = np.zeros(len(self.contract.joints), np.float32)
        seen = EncodedObservation(images, dict.fromkeys(names, now_ns), state, "reach the red block", now_ns)
        round_ = Round(self.engine, self.name, 0, self.number)
        return ChunkRequest(round_, self.attempt, now_ns, seen, within_s=20.0)

    def on_call(self, message: FleetCall) -> None:
        if (message.engine, message.round) == (self.engine, self.number):
            self.calls += 1
            self.ask()

    def on_answer(self, message: FleetAnswer) -> None:
        if (message.engine, message.robot) != (self.engine, self.name):
            self.strange.append(message)
            return
        answer = fleet_convert.answer_from_message(message, self.contract)
        if answer.chunk is None:
            self.refusals.append(answer.refusal)
            return
        self.answers.append(answer)
        print(f"answer {answer.round.number}", flush=True)
        if answer.round.number == self.number:
            self.number, self.attempt = self.number + 1, 0
            if self.asking:
                self.ask()


def spin_until(nodes: tuple[Node, ...], condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Have the nodes' callbacks called until the condition holds."""
    executor = SingleThreadedExecutor(context=nodes[0].context)
    for node in nodes:
        executor.add_node(node)
    deadline_s = time.monotonic() + timeout_s
    try:
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no {what} within {timeout_s:g} s")
            executor.spin_once(0.1)
    finally:
        for node in nodes:
            executor.remove_node(node)
        executor.shutdown()


def main() -> None:
    rclpy.init()
    node = Node("robot", namespace=sys.argv[1])
    AskingRobot(node, Path(sys.argv[2]))
    rclpy.spin(node)


if __name__ == "__main__":
    main()
