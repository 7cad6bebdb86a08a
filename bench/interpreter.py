"""What a lane loses to Python: consecutive micro-batches, beside the callbacks of the inference node.

    python bench/interpreter.py [--seconds S] [--stage-ms MS]

A lane of the engine's own scheduler computes action requests. In each micro-batch the thread sleeps for the
time of a stage (1.15 ms: a staggered step of ten chunks on an H200), as it would wait for a GPU, so the
interpreter is free meanwhile. The rest of the interval between two ends is host time: choosing, callbacks,
and waiting for the interpreter. Measured alone; beside a node with the subscriptions of `inference` in the
same process (two cameras of 640x480 at 30 Hz as whole images, joints at 500 Hz, real DDS, the sender in its
own process); and also with a thread that logs and makes garbage, and a full collection each second. The last
two run with Python's defaults and with the settings of nodes (nodes/running/process.py: a shorter switch
interval, loaded objects not collected). Finally beside the same node in another process, where only
processors are shared.
The sleep stands for a GPU, so nothing here says how fast a GPU is. Writes bench/results/interpreter.json.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ingest
import numpy as np
import torch

from vla_accel_ros.engine.kv.pool import KVPool, Prefixes
from vla_accel_ros.engine.policies.chunks import WholeChunks
from vla_accel_ros.engine.request import ACT, DENOISE, MicroBatch, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.scheduling.scheduler import Scheduler
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.nodes.running.environment import process_environment
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running.graph import claim_domain
from vla_accel_ros.types import Observation

RESULT = Path(__file__).parent / "results" / "interpreter.json"
CAMERAS, SIZE, CAMERA_HZ, JOINTS_HZ = ("front", "wrist"), (480, 640), 30, 500
CASES = {
    "alone": (),
    "beside the node, plain Python": ("--node", "--plain"),
    "beside the node": ("--node",),
    "beside the node, logs and garbage, plain Python": ("--node", "--garbage", "--plain"),
    "beside the node, logs and garbage": ("--node", "--garbage"),
    "beside the node in another process": ("--apart",),
}
WARM_UP_S = 1.5


class Sleeping:
    """A runner whose micro-batches take time without holding the interpreter."""

    def __init__(self, stage_s: float) -> None:
        sizes = GemmaConfig(width=8, depth=1, mlp=8, heads=1, kv_heads=1, head_dim=4)
        self.prefixes = Prefixes(KVPool(sizes, 2, 8, torch.device("cpu"), torch.float32))
        self.ends: list[int] = []
        self._stage_s = stage_s

    def first_stage(self, request: Request) -> str:
        """Always DENOISE."""
        return DENOISE

    def kind(self, request: Request) -> str:
        """The request's want."""
        return request.kind

    def idle(self) -> None:
        """Does nothing."""

    def room(self, request: Request) -> bool:
        """Always True."""
        return True

    def begin(self, request: Request) -> None:
        """Does nothing."""

    def run(self, batch: MicroBatch) -> None:
        """Wait as for a GPU."""
        time.sleep(self._stage_s)
        self.ends.append(time.perf_counter_ns())
        for request in batch.requests:
            request.finished = True

    def drop(self, request: Request) -> None:
        """Does nothing."""


def lane(stage_s: float, seconds: float) -> dict[str, float]:
    """Action requests in a lane's thread, each submitted when the one before has ended; returns by how much
    intervals exceeded the stage."""
    runner = Sleeping(stage_s)
    scheduler = Scheduler(runner, WholeChunks())
    seen = Observation({}, np.zeros(1, np.float32), "", 1)
    slot = runner.prefixes._pool.acquire()
    nobody: Any = None
    prefix = runner.prefixes.publish(slot, seen, Embodiment(nobody, 0.1), 1, 0)
    over = time.monotonic() + WARM_UP_S + seconds

    def again(request: Request | None = None) -> None:
        if time.monotonic() < over:
            scheduler.submit(Request(ACT, prefix=prefix, on_progress=again))

    scheduler.start()
    begun = time.perf_counter_ns()
    again()
    while time.monotonic() < over:
        time.sleep(0.1)
    scheduler.stop()
    ends = np.array([end for end in runner.ends if end > begun + WARM_UP_S * 1e9])
    longer_ms = np.diff(ends) * 1e-6 - 1e3 * stage_s
    p50, p99 = np.quantile(longer_ms, (0.5, 0.99))
    return {
        "stages_per_s": round(len(ends) / seconds, 1),
        "longer_p50_ms": round(float(p50), 3),
        "longer_p99_ms": round(float(p99), 3),
        "longer_max_ms": round(float(longer_ms.max()), 3),
    }


