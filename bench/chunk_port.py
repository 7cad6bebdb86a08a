"""The high-rate path from the engine to the robot: the time of each part, and what a controller receives.

    python bench/chunk_port.py [--seconds S] [--chunks N] [--joints D ...]

Parts, in one process: milliseconds of CPU for one chunk of 50 actions, 480 chunks a second, in mode blend:
"write" (write a chunk record into the slot), "read" (read the newest record as a checked chunk), "update"
(join, limit and bound it in time: TrajectoryBuffer.update), "stream" (hand it to a forward_command stream).
Chunks follow a smooth motion; "noisy" ones are each NOISE_RAD off; "wild" ones ask for random positions over
the whole range.

Whole path, in three processes: one writes 480 chunks a second into the slot, one runs the trajectory node,
and this one is the controller of all joints, at 500 Hz. "write to follow" is from a chunk's stamp (when it
was written) to when the node follows it (LoopStats image_to_trajectory, the last 512); the command goes out
right after update and stream. "interval" is between the arrivals of two commands. CPU is the node's alone, in
% of one core.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from commands import cpu_s
from limits import Stopwatch, make_actions, make_limits
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from run import shown, write
from tables.forms import RESULTS
from tables.pages import fill
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.chunk_record import ChunkReader, ChunkWriter
from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.chunk_topic import slot_name
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract, process_environment
from vla_accel_ros.sensing.slot import SlotReader, SlotWriter
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running import graph
from vla_accel_ros.types import Chunk

TOPIC = "all_positions/commands"
CHUNKS_HZ, COMMANDS_HZ, HORIZON, STEP_S = 480, 500.0, 50, 1 / 30
LEAD_S, MAX_AGE_S, AGE_NS, NOISE_RAD = 0.005, 0.5, 30_000_000, 0.01
BEGIN_NS = 1_000_000_000_000
KINDS, PARTS = ("smooth", "noisy", "wild"), ("write", "read", "update", "stream")


def make_chunk(kind: str, rng: np.random.Generator, request: int, stamp_ns: int, joints: int) -> Chunk:
    """Return the chunk of this number of a stream."""
    limits = make_limits(joints)
    shape = "wild" if kind == "wild" else "typical"
    actions = make_actions(shape, rng, stamp_ns, HORIZON, STEP_S, limits)
    if kind == "noisy":
        actions += (NOISE_RAD * rng.normal(size=joints)).astype(np.float32)
    return Chunk(actions, stamp_ns, STEP_S, request, request, np.zeros(HORIZON, np.float32))


def parts(kind: str, joints: int, chunks: int) -> dict[str, Any]:
    """Measure one row of the first table."""
    rng, watch = np.random.default_rng(0), Stopwatch()
    names = tuple(f"joint_{i}" for i in range(joints))
    limits = make_limits(joints)
    records, reader = ChunkWriter(names, "/inference"), ChunkReader(names)
    writer = SlotWriter(f"bench-{os.getpid()}-{kind}-{joints}", records.most_bytes)
    slot = SlotReader(writer.name)
    buffer = TrajectoryBuffer(names, limits, lead_s=LEAD_S, max_age_s=MAX_AGE_S)
    buffer.reset(make_actions("typical", rng, BEGIN_NS - AGE_NS, 1, 0.0, limits)[0])
    stream = CommandStream(names, limits, 1 / COMMANDS_HZ)

    def write(chunk: Chunk) -> None:
        writer.write(records.record(chunk, chunk.actions), chunk.stamp_ns)

    def read() -> Chunk:
        entry = slot.newest()
        assert entry is not None
        return reader.chunk(entry.data)

    limited = 0
    for request in range(chunks):
        now_ns = BEGIN_NS + round(request * 1e9 / CHUNKS_HZ)
        chunk = make_chunk(kind, rng, request, now_ns - AGE_NS, joints)
        watch.time("write", partial(write, chunk))
        got = watch.time("read", read)
        sent = watch.time("update", partial(buffer.update, got, now_ns))
        assert sent is not None and buffer.report is not None
        watch.time("stream", partial(stream.follow, sent, now_ns))
        stream.tick(now_ns)
        limited += bool(buffer.report.limited)
    writer.close()
    return {"kind": kind, "joints": joints, "limited": round(limited / chunks, 2), **watch.table()}


def write_contract(folder: Path, joints: int) -> Path:
    """Write the simulated arm's contract with this many joints, all of one controller."""
    fields = yaml.safe_load(Path(demo_contract()).read_text())
    one = {"lower": -3.14, "upper": 3.14, "velocity": 1.57, "acceleration": 5.0, "action": "absolute"}
    fields["joints"] = [{"name": f"joint_{i}", **one, "following_error": "off"} for i in range(joints)]
    names = [joint["name"] for joint in fields["joints"]]
    controller = {"topic": TOPIC, "kind": "forward_command", "rate_hz": COMMANDS_HZ, "joints": names}
    fields["controllers"] = [controller]
    fields.pop("home", None)
    path = folder / f"{joints}.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def write_chunks(name: str, joints: int) -> None:
    """Write smooth chunks, stamped as they are written, until stdin ends."""
    names = tuple(f"joint_{i}" for i in range(joints))
    records, rng = ChunkWriter(names, "/inference"), np.random.default_rng(0)
    slot, due_s, request = SlotWriter(name, records.most_bytes), time.monotonic(), 0
    while not select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
        due_s, request = max(due_s + 1 / CHUNKS_HZ, time.monotonic() - 1 / CHUNKS_HZ), request + 1
        chunk = make_chunk("smooth", rng, request, time.time_ns(), joints)
        slot.write(records.record(chunk, chunk.actions), chunk.stamp_ns)
    slot.close()


