"""A fleet's scheduler that computes nothing: it admits every robot and answers with chunks of one slow wave.

A program, so that it can be killed. Parameters: contract, and delays, the times its answers take [s].
"""

from __future__ import annotations

import math
import signal
from itertools import cycle
from uuid import uuid4

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from vla_accel_msgs.msg import FleetAdmission, FleetAnswer, FleetRequest, FleetRobot
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import Admission, ChunkAnswer, ChunkRequest
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert as convert
from vla_accel_ros.types import Chunk

MIDDLE = np.array([0.0, 0.0, 0.8, 0.3, 0.0, 0.5])
WAVE_HZ, REACH_RAD = 0.25, 0.3
LONGEST_S = 4.8


class FakeScheduler(Node):
    def __init__(self) -> None:
        super().__init__("fake_scheduler")
        self.name = uuid4().hex
        self._contract = Contract.load(self.declare_parameter("contract", "").value)
        delays = self.declare_parameter("delays", "0.2").value
        self._delays = cycle([float(delay) for delay in delays.split(",")])
        self._number = 0
        self._admission = self.create_publisher(FleetAdmission, "fleet/admission", qos.LATCHED)
        self._answer = self.create_publisher(FleetAnswer, "fleet/answer", qos.REPORT)
        self.create_subscription(FleetRobot, "fleet/robot", self._on_robot, qos.LATCHED)
        self.create_subscription(FleetRequest, "fleet/request", self._on_request, qos.REPORT)

    def _on_robot(self, message: FleetRobot) -> None:
        robot = convert.description_from_message(message)
        said = Admission(robot.engine, robot.robot, self.name, True)
        self._admission.publish(convert.admission_to_message(said))

    def _on_request(self, message: FleetRequest) -> None:
        request = convert.request_from_message(message, self._contract)

        def answer() -> None:
            self.destroy_timer(timer)
            self._answer.publish(convert.answer_to_message(self._answered(request), self._contract))

        timer = self.create_timer(next(self._delays), answer)

    def _answered(self, request: ChunkRequest) -> ChunkAnswer:
        self._number += 1
        dt_s, stamp_ns = self._contract.chunk.step_dt_s, request.observation.stamp_ns
        seconds = stamp_ns % 1_000_000_000_000 * 1e-9 + np.arange(1, round(LONGEST_S / dt_s) + 1) * dt_s
        wave = REACH_RAD * np.sin(2 * math.pi * WAVE_HZ * seconds)
        actions = (MIDDLE + wave[:, None]).astype(np.float32)
        chunk = Chunk(actions, stamp_ns, dt_s, self._number, self._number, np.zeros(0, np.float32))
        return ChunkAnswer(request.round, request.attempt, self.name, request.sent_ns, chunk, replica="wave")


def main() -> None:
    """Until a signal. rclpy's own handler once missed one."""
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ended.append(number))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = FakeScheduler()
    while not ended:
        rclpy.spin_once(node, timeout_sec=0.1)
    node.destroy_node()
    rclpy.shutdown()


if __name__ == "__main__":
    main()