def spin(seconds: float, ready: Any = None) -> None:
    """Spin the node with the subscriptions of inference in this thread, for this long after its first
    frame."""
    contract = ingest.contract_of("raw")
    received = Ingest(contract)
    node, executor = ingest.receiver(contract, received)
    while any(monitor.age_s(time.time_ns()) is None for monitor in received.monitors.values()):
        executor.spin_once(timeout_sec=1.0)
    if ready is not None:
        ready()
    ingest.spin(executor, seconds)
    ingest.end(node)


def send() -> None:
    """Publish cameras and joints until this process is ended."""
    import rclpy
    from sensor_msgs.msg import JointState

    from vla_accel_ros.nodes import qos
    from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs
    from vla_accel_ros.nodes.messages import convert

    contract = ingest.contract_of("raw")
    image = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    rclpy.init()
    node = rclpy.create_node("cameras")
    cameras = [CameraOutput(node, name, Outputs()) for name in CAMERAS]
    joints = node.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
    message = JointState(name=list(contract.joint_names), position=[0.0] * len(contract.joint_names))
    begin, tick = time.monotonic(), 0
    while True:
        convert.set_stamp(message.header.stamp, time.time_ns())
        joints.publish(message)
        if tick % (JOINTS_HZ // CAMERA_HZ) == 0:
            for camera in cameras:
                with camera.frame(time.time_ns(), *SIZE) as place:
                    np.copyto(place, image)
        tick += 1
        time.sleep(max(0.0, begin + tick / JOINTS_HZ - time.monotonic()))


def garbage(over: threading.Event) -> None:
    """Log a hundred lines a second, make reference cycles, and run a full collection each second."""
    log = logging.getLogger("bench")
    log.propagate = False
    log.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115
    kept: list[Any] = []
    for turn in itertools.count():
        if over.wait(0.01):
            return
        log.warning("a line with %d numbers: %s", len(kept), kept[:3])
        for _ in range(100):
            one: list[Any] = [0]
            one.append(one)
        kept = [dict.fromkeys(range(10)) for _ in range(20)]
        if turn % 100 == 99:
            gc.collect()


def case(arguments: argparse.Namespace) -> None:
    """One case in this process; prints its figures."""
    if not arguments.plain:
        sys.setswitchinterval(SWITCH_S)
    over, seconds = threading.Event(), arguments.seconds
    if arguments.garbage:
        threading.Thread(target=garbage, args=(over,), daemon=True).start()
    found: list[dict[str, float]] = []

    def measure() -> None:
        if not arguments.plain:
            keep_loaded()
        found.append(lane(arguments.stage_ms * 1e-3, seconds))

    thread = threading.Thread(target=measure)
    if arguments.node:
        spin(WARM_UP_S + seconds + 0.5, thread.start)
    else:
        thread.start()
    thread.join()
    over.set()
    print(json.dumps(found[0]), flush=True)


def measure(name: str, arguments: argparse.Namespace, domain: int) -> dict[str, Any]:
    """A case, with the processes that it needs."""
    environment = process_environment(
        {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "OMP_NUM_THREADS": "1"}
    )
    given = ["--seconds", str(arguments.seconds), "--stage-ms", str(arguments.stage_ms)]

    def start(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *more, *given]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    others = []
    if name != "alone":
        others.append(start("--send"))
    if "--apart" in CASES[name]:
        others.append(start("--spin"))
        assert others[-1].stdout is not None
        others[-1].stdout.readline()  # its first frame has come
    try:
        with start("--case", *(word for word in CASES[name] if word != "--apart")) as process:
            row = json.loads(process.communicate()[0])
    finally:
        for other in others:
            other.kill()
            other.wait()
    return {"case": name, **row}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = "| case | stages/s | longer than the stage, p50 | p99 | max ms |\n|" + "---|" * 5
    lines = [
        f"| {row['case']} | {row['stages_per_s']} | {row['longer_p50_ms']} | {row['longer_p99_ms']} | "
        f"{row['longer_max_ms']} |"
        for row in rows
    ]
    return "\n".join([head, *lines])


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--stage-ms", type=float, default=1.15)
    parser.add_argument("--out", type=Path, default=RESULT)
    for word in ("case", "spin", "send", "node", "plain", "garbage"):
        parser.add_argument(f"--{word}", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.send:
        return send()
    if arguments.spin:
        return spin(3600.0, lambda: print("ready", flush=True))
    if arguments.case:
        return case(arguments)
    load = round(os.getloadavg()[0], 2)
    domain, lock = claim_domain()
    with lock:
        rows = [measure(name, arguments, domain) for name in CASES]
    print(table(rows))
    result = {
        "stage_ms": arguments.stage_ms,
        "seconds": arguments.seconds,
        "load": load,
        "stage": "simulated: the lane's thread sleeps",
        "rows": rows,
        **provenance(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
