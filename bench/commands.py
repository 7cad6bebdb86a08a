"""Commands at a fixed rate: what a forward_command_controller receives from the trajectory node, and the
node's CPU.

    python bench/commands.py [--seconds S] [--rates HZ ...]

The trajectory node in its own process follows a reference by chunks (10 Hz, 50 ms old); the controller's
joints are exactly where they are commanded. "step" is the largest change from one command to the next,
divided by two periods of full speed: 1 is the bound of control/command_stream.py. CPU is the node's alone, in
% of one core. Prints a table and writes bench/results/commands.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract, process_environment
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph
from vla_accel_ros.types import Chunk

RESULT = Path(__file__).parent / "results" / "commands.json"
TOPIC = "arm_positions/commands"
STEP_S, HORIZON, AGE_NS = 1 / 30, 30, 50_000_000
MIDDLE = np.array([0.0, 0.0, 1.0, 0.2, 0.0, 0.5])


def reference(t_s: np.ndarray | float) -> np.ndarray:
    """Where the policy wants the joints, [..., 6]: 0.5 rad at 0.4 Hz, peaks of 1.26 rad/s and 3.2 rad/s^2."""
    phase = np.arange(6) * 0.7
    swing = np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.2])
    return MIDDLE + swing * np.sin(2 * np.pi * 0.4 * np.asarray(t_s)[..., None] + phase)


class Robot:
    """A policy and a controller, in the operator's thread. depth: most commands that may wait for it. scale:
    of the reference's amplitude."""

    def __init__(
        self, operator: Operator, joints: tuple[str, ...], depth: int = 100, scale: float = 1.0
    ) -> None:
        self._operator, node, self._scale = operator, operator.node, scale
        self.received: list[tuple[float, np.ndarray]] = []
        self._position, self._request = self._reference(operator.now_ns() * 1e-9), 0
        self._moved = [operator.contract.joint_names.index(name) for name in joints]
        self._joints = node.create_publisher(JointState, "joint_states", qos.SENSOR)
        self._chunks = node.create_publisher(ActionChunk, "action_chunk", qos.COMMAND)
        node.create_subscription(Float64MultiArray, TOPIC, self._on_command, depth)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        node.create_timer(0.01, self._send_joints, clock=steady)
        node.create_timer(0.1, self._send_chunk, clock=steady)

    def _reference(self, t_s: np.ndarray | float) -> np.ndarray:
        return MIDDLE + self._scale * (reference(t_s) - MIDDLE)

    def _on_command(self, message: Float64MultiArray) -> None:
        command = np.array(message.data)
        self.received.append((time.monotonic(), command))
        self._position[self._moved] = command

    def _send_joints(self) -> None:
        message = JointState(name=list(self._operator.contract.joint_names))
        message.position = array("d", self._position.tobytes())
        convert.set_stamp(message.header.stamp, self._operator.now_ns())
        self._joints.publish(message)

    def _send_chunk(self) -> None:
        self._request += 1
        stamp_ns = self._operator.now_ns() - AGE_NS
        actions = self._reference(stamp_ns * 1e-9 + np.arange(1, HORIZON + 1) * STEP_S).astype(np.float32)
        chunk = Chunk(actions, stamp_ns, STEP_S, self._request, self._request, np.zeros(HORIZON, np.float32))
        self._chunks.publish(convert.chunk_to_message(chunk, self._operator.contract, 0.01))


def cpu_s(pid: int) -> float:
    """CPU time [s] that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(rate_hz: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure one rate."""
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    joints = fields["controllers"][0]["joints"]
    fields["controllers"][0] = {
        "topic": TOPIC,
        "kind": "forward_command",
        "rate_hz": rate_hz,
        "joints": joints,
    }
    path = folder / f"{rate_hz:g}.yaml"
    path.write_text(yaml.safe_dump(fields))
    command = [sys.executable, "-m", "vla_accel_ros.nodes.trajectory", "--ros-args", "-p", "autostart:=true"]
    with Operator(Contract.load(path)) as operator:
        robot = Robot(operator, tuple(joints))
        log = (folder / "log.txt").open("ab")
        node = subprocess.Popen(
            [*command, "-p", f"contract:='{path}'"],
            env=process_environment({"XDG_STATE_HOME": str(folder)}),
            stdout=log,
            stderr=log,
        )
        try:
            operator.wait(lambda: len(robot.received) > 2 * rate_hz, 60.0, "commands")
            first, used_s, since = len(robot.received), cpu_s(node.pid), time.monotonic()
            operator.wait(lambda: time.monotonic() > since + seconds, seconds + 10.0, "end")
            used_s, passed_s = cpu_s(node.pid) - used_s, time.monotonic() - since
            received = robot.received[first:]
        finally:
            node.terminate()
            node.wait(20.0)
            log.close()
        top = np.array([joint.velocity for joint in operator.contract.joints if joint.name in joints])
    times = np.array([at for at, _ in received])
    steps = np.abs(np.diff([position for _, position in received], axis=0)).max(axis=0)
    gaps_ms = np.diff(times) * 1e3
    return {
        "rate_hz": rate_hz,
        "delivered_hz": round(len(received) / passed_s, 1),
        "gap_p50_ms": round(float(np.quantile(gaps_ms, 0.5)), 2),
        "gap_p99_ms": round(float(np.quantile(gaps_ms, 0.99)), 2),
        "gap_max_ms": round(float(gaps_ms.max()), 1),
        "step": round(float((steps / (top * 2 / rate_hz)).max()), 2),
        "cpu_percent": round(100 * used_s / passed_s, 1),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="per rate (default: %(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 250.0, 500.0], help="Hz")
    arguments = parser.parse_args()
    domain, lock = graph.claim_domain()
    graph.enter(graph.graph_environment(domain))
    with lock, tempfile.TemporaryDirectory() as folder:
        rows = [measure(rate_hz, arguments.seconds, Path(folder)) for rate_hz in arguments.rates]
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{value:g}" for value in row.values()) + " |")
    RESULT.write_text(json.dumps({"rates": rows, **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
