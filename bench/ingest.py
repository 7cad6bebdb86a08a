"""The cost of receiving two cameras' frames in the engine's process, by transport, and the frames' age.

    python bench/ingest.py [--seconds S]

Two processes over real DDS: one publishes like the camera node, 30 Hz each; the other is a lifecycle node on
the SingleThreadedExecutor with the subscriptions and the Ingest of the inference node. A frame has arrived
when it can be leased and is intact; its age [ms] is from before it was written to that moment. CPU is in
percent of a core: of the receiving process, and of the sending one, which also fills the frame and encodes
the JPEG. "copies" are of whole frames, from where the camera's process wrote them to the last place before
the slot that the policy reads; for a JPEG, of its bytes. "load" is how many cores were busy before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from run import Bench, Given, Row, main
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract, process_environment
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.tools.running.graph import claim_domain

SIZES = ((640, 480), (1280, 720))
TOPICS = {"ring": "frame", "raw": "image_raw", "compressed": "image_raw/compressed"}
COPIES = {"ring": 0, "raw": 3, "compressed": 3}
CAMERAS = ("front", "wrist")
RATE_HZ = 30
WARM_UP_S = 1.5


class Measured(Ingest):
    """An Ingest that records each frame's age once it can be leased. now_ns: the node's clock."""

    def __init__(self, contract: Contract) -> None:
        super().__init__(contract)
        self.ages: list[tuple[str, float]] = []

    @contextmanager
    def _refusing(self, camera: str, now_ns: int) -> Iterator[None]:
        with super()._refusing(camera, now_ns):
            yield
        lease = self._frames.newest(camera)
        if lease is not None:
            with lease:
                if lease.intact():
                    age_ms = (time.time_ns() - lease.frames[camera].stamp_ns) * 1e-6
                    self.ages.append((camera, age_ms))


def contract_of(transport: str) -> Contract:
    """The simulated arm's, its cameras by this transport."""
    contract = Contract.load(demo_contract())
    cameras = tuple(
        replace(camera, transport=transport, topic=f"camera/{camera.name}/{TOPICS[transport]}")
        for camera in contract.cameras
    )
    return replace(contract, cameras=cameras)


def send(transport: str, width: int, height: int, seconds: float) -> None:
    """The cameras' process: runs both cameras until the receiver is done; prints its CPU share."""
    import rclpy

    from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs

    outputs = {
        "ring": Outputs(ring=True, image_hz=0.0),
        "raw": Outputs(),
        "compressed": Outputs(image_hz=0.0, jpeg_hz=-1.0),
    }[transport]
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    image = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 8), None, 0, 255, cv2.NORM_MINMAX)
    rclpy.init()
    node = rclpy.create_node("cameras")
    cameras = [CameraOutput(node, name, outputs) for name in CAMERAS]
    while any(node.count_subscribers(f"camera/{name}/{TOPICS[transport]}") == 0 for name in CAMERAS):
        time.sleep(0.01)
    begin, used = time.monotonic(), time.process_time()
    for frame in range(int((WARM_UP_S + seconds + 1.0) * RATE_HZ)):
        for camera in cameras:
            with camera.frame(time.time_ns(), height, width) as pixels:
                np.copyto(pixels, image)
        time.sleep(max(0.0, begin + (frame + 1) / RATE_HZ - time.monotonic()))
    print(json.dumps({"cpu": (time.process_time() - used) / (time.monotonic() - begin)}), flush=True)
    for camera in cameras:
        camera.close()
    node.destroy_node()
    rclpy.shutdown()


def receive(transport: str, seconds: float) -> None:
    """The engine's process without its engine; prints what arrived in a window, and the CPU that it used."""
    contract = contract_of(transport)
    ingest = Measured(contract)
    node, executor = receiver(contract, ingest)
    while not ingest.ages:
        executor.spin_once(timeout_sec=1.0)
    spin(executor, WARM_UP_S)
    ingest.ages.clear()
    begin, used = time.monotonic(), time.process_time()
    spin(executor, seconds)
    elapsed, used = time.monotonic() - begin, time.process_time() - used
    ages = [age for _, age in ingest.ages]
    result = {
        "hz": round(len(ages) / elapsed / len(CAMERAS), 2),
        "cpu": round(100 * used / elapsed, 2),
        "age_ms": {f"p{q}": round(float(np.percentile(ages, q)), 2) for q in (50, 99)},
        "lost": sum(ingest.lost(name) for name in CAMERAS),
    }
    print(json.dumps(result), flush=True)
    end(node)


def receiver(contract: Contract, ingest: Ingest) -> tuple[Any, Any]:
    """An active node with the subscriptions of the inference node, and its executor."""
    import rclpy
    from rclpy.executors import SingleThreadedExecutor

    from vla_accel_ros.nodes.inference.streams import Streams
    from vla_accel_ros.nodes.params.parameter import AUTOSTART
    from vla_accel_ros.nodes.running.lifecycle import ManagedNode
    from vla_accel_ros.sensing.inputs import RobotInputs

    class Receiver(ManagedNode):
        """Subscribes as the inference node does."""

        def configure(self) -> None:
            Streams(self, contract, RobotInputs(contract, ingest))

    rclpy.init()
    node, executor = Receiver("receiver", (AUTOSTART,)), SingleThreadedExecutor()
    executor.add_node(node)
    node.trigger_configure()
    node.trigger_activate()
    return node, executor


def end(node: Any) -> None:
    """End a receiver."""
    import rclpy

    node.end()
    node.destroy_node()
    rclpy.shutdown()


def spin(executor: Any, seconds: float) -> None:
    """Serve callbacks for a time."""
    deadline_s = time.monotonic() + seconds
    while (remaining_s := deadline_s - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=remaining_s)


def of_transport(transport: str, width: int, height: int, seconds: float, domain: int) -> dict[str, Any]:
    """Both processes, once."""
    environment = process_environment(
        {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "OMP_NUM_THREADS": "1"}
    )

    def start(*arguments: object) -> subprocess.Popen:
        command = [sys.executable, __file__, *map(str, arguments), "--seconds", str(seconds)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    with start("--receive", transport) as receiver, start("--send", transport, width, height) as sender:
        received, sent = (json.loads(process.communicate()[0]) for process in (receiver, sender))
    return {
        "transport": transport,
        "width": width,
        "height": height,
        **received,
        "sender_cpu": round(100 * sent["cpu"], 2),
        "copies": COPIES[transport],
    }


def measure(given: Given) -> Iterator[Row]:
    """Each size by each transport; or be one of the processes."""
    if given.receive or given.send:
        given.file = None
    if given.receive:
        return receive(given.receive, given.seconds)
    if given.send:
        transport, width, height = given.send
        return send(transport, int(width), int(height), given.seconds)
    domain, lock = claim_domain()
    with lock:
        for width, height in SIZES:
            for transport in TOPICS:
                yield of_transport(transport, width, height, given.seconds, domain)


def options(add: Callable[..., Any]) -> None:
    """For how long."""
    add("--seconds", type=float, default=15.0)
    add("--receive", metavar="TRANSPORT", help=argparse.SUPPRESS)
    add("--send", nargs=3, help=argparse.SUPPRESS)


BENCH = Bench(
    "ingest", measure, options, {"rate_hz": RATE_HZ}, rows="rows", smoke="--seconds 1", starts_nodes=True
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
