"""How soon ~/hold is answered while the most expensive kinds of chunks come.

    python bench/hold.py [--holds N]

The trajectory node in its own process, a robot of 14 joints that are exactly where they are commanded, and a
publisher in a third process that sends chunks of one kind as fast as the node may take them: "typical" ones;
"wild" ones that break every limit at every step and are still accepted, with 50 and with the most actions;
and ones that are refused for their size: hours of motion in 48 kB, megabytes of actions, thousands of joints.
Times are from the call to its answer, as a caller in Python sees them, with the robot moving if chunks are
not refused. Prints a table and writes bench/results/hold.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from rclpy.clock import Clock, ClockType
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk, Motion
from vla_accel_ros.control.chunking.plausibility import MOST_ACTIONS
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import process_environment
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph

RESULT = Path(__file__).parent / "results" / "hold.json"
JOINTS = tuple(f"joint_{i}" for i in range(14))
VELOCITY, RANGE, TOPIC = 2.0, 3.0, "arm_controller/joint_trajectory"
SEED, PERIOD_S, AGE_NS = 0, 0.005, 30_000_000
# Kind -> (actions, joints, seconds between actions, whether they follow a smooth motion).
KINDS: dict[str, tuple[int, int, float, bool] | None] = {
    "no chunks": None,
    "typical 50 x 14": (50, 14, 1 / 30, True),
    "wild 50 x 14": (50, 14, 1 / 30, False),
    f"wild {MOST_ACTIONS} x 14": (MOST_ACTIONS, 14, 1 / 30, False),
    "refused 48 kB": (857, 14, 1.0, False),
    "refused 4 MB": (75_000, 14, 1 / 30, False),
    "refused joints": (1, 10_000, 1 / 30, False),
}
MOVES = {kind for kind in KINDS if kind.startswith(("typical", "wild"))}


def contract(folder: Path) -> Path:
    """A robot of 14 joints with one controller and one camera."""
    ranges = {"lower": -RANGE, "upper": RANGE, "velocity": VELOCITY, "acceleration": 10.0, "action": "delta"}
    fields = {
        "robot": "bench",
        "cameras": {"front": {"topic": "image_raw", "image": "base_0_rgb", "rate_hz": 30, "max_age_s": 0.5}},
        "max_skew_s": 0.05,
        "joint_states": {"topic": "joint_states", "rate_hz": 100, "max_age_s": 0.5},
        "joints": [{"name": name, **ranges} for name in JOINTS],
        "controllers": [{"topic": TOPIC, "joints": list(JOINTS)}],
        "chunk": {"step_dt_s": 1 / 30, "max_age_s": 0.5},
    }
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


class Flood:
    """A robot whose joints are exactly where they are commanded, and a publisher of chunks of one kind."""

    def __init__(self, node: Node, kind: str) -> None:
        self._node, self._shape, self._rng = node, KINDS[kind], np.random.default_rng(SEED)
        self._sent: Trajectory | None = None
        self._request, self._since_s = 0, time.monotonic()
        self._chunks = node.create_publisher(ActionChunk, "action_chunk", qos.COMMAND)
        self._joints = node.create_publisher(JointState, "joint_states", qos.SENSOR)
        node.create_subscription(JointTrajectory, TOPIC, self._on_trajectory, qos.COMMAND)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        node.create_timer(0.01, self._send_joints, clock=steady)
        if self._shape is not None:
            self._messages = [self._make(*self._shape) for _ in range(8)]
            node.create_timer(PERIOD_S, self._send_chunk, clock=steady)

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def _on_trajectory(self, message: JointTrajectory) -> None:
        self._sent = convert.trajectory_from_message(message, self._now_ns())

    def _send_joints(self) -> None:
        now_ns = self._now_ns()
        positions = np.zeros(len(JOINTS)) if self._sent is None else self._sent.sample(now_ns)[0]
        message = JointState(name=list(JOINTS), position=array("d", positions.tobytes()))
        convert.set_stamp(message.header.stamp, now_ns)
        self._joints.publish(message)

    def _make(self, horizon: int, joints: int, step_s: float, smooth: bool) -> ActionChunk:
        names = list(JOINTS) if joints == len(JOINTS) else [f"joint_{i}" for i in range(joints)]
        message = ActionChunk(joint_names=names, horizon=horizon, action_dim=joints, step_dt_s=step_s)
        if not smooth:
            steps = self._rng.uniform(-4.0, 4.0, (horizon, joints)) * VELOCITY * step_s
            actions = np.clip(np.cumsum(steps, axis=0), -RANGE, RANGE).astype(np.float32)
            message.actions = array("f", actions.tobytes())
        return message

    def _send_chunk(self) -> None:
        assert self._shape is not None
        horizon, _, step_s, smooth = self._shape
        self._request += 1
        message, stamp_ns = self._messages[self._request % len(self._messages)], self._now_ns() - AGE_NS
        if smooth:
            t = stamp_ns * 1e-9 % 1e4 + np.arange(1, horizon + 1) * step_s
            actions = 0.5 * np.sin(t[:, None] + np.arange(len(JOINTS))).astype(np.float32)
            message.actions = array("f", actions.tobytes())
        message.request_id = message.kv_version = self._request
        convert.set_stamp(message.header.stamp, stamp_ns)
        self._chunks.publish(message)


class Caller:
    """Calls the services of the trajectory node, in a graph that it listens to in its own thread."""

    def __init__(self, node: Node) -> None:
        self.motion: Motion | None = None
        self._clients = {
            name: node.create_client(Trigger, f"trajectory/{name}") for name in ("hold", "resume")
        }
        node.create_subscription(Motion, "motion", self._on_motion, qos.LATCHED)

    def _on_motion(self, message: Motion) -> None:
        self.motion = message

    def call_s(self, name: str) -> float:
        """Seconds until a call is answered."""
        client, answered = self._clients[name], threading.Event()
        if not client.wait_for_service(60.0):
            raise TimeoutError(f"no service {name} within 60 s")
        since = time.perf_counter()
        client.call_async(Trigger.Request()).add_done_callback(lambda _: answered.set())
        if not answered.wait(60.0):
            raise TimeoutError(f"no answer of {name} within 60 s")
        return time.perf_counter() - since

    def wait_for(self, state: int) -> None:
        """Wait until the node reports that state."""
        deadline = time.monotonic() + 60.0
        while self.motion is None or self.motion.state != state:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no motion state {state} within 60 s, but {self.motion}")
            time.sleep(0.01)


def spinning(make: Callable[[Node], Any], name: str) -> tuple[Any, SingleThreadedExecutor]:
    """The object that `make` makes from a node, and the executor to spin it."""
    context = rclpy.Context()
    rclpy.init(context=context)
    executor = SingleThreadedExecutor(context=context)
    node = rclpy.create_node(name, context=context)
    executor.add_node(node)
    return make(node), executor


def flood(kind: str) -> None:
    """Send until the process is ended."""
    _, executor = spinning(lambda node: Flood(node, kind), "flood")
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        executor.spin()


def measure(kind: str, holds: int, folder: Path, caller: Caller) -> dict[str, Any]:
    """One row of the table, with a new node and a new flood."""
    environment = process_environment({"XDG_STATE_HOME": str(folder / kind.replace(" ", "_"))})
    parameters = {"autostart": "true", "check_controllers": "false", "contract": f"'{contract(folder)}'"}
    node_command = [sys.executable, "-m", "vla_accel_ros.nodes.trajectory", "--ros-args"]
    for name, value in parameters.items():
        node_command += ["-p", f"{name}:={value}"]
    calls_ms = []
    with (folder / "log.txt").open("ab") as log:
        commands = [node_command, [sys.executable, __file__, "--flood", kind]]
        processes = [subprocess.Popen(c, env=environment, stdout=log, stderr=log) for c in commands]
        try:
            caller.motion = None
            time.sleep(3.0)
            for _ in range(holds):
                if kind in MOVES:
                    caller.call_s("resume")
                    caller.wait_for(Motion.RUNNING)
                else:
                    time.sleep(0.05)
                calls_ms.append(1e3 * caller.call_s("hold"))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20.0)
    p50, p99 = np.quantile(calls_ms, (0.5, 0.99))
    return {
        "kind": kind,
        "moving": kind in MOVES,
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "max_ms": round(max(calls_ms), 2),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--holds", type=int, default=50, help="per kind (default: %(default)s)")
    parser.add_argument("--flood", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        flood(arguments.flood)
        return
    domain, lock = graph.claim_domain()
    graph.enter(graph.graph_environment(domain))
    with lock, tempfile.TemporaryDirectory() as folder:
        caller, executor = spinning(Caller, "caller")
        threading.Thread(target=executor.spin, daemon=True).start()
        try:
            rows = [measure(kind, arguments.holds, Path(folder), caller) for kind in KINDS]
        except TimeoutError:
            print((Path(folder) / "log.txt").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            executor.shutdown()
    print("| chunks | moving | p50 [ms] | p99 [ms] | max [ms] |\n|" + "---|" * 5)
    for row in rows:
        times = " | ".join(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        print(f"| {row['kind']} | {'yes' if row['moving'] else 'no'} | {times} |")
    document = {"rows": rows, "holds": arguments.holds, "seed": SEED, "load": os.getloadavg(), **provenance()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
