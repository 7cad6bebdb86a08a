"""Time from a sample of a force sensor to the command that was made with it.

    python bench/force.py [--seconds N] [--rate HZ] [--priorities P ...]

The trajectory node in its own process, with a forward_command controller at the sensor's rate, follows a
reference by chunks (10 Hz) and joint states (100 Hz). A timer of its executor makes garbage in cycles 20
times a second, beside 200,000 live objects. A third process is the sensor: it writes a slot of shared memory,
or publishes WrenchStamped, and reports a contact of 14 N (the limit is 10 N) for 0.3 s every 3 s. *command*:
from a sample's stamp to the publication of that tick's command, for every tick with a new sample. *reaction*:
from the first sample of each contact to the publication of the first braking command, including the median of
three and the low-pass filter (100 Hz: 1.6 ms). Prints a table and writes bench/results/force.json, with the
load of the machine.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from commands import TOPIC, Robot
from geometry_msgs.msg import WrenchStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.force.guard import Reaction, Why
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract, process_environment
from vla_accel_ros.nodes.trajectory.node import TrajectoryNode
from vla_accel_ros.sensing.force_slot import ForceWriter
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph

RESULT = Path(__file__).parent / "results" / "force.json"
WRENCH_TOPIC = "wrist/wrench"
CONTACT_EVERY_S, CONTACT_S, CONTACT_N = 3.0, 0.3, 14.0
KEPT, GARBAGE, GARBAGE_HZ = 200_000, 5_000, 20.0


def write_contract(folder: Path, rate_hz: float, slot: str) -> Path:
    """The simulated arm's contract, with a streamed arm and a force sensor. slot: its name, empty for a
    topic."""
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    joints = fields["controllers"][0]["joints"]
    streamed = {"topic": TOPIC, "kind": "forward_command", "rate_hz": rate_hz, "joints": joints}
    fields["controllers"][0] = streamed
    for joint in fields["joints"]:
        joint["velocity"] = 30.0  # late joint states on a busy machine are not a broken encoder
    source = {"slot": slot} if slot else {"topic": WRENCH_TOPIC}
    force_n, torque_nm = {"yields": 10, "stops": 100}, {"yields": 2, "stops": 5}
    wrench = {**source, "rate_hz": rate_hz, "max_age_s": 0.3, "force_n": force_n, "torque_nm": torque_nm}
    fields["force"] = {"wrench": wrench, "retreat": {"rest_s": 0.2, "most": 1000}}
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def _wait_for_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def run_sensor(rate_hz: float, slot: str, out: Path) -> None:
    """The sensor's process, until its standard input ends; then writes when contacts began."""
    over, began, k = threading.Event(), list[int](), 0
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    if slot:
        writer = ForceWriter(slot)
    else:
        rclpy.init()
        node = rclpy.create_node("wrist_sensor")
        publisher, message = node.create_publisher(WrenchStamped, WRENCH_TOPIC, qos.SENSOR), WrenchStamped()
    first_s = due_s = time.monotonic()
    touching = False
    while not over.is_set():
        due_s = max(due_s + 1.0 / rate_hz, time.monotonic() - 0.01)
        time.sleep(max(due_s - time.monotonic(), 0.0))
        k += 1
        passed_s = due_s - first_s
        was, touching = touching, passed_s > 5.0 and passed_s % CONTACT_EVERY_S < CONTACT_S
        sample = (0.01 * (k % 7), 0.0, CONTACT_N if touching else 0.0, 0.0, 0.0, 0.0)
        now_ns = time.time_ns()
        if touching and not was:
            began.append(now_ns)
        if slot:
            writer.write(sample, now_ns)
        else:
            message.wrench.force.x, message.wrench.force.z = sample[0], sample[2]
            convert.set_stamp(message.header.stamp, now_ns)
            publisher.publish(message)
    out.write_text(json.dumps({"began_ns": began, "samples": k}))


