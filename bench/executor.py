"""What a message costs the thread that spins: the nodes' executor beside rclpy's own two.

    python bench/executor.py [--seconds S]

One process sends joint states of seven joints at 500 Hz over real DDS; another runs a lifecycle node with the
subscriptions of `inference`, and one more that counts them. CPU is that of the spinning thread for each
message, in ms, of which the node's own work is the same for all; `late_ms` is from the stamp to the callback.
The events executor is rclpy.experimental's: `returns` says whether its `spin` ends when a callback shuts the
context down. If it does not, the receiver is killed after END_S. Run it on each distribution
(make venv DISTRO=...): writes bench/results/executor_DISTRO.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ingest
import numpy as np

from vla_accel_ros.nodes.running.environment import process_environment
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running.graph import claim_domain

RESULTS = Path(__file__).parent / "results"
RATE_HZ, JOINTS = 500, 7
END_S = 20.0


def executor_of(kind: str) -> Any:
    """One of the three executors."""
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.experimental.events_executor import EventsExecutor

    from vla_accel_ros.nodes.running.executor import DirectExecutor

    return {"direct": DirectExecutor, "rclpy": SingleThreadedExecutor, "events": EventsExecutor}[kind]()


def send(seconds: float) -> None:
    """Publish joint states until seconds after somebody subscribed."""
    import rclpy
    from sensor_msgs.msg import JointState

    from vla_accel_ros.nodes import qos

    rclpy.init()
    node = rclpy.create_node("driver")
    publisher = node.create_publisher(JointState, "joint_states", qos.SENSOR)
    message = JointState(name=[f"joint_{i}" for i in range(JOINTS)], position=[0.0] * JOINTS)
    while publisher.get_subscription_count() == 0:
        time.sleep(0.01)
    begin = time.monotonic()
    for count in range(int((seconds + 5.0) * RATE_HZ)):
        message.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(message)
        time.sleep(max(0.0, begin + (count + 1) / RATE_HZ - time.monotonic()))
    rclpy.shutdown()


def receive(kind: str, seconds: float) -> None:
    """Spin until seconds of messages have come; prints a row."""
    import rclpy
    from rclpy.executors import ExternalShutdownException
    from sensor_msgs.msg import JointState

    from vla_accel_ros.nodes import qos

    contract = ingest.contract_of("raw")
    node, unused = ingest.receiver(contract, Ingest(contract))
    unused.remove_node(node)
    late_ms: list[float] = []
    cpu_s: list[float] = []

    def on_joints(message: JointState) -> None:
        stamp_ns = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        late_ms.append((node.get_clock().now().nanoseconds - stamp_ns) * 1e-6)
        cpu_s.append(time.thread_time())
        if len(late_ms) == int(seconds * RATE_HZ):
            rclpy.shutdown()

    node.create_subscription(JointState, "joint_states", on_joints, qos.SENSOR)
    executor = executor_of(kind)
    executor.add_node(node)
    with suppress(ExternalShutdownException):
        executor.spin()
    row = {
        "messages": len(late_ms),
        "cpu_ms": round((cpu_s[-1] - cpu_s[0]) * 1e3 / (len(cpu_s) - 1), 3),
        "late_ms": {f"p{q}": round(float(np.percentile(late_ms, q)), 3) for q in (50, 99)},
        "returns": True,
    }
    print(json.dumps(row), flush=True)


def measure(kind: str, seconds: float, domain: int) -> dict[str, Any]:
    """One executor, with a sender of its own."""
    environment = process_environment(
        {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "OMP_NUM_THREADS": "1"}
    )
    command = [sys.executable, __file__, "--seconds", str(seconds)]
    sender = subprocess.Popen([*command, "--send"], env=environment)
    receiver = subprocess.Popen(
        [*command, "--receive", kind], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        output, _ = receiver.communicate(timeout=seconds + END_S)
        return {"executor": kind, **json.loads(output)}
    except subprocess.TimeoutExpired:
        return {"executor": kind, "returns": False}
    finally:
        for process in (receiver, sender):
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--send", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--receive", default="", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.send:
        send(wanted.seconds)
    elif wanted.receive:
        receive(wanted.receive, wanted.seconds)
    else:
        domain, lock = claim_domain()
        load = os.getloadavg()[0]
        rows = [measure(kind, wanted.seconds, domain) for kind in ("direct", "rclpy", "events")]
        distro = "jazzy" if version("ros-rclpy").startswith("7.") else "kilted"
        result = {"rate_hz": RATE_HZ, "load": round(load, 2), "rows": rows, **provenance()}
        path = RESULTS / f"executor_{distro}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(rows, indent=1))
        lock.close()


if __name__ == "__main__":
    main()
