"""Whether the recorder loses a frame: two cameras of 640x480 at 30 Hz and joints at 200 Hz into a bag.

    python bench/recording.py [--seconds S]

Two processes over real DDS: one publishes like the camera node and a driver, the other is the recorder node
itself. The sender reports every stamp that it sent, which is then looked up in the bag: "lost" are a stream's
stamps between the first and the last recorded one that are not in the bag. CPU is in percent of a core, of
the recording process including its start; "load" is how many cores were busy before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from run import Bench, Given, Row, main
from vla_accel_ros.nodes.running.environment import demo_contract, process_environment
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sim.kinematics import JOINTS
from vla_accel_ros.tools.running.graph import claim_domain

TOPICS = {"raw": "image_raw", "ring": "frame"}
CAMERAS = ("front", "wrist")
WIDTH, HEIGHT, CAMERA_HZ, JOINT_HZ = 640, 480, 30, 200


def contract_of(transport: str, folder: Path) -> Path:
    """The simulated arm's, its cameras by this transport."""
    data = yaml.safe_load(demo_contract().read_text())
    for name, camera in data["cameras"].items():
        camera |= {"topic": f"camera/{name}/{TOPICS[transport]}", "transport": transport}
    file = folder / "contract.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def send(transport: str, seconds: float) -> None:
    """Publish cameras and joints at their rates, once there are subscribers; prints the stamps of each."""
    import rclpy
    from sensor_msgs.msg import JointState

    from vla_accel_ros.nodes import qos
    from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs
    from vla_accel_ros.nodes.messages import convert

    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    rclpy.init()
    node = rclpy.create_node("robot")
    ring = transport == "ring"
    cameras = {
        name: CameraOutput(node, name, Outputs(ring=True, image_hz=0.0) if ring else Outputs())
        for name in CAMERAS
    }
    publisher, joints = node.create_publisher(JointState, "joint_states", qos.SENSOR), JointState()
    joints.name, joints.position = list(JOINTS), [0.0] * len(JOINTS)
    topics = ["joint_states", *(f"camera/{name}/{TOPICS[transport]}" for name in CAMERAS)]
    while any(node.count_subscribers(topic) == 0 for topic in topics):
        time.sleep(0.01)
    sent: dict[str, list[int]] = {name: [] for name in (*CAMERAS, "joint_states")}
    begin, ticks = time.monotonic(), JOINT_HZ * 3  # a common multiple of both rates
    for tick in range(int(seconds * ticks)):
        if tick % (ticks // JOINT_HZ) == 0:
            time.sleep(max(0.0, begin + tick / ticks - time.monotonic()))
            sent["joint_states"].append(time.time_ns())
            convert.set_stamp(joints.header.stamp, sent["joint_states"][-1])
            publisher.publish(joints)
        if tick % (ticks // CAMERA_HZ) == 0:
            for name, camera in cameras.items():
                sent[name].append(time.time_ns())
                with camera.frame(sent[name][-1], HEIGHT, WIDTH) as place:
                    np.copyto(place, pixels)
    elapsed = time.monotonic() - begin
    time.sleep(1.0)  # what has been sent arrives
    print(json.dumps({"sent": sent, "elapsed": elapsed}), flush=True)
    for camera in cameras.values():
        camera.close()
    node.destroy_node()
    rclpy.shutdown()


def recorded(bag: Bag) -> dict[str, list[int]]:
    """The stamps in the bag by stream."""
    stamps: dict[str, list[int]] = {name: [] for name in (*CAMERAS, "joint_states")}
    for entry in bag.entries({"sensor_msgs/msg/Image", "sensor_msgs/msg/JointState"}):
        stream = next(name for name in stamps if f"/{name}" in entry.topic)
        stamp = bag.decode(entry).header.stamp
        stamps[stream].append(stamp.sec * 1_000_000_000 + stamp.nanosec)
    return stamps


def compare(sent: list[int], kept: list[int]) -> dict[str, int]:
    """Counts of one stream; messages sent before the first recorded one are not lost."""
    between = [stamp for stamp in sent if kept and kept[0] <= stamp <= kept[-1]]
    return {
        "sent": len(sent),
        "recorded": len(kept),
        "lost": len(set(between) - set(kept)),
        "before_first": sum(1 for stamp in sent if not kept or stamp < kept[0]),
        "after_last": sum(1 for stamp in sent if kept and stamp > kept[-1]),
        "twice": len(kept) - len(set(kept)),
    }


def of_transport(transport: str, seconds: float, domain: int, folder: Path) -> dict[str, Any]:
    """Both processes, once."""
    environment = process_environment(
        {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "OMP_NUM_THREADS": "1"}
    )
    asked = {"contract": contract_of(transport, folder), "record_dir": folder, "autostart": "true"}
    node = [sys.executable, "-m", "vla_accel_ros.nodes.recorder", "--ros-args"]
    for name, value in asked.items():
        node += ["-p", f"{name}:={value}"]
    recorder = subprocess.Popen(node, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = [sys.executable, __file__, "--send", transport, "--seconds", str(seconds)]
    begin = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as sender:
        told = json.loads(sender.communicate()[0])
    used, elapsed = cpu_s(recorder.pid), time.monotonic() - begin
    recorder.send_signal(signal.SIGINT)
    recorder.wait(30)
    (path,) = (p for p in folder.iterdir() if p.is_dir())
    size = sum(file.stat().st_size for file in path.iterdir())
    kept = recorded(Bag(path))
    row = {
        "transport": transport,
        "streams": {name: compare(told["sent"][name], kept[name]) for name in kept},
        "mb_per_s": round(size / told["elapsed"] * 1e-6, 1),
        "cpu": round(100 * used / elapsed, 1),
    }
    shutil.rmtree(path)
    return row


def cpu_s(pid: int) -> float:
    """CPU time [s] of a process so far, including its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(given: Given) -> Iterator[Row]:
    """Each transport; or be one of the processes."""
    if given.send:
        given.file = None
        return send(given.send, given.seconds)
    domain, lock = claim_domain()
    with lock:
        for transport in TOPICS:
            with tempfile.TemporaryDirectory() as folder:
                yield of_transport(transport, given.seconds, domain, Path(folder))


def options(add: Callable[..., Any]) -> None:
    """For how long."""
    add("--seconds", type=float, default=30.0)
    add("--send", metavar="TRANSPORT", help=argparse.SUPPRESS)


BENCH = Bench("recording", measure, options, rows="rows", smoke="--seconds 2", starts_nodes=True)

if __name__ == "__main__":
    sys.exit(main(BENCH))