def run_node(out: Path) -> None:
    """The trajectory node with its load, until its standard input ends; then writes the latencies."""
    over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(over,), daemon=True).start()
    kept = [{"k": [k]} for k in range(KEPT // 2)]
    rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    sys.setswitchinterval(SWITCH_S)  # as in nodes/running/process.py, which otherwise runs a node
    node, reacted_ns = TrajectoryNode(), list[int]()
    node.on_configured, node.free_memory = keep_loaded, gc.unfreeze
    executor = SingleThreadedExecutor()
    executor.add_node(node)

    def litter() -> None:
        for _ in range(GARBAGE):
            ring: list[Any] = [[]]
            ring[0].append(ring)

    node.create_timer(1.0 / GARBAGE_HZ, litter)
    while not node.active and not over.is_set():
        executor.spin_once(timeout_sec=0.1)
    assert node._motion is not None and node._motion.reflexes is not None
    reflexes, commands = node._motion.reflexes, node._motion.robot.outputs
    react, reflexes.latencies_ns = commands.react, deque(maxlen=1_000_000)

    def timed(reaction: Reaction) -> None:
        react(reaction)
        if reaction.why is Why.CONTACT:
            reacted_ns.append(time.time_ns())

    commands.react = timed  # type: ignore[method-assign]
    while not over.is_set():
        executor.spin_once(timeout_sec=0.1)
    out.write_text(json.dumps({"latencies_ns": list(reflexes.latencies_ns), "reacted_ns": reacted_ns}))
    node.end()
    assert len(kept) == KEPT // 2


def measure(source: str, rate_hz: float, seconds: float, priority: int, folder: Path) -> dict[str, Any]:
    """One source of samples: slot or topic."""
    slot = f"bench_force_{os.getpid()}" if source == "slot" else ""
    contract = Contract.load(write_contract(folder, rate_hz, slot))
    environment = process_environment({"XDG_STATE_HOME": str(folder)})
    arguments = ["--rate", str(rate_hz), "--slot", slot]
    parameters = ["-p", "autostart:=true", "-p", f"force_priority:={priority}"]
    parameters += ["-p", f"contract:='{folder / 'contract.yaml'}'"]
    programs = {
        "sensor": [*arguments, "--run", "sensor", "--out", str(folder / "sensor.json")],
        "node": ["--run", "node", "--out", str(folder / "node.json"), "--ros-args", *parameters],
    }
    with Operator(contract) as operator, (folder / "log.txt").open("ab") as log:
        robot = Robot(operator, contract.controllers[0].joints, depth=1, scale=0.3)
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *more],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            for more in programs.values()
        ]
        try:
            operator.wait(lambda: len(robot.received) > rate_hz, 60.0, "commands")
            count, since_s = len(robot.received), time.monotonic()
            operator.wait(lambda: time.monotonic() > since_s + seconds, seconds + 10.0, "end")
            delivered_hz = (len(robot.received) - count) / (time.monotonic() - since_s)
        finally:
            for process in started:
                process.communicate(b"", 20.0)
    told = json.loads((folder / "sensor.json").read_text())
    found = json.loads((folder / "node.json").read_text())
    after = [[at - began for at in found["reacted_ns"] if at > began] for began in told["began_ns"]]
    reactions_ms = np.array([late[0] for late in after if late and late[0] < CONTACT_S * 1e9]) * 1e-6
    latencies_ms = np.array(found["latencies_ns"]) * 1e-6
    return {
        "source": source,
        "rate_hz": rate_hz,
        "force_priority": priority,
        "commands": len(latencies_ms),
        "received_hz": round(delivered_hz, 1),
        **_quantiles("command", latencies_ms),
        "commands_late_percent": round(100 * float((latencies_ms > 2.0).mean()), 2),
        "contacts": len(told["began_ns"]),
        "reactions": len(reactions_ms),
        **_quantiles("reaction", reactions_ms),
        "load_before": os.getloadavg(),
    }


def _quantiles(what: str, values_ms: np.ndarray) -> dict[str, float]:
    if not len(values_ms):
        return {}
    p50, p99, most = np.quantile(values_ms, (0.5, 0.99, 1.0))
    return {
        f"{what}_p50_ms": round(float(p50), 3),
        f"{what}_p99_ms": round(float(p99), 3),
        f"{what}_max_ms": round(float(most), 3),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="per source (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1000.0, help="of sensor and controller [Hz]")
    parser.add_argument("--sources", nargs="+", choices=("slot", "topic"), default=["slot", "topic"])
    parser.add_argument(
        "--priorities", nargs="+", type=int, default=[0, 50], help="force_priority of the node"
    )
    parser.add_argument("--run", choices=("sensor", "node"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slot", default="", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.run == "sensor":
        run_sensor(options.rate, options.slot, options.out)
        return
    if options.run == "node":
        run_node(options.out)
        return
    domain, lock = graph.claim_domain()
    graph.enter(graph.graph_environment(domain))
    rows = []
    with lock:
        for source, priority in itertools.product(options.sources, options.priorities):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(source, options.rate, options.seconds, priority, Path(folder)))
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row.get(name, "")) for name in names) + " |")
    RESULT.write_text(json.dumps({"sources": rows, "load": os.getloadavg(), **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