def whole(joints: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure one row of the second table."""
    path = write_contract(folder, joints)
    command = [sys.executable, "-m", "vla_accel_ros.nodes.trajectory", "--ros-args"]
    for name, value in {"autostart": "true", "lead_s": LEAD_S, "contract": f"'{path}'"}.items():
        command += ["-p", f"{name}:={value}"]
    with Operator(Contract.load(path)) as operator, (folder / "log.txt").open("ab") as log:
        names = operator.contract.action_names
        position = make_actions(
            "typical", np.random.default_rng(0), time.time_ns(), 1, 0.0, make_limits(joints)
        )[0]
        state = {"position": position.astype(np.float64)}
        received: list[tuple[float, np.ndarray]] = []

        def on_command(message: Float64MultiArray) -> None:
            state["position"] = np.array(message.data)
            received.append((time.monotonic(), state["position"]))

        def tell() -> None:
            message = JointState(name=list(names), position=array("d", state["position"].tobytes()))
            convert.set_stamp(message.header.stamp, operator.now_ns())
            states.publish(message)

        node = operator.node
        states = node.create_publisher(JointState, "joint_states", qos.SENSOR)
        node.create_subscription(Float64MultiArray, TOPIC, on_command, 100)
        node.create_timer(0.01, tell, clock=Clock(clock_type=ClockType.STEADY_TIME))
        slot = SlotReader(slot_name(node))
        program = [sys.executable, __file__, "--engine", slot.name, "--joints", str(joints)]
        engine = subprocess.Popen(program, stdin=subprocess.PIPE)
        environment = process_environment({"XDG_STATE_HOME": str(folder)})
        trajectory = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            operator.wait(lambda: len(received) > 2 * COMMANDS_HZ, 60.0, "commands")
            first, written, used_s = len(received), number(slot), cpu_s(trajectory.pid)
            since = time.monotonic()
            operator.wait(lambda: time.monotonic() > since + seconds, seconds + 10.0, "end")
            used_s, passed_s = cpu_s(trajectory.pid) - used_s, time.monotonic() - since
            written, got = number(slot) - written, received[first:]
            ages = operator.loops["image_to_trajectory"]
            line = operator.diagnostics["trajectory: chunks"]
        finally:
            trajectory.terminate()
            trajectory.wait(20.0)
            engine.communicate()
    assert line.message.startswith("by the slot"), line.message
    gaps_ms = np.diff([at for at, _ in got]) * 1e3
    changes = np.abs(np.diff([where for _, where in got], axis=0)).max(axis=0)
    return {
        "joints": joints,
        "chunks_hz": round(written / passed_s, 1),
        "followed_hz": round(ages.measured_hz, 1),
        "commands_hz": round(len(got) / passed_s, 1),
        "write_to_follow_p50_ms": round(1e3 * ages.p50_s, 2),
        "write_to_follow_p99_ms": round(1e3 * ages.p99_s, 2),
        "interval_p50_ms": round(float(np.quantile(gaps_ms, 0.5)), 2),
        "interval_p99_ms": round(float(np.quantile(gaps_ms, 0.99)), 2),
        "interval_max_ms": round(float(gaps_ms.max()), 1),
        "step": round(float((changes / (make_limits(joints).velocity * 2 / COMMANDS_HZ)).max()), 2),
        "cpu_percent": round(100 * used_s / passed_s, 1),
    }


def number(slot: SlotReader) -> int:
    """Request number of the newest chunk, which grows by one with each."""
    entry = slot.newest()
    assert entry is not None
    return entry.number


def write_results(document: dict[str, Any]) -> None:
    """Write the results, and the page that shows them."""
    write(RESULTS / "chunk_port.json", document)
    fill()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of the whole (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=2000, help="of each part (default: %(default)s)")
    parser.add_argument("--joints", type=int, nargs="+", default=[7, 14])
    parser.add_argument("--print-only", action="store_true", help="write nothing")
    parser.add_argument("--engine", metavar="SLOT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        write_chunks(arguments.engine, *arguments.joints)
        return
    load = os.getloadavg()
    pieces = [parts(kind, joints, arguments.chunks) for kind in KINDS for joints in arguments.joints]
    domain, lock = graph.claim_domain()
    graph.enter(graph.graph_environment(domain))
    with lock, tempfile.TemporaryDirectory() as folder:
        rows = [whole(joints, arguments.seconds, Path(folder)) for joints in arguments.joints]
    document = {"parts": pieces, "whole": rows, "load_before": load, "load_after": os.getloadavg()}
    document |= provenance()
    for row in (*pieces, *rows):
        print(shown(row))
    if not arguments.print_only:
        write_results(document)


if __name__ == "__main__":
    main()
