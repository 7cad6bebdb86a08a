"""The program of a robot's host: its nodes as processes, drivers and controllers, and a record of its
requests.

Prints "moving" when a chunk moves the arm, and, when its input ends, what happened as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException

from chaos.fleet import INSTRUCTION, OFFSETS_S
from chaos.model import statistics_of
from chaos.processes import Process
from chaos.robot import Robot
from vla_accel_msgs.msg import FleetAnswer, FleetRequest, Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.running.executor import DirectExecutor

START_S, STEP_S = 60.0, 0.01
HEIGHT, WIDTH = 480, 640


@dataclass
class Round:
    """Of a robot, in steady seconds: when it first asked, how often, how many bytes its images have, and when
    its chunk came."""

    asked_s: float
    attempts: int
    image_bytes: int
    answered_s: float | None = None
    refusal: str = ""


class Requests:
    """What a robot sends to the scheduler and gets from it, as heard on its host."""

    def __init__(self, node: Any) -> None:
        self.rounds: dict[tuple[int, int], Round] = {}
        node.create_subscription(FleetRequest, "fleet/request", self._on_request, qos.REPORT)
        node.create_subscription(FleetAnswer, "fleet/answer", self._on_answer, qos.REPORT)

    def _on_request(self, message: FleetRequest) -> None:
        key, images = (message.task, message.round), (*message.compressed, *message.raw)
        if key in self.rounds:
            self.rounds[key].attempts += 1
        else:
            self.rounds[key] = Round(time.monotonic(), 1, sum(len(image.data) for image in images))

    def _on_answer(self, message: FleetAnswer) -> None:
        if (found := self.rounds.get((message.task, message.round))) is None:
            return
        if message.refusal:
            found.refusal = message.refusal
        elif found.answered_s is None:
            found.answered_s = time.monotonic()


def pictures(number: int) -> list[np.ndarray]:
    """Images of a scene: surfaces, edges and a little noise of the sensor; a quality of 90 makes some 40 KB
    of one. uint8 [480, 640, 3]."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    scene = np.stack([60 + 80 * y / HEIGHT, 80 + 60 * x / WIDTH, 120 - 40 * y / HEIGHT], axis=-1)
    for _ in range(24):
        top, left = rng.integers(HEIGHT - 80), rng.integers(WIDTH - 80)
        down, along = rng.integers(10, 80, 2)
        scene[top : top + down, left : left + along] = rng.integers(256, size=3)
    found = [scene + rng.normal(0.0, 3.0, scene.shape) for _ in range(4)]
    return [one.clip(0, 255).astype(np.uint8) for one in found]


def main() -> int:
    """Parse, run until the input ends; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", choices=("jpeg", "raw"), required=True)
    given = parser.parse_args()
    number, folder = given.number, given.folder
    name, offset_s = f"/robot{number}", OFFSETS_S[number]
    contract = Contract.load(folder / "contract.yaml")
    rclpy.init()
    node = rclpy.create_node("drivers", namespace=name)
    robot, requests = Robot(node, number, contract, offset_s, pictures(number)), Requests(node)
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / f"state{number}")}
    common = {"autostart": True, "contract": str(folder / "contract.yaml")}
    inference = {"engine": "fleet", "statistics": statistics_of(number), "fleet_images": given.images}
    processes = [
        Process(
            f"{name}/{module}", f"vla_accel_ros.nodes.{module}", name, own, {}, offset_s, environment, folder
        )
        for module, own in (
            ("fleet_inference", {**common, **inference, "chunk_messages_hz": 0.0}),
            ("trajectory", {**common, "lead_s": 0.1}),
        )
    ]
    executor = DirectExecutor()
    executor.add_node(node)

    def spin() -> None:
        with suppress(ExternalShutdownException):
            executor.spin()

    threading.Thread(target=spin, daemon=True).start()
    robot.instruct(INSTRUCTION)
    for process in processes:
        process.start()
    until_s = time.monotonic() + START_S
    while robot.goes_on_ns(0) is None:
        if time.monotonic() > until_s or not all(process.alive for process in processes):
            print(f"robot {number} does not move within {START_S:g} s: {robot.reasons}", file=sys.stderr)
            for process in processes:
                process.end()
            return 1
        time.sleep(STEP_S)
    print("moving", flush=True)
    sys.stdin.read()
    for process in processes:
        process.end()
    executor.shutdown()
    told = [(at_ns * 1e-9, state == Motion.RUNNING, reasons) for at_ns, state, reasons in robot.told]
    rounds = [asdict(one) for one in requests.rounds.values()]
    print(json.dumps({"rounds": rounds, "told": told, "judged": robot.judge()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
