"""How long a served robot waits while many join its fleet, and how soon those are answered.

    python bench/fleet_joins.py [--joins N] [--times N]

A scheduler's node with a tiny policy, and a process with a robot that asks as soon as it is answered and N
robots that join at once, over real DDS. Each contract is another text, of the demo's size. `gap_s` is the
longest time between two answers to the served robot while the others join (`before_gap_s`: before that),
`told_s` from a robot's description to its first `fleet/admission`, `admitted_s` to the one that admits it:
median and longest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rclpy

from chaos.model import statistics_of, write_model
from run import Bench, Given, Row, main
from vla_accel_msgs.msg import FleetAdmission, FleetAnswer, FleetRequest, FleetRobot
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import ChunkRequest, EncodedObservation, RobotDescription, Round
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.fleet import fleet_convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.tools.running.graph import own_graph
from vla_accel_ros.tools.running.processes import NodeProcess

SERVED, SERVED_HZ, RARELY_HZ, BEFORE_S, WAIT_S = "/served", 20.0, 0.01, 5.0, 120.0


class Robots:
    """told, admitted: when, by robot; answers: when chunks came to the one that asks for them."""

    def __init__(self) -> None:
        rclpy.init()
        self._node, self._executor = rclpy.create_node("robots"), DirectExecutor()
        self._executor.add_node(self._node)
        self.told, self.admitted, self.answers = dict[str, float](), dict[str, float](), list[float]()
        self._contract, self._publishers = Contract.load(demo_contract()), list[Any]()
        self._requests = self._node.create_publisher(FleetRequest, f"{SERVED}/fleet/request", qos.COMMAND)
        self._node.create_subscription(FleetAnswer, f"{SERVED}/fleet/answer", self._on_answer, qos.REPORT)

    def hear(self, robot: str) -> None:
        """Listen to whether it is served."""
        topic = f"{robot}/fleet/admission"
        self._node.create_subscription(FleetAdmission, topic, self._on_admission, qos.LATCHED)

    def join(self, robot: str, rate_hz: float) -> float:
        """Ask to be served, with a contract of its own; returns when."""
        contract = f"{demo_contract().read_text()}\n# {robot}\n"
        told = RobotDescription(robot, robot, contract, chunks_per_s=rate_hz)
        self._publishers.append(self._node.create_publisher(FleetRobot, f"{robot}/fleet/robot", qos.LATCHED))
        self._publishers[-1].publish(fleet_convert.description_to_message(told, time.time_ns()))
        self._executor.spin_once(0.0)
        return time.monotonic()

    def until(self, condition: Callable[[], object]) -> None:
        """Spin until it holds. Raises TimeoutError."""
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(self.told)} told, {len(self.admitted)} admitted in {WAIT_S:g} s")
            self._executor.spin_once(0.05)

    def ask(self, number: int = 0) -> None:
        """Ask for a chunk."""
        now_ns, contract = time.time_ns(), self._contract
        images: dict[str, Any] = {camera.name: np.zeros((28, 28, 3), np.uint8) for camera in contract.cameras}
        state = np.zeros(len(contract.joints), np.float32)
        seen = EncodedObservation(images, dict.fromkeys(images, now_ns), state, "reach", now_ns)
        request = ChunkRequest(Round(SERVED, SERVED, 0, number), 0, now_ns, seen, within_s=WAIT_S)
        self._requests.publish(fleet_convert.request_to_message(request))

    def _on_answer(self, message: FleetAnswer) -> None:
        if not message.refusal:
            self.answers.append(time.monotonic())
        self.ask(message.round + 1)

    def _on_admission(self, message: FleetAdmission) -> None:
        for times in (self.told, *([self.admitted] if message.admitted else ())):
            times.setdefault(message.robot, time.monotonic())


def play(robots: Robots, names: list[str]) -> Row:
    """One run. Raises TimeoutError if a robot is not served."""
    for name in (SERVED, *names):
        robots.hear(name)
    robots.join(SERVED, SERVED_HZ)
    robots.until(lambda: SERVED in robots.admitted)
    robots.ask()
    robots.until(lambda: len(robots.answers) > SERVED_HZ)
    begin_s = time.monotonic()
    robots.until(lambda: time.monotonic() > begin_s + BEFORE_S)
    asked = {name: robots.join(name, RARELY_HZ) for name in names}
    robots.until(lambda: len(robots.admitted) > len(names))
    asked_s, ended_s, at_s = min(asked.values()), time.monotonic(), np.array(robots.answers)
    before, during = (
        np.diff(at_s)[(at_s[1:] > since_s) & (at_s[:-1] < until_s)]
        for since_s, until_s in ((begin_s, asked_s), (asked_s, ended_s))
    )
    told, admitted = ([of[name] - asked[name] for name in names] for of in (robots.told, robots.admitted))
    times: dict[str, Any] = {"before_gap_s": before, "gap_s": during, "told_s": told, "admitted_s": admitted}
    return {name: np.percentile(of, (50, 100)).round(3).tolist() for name, of in times.items()}


def measure(given: Given) -> Iterator[Row]:
    """A run at a time."""
    parameters = {"autostart": "true", "steps": 2, "torch_threads": 1, "most_robots": given.joins + 1}
    for _ in range(given.times):
        with own_graph() as environment, tempfile.TemporaryDirectory() as folder:
            parameters |= {"model": write_model(Path(folder, "model"), 1), "statistics": statistics_of(0)}
            words = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
            scheduler = NodeProcess("fleet", words, environment, Path(folder, "log"))
            try:
                scheduler.start()
                yield play(Robots(), [f"/robot{number}" for number in range(given.joins)])
            finally:
                rclpy.try_shutdown()
                scheduler.end(20.0)


def options(add: Any) -> None:
    """How many join, how often."""
    add("--joins", type=int, default=100)
    add("--times", type=int, default=3)


BENCH = Bench(
    "fleet_joins", measure, options, {"served_hz": SERVED_HZ}, rows="runs",
    smoke="--joins 3 --times 1", starts_nodes=True,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
