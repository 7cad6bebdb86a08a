"""The end of a process that launched the nodes, as `ros2 launch` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from faulting.making import Step
from faulting.robot import Robot
from vla_accel_ros.nodes.running.environment import LAUNCHER

# What a launch file does: its nodes are told who started them.
LAUNCH = """
import json, os, subprocess, sys
from vla_accel_ros.nodes.running.environment import additional_environment
environment = {**os.environ, **additional_environment()}
started = [subprocess.Popen(command, env=environment) for command in json.loads(sys.argv[1])]
[process.wait() for process in started]
"""


def launched(robot: Robot) -> subprocess.Popen:
    """Run the two nodes as children of a process like `ros2 launch`, instead of our own."""
    for name in ("inference", "trajectory"):
        node = robot.processes[name].process
        node.send_signal(signal.SIGTERM)
        node.wait(20.0)
    commands = [
        [sys.executable, "-m", f"vla_accel_ros.nodes.{name}", "--ros-args", *robot.arguments(name)]
        for name in ("inference", "trajectory")
    ]
    log = (robot.folder / "launched.log").open("ab")
    kept = {name: value for name, value in robot.environment.items() if name != LAUNCHER}
    environment = {**kept, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, json.dumps(commands)], env=environment, stdout=log, stderr=log
    )


def launcher_ends(number: int) -> Step:
    """End the process that started the nodes."""

    def begin(robot: Robot) -> None:
        launcher = launched(robot)
        if not robot.moves_within(60.0):
            robot.asked(lambda: robot.operator.resume(2.0))
            robot.poll(lambda: robot.moves_within(5.0), 60.0, "motion by launched nodes")
        robot.began_ns = robot.relay.time_ns()
        launcher.send_signal(number)
        launcher.wait(20.0)
        time.sleep(3.0)
        robot.orphans = orphans(robot)

    return begin


def orphans(robot: Robot) -> list[int]:
    """End node processes of this contract that this bench did not start; returns them."""
    contract, ours = str(robot.folder), {node.process.pid for node in robot.processes.nodes}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in ours:
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace")
            except OSError:
                continue
            if "vla_accel_ros.nodes." in words and contract in words and "-c" not in words.split("\0")[1:2]:
                found.append(int(entry))
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found
