"""README.md's launch commands by a real `ros2 launch`: the demo moves and says what may be typed next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from readme_commands import starting_with
from terminal import Terminal, launched

from vla_accel_ros.nodes.running.environment import demo_contract, demo_model

pytestmark = pytest.mark.launch
# The camera of README.md's third one is a device.
DEMO, BRINGUP = (
    next(command for command in starting_with("ros2 launch") if name in command)
    for name in ("demo.launch.py", "bringup.launch.py")
)

HOME = "{shoulder_pan: 0.0, shoulder_lift: 0.0, elbow_flex: 0.8, wrist_flex: 0.3, wrist_roll: 0.0}"


def typed(command: str) -> str:
    """What a command prints that is typed in another terminal; it must succeed."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120.0)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_demo_moves_and_what_it_says_may_be_typed_next_works(ros_domain: int) -> None:
    with launched(DEMO) as demo:
        demo.wait_for(r"network: ROS domain \d+ on this machine only \(localhost\): anyone, without a key")
        demo.wait_for("inference has it: 'reach the red block'")
        demo.wait_for("running: it follows chunks for this instruction")
        demo.wait_for(r"next, in another terminal.*\n")
        demo.wait_for(r"ros2 service call \S+ \S+\n")
        hints = re.findall(r"^ +((?:vla|ros2) .*)$", demo.printed, re.MULTILINE)
        assert len(hints) == 3, demo.printed
        for hint in hints:
            output = typed(f"{hint} --timeout 100" if hint.startswith("vla") else hint)
        assert "success=True" in output


def test_a_robot_is_brought_up_told_and_stopped(ros_domain: int, tmp_path: Path) -> None:
    contract = tmp_path / "robot.yaml"
    contract.write_text(
        re.sub(r"^home: .*$", f"home: {HOME}", demo_contract().read_text(), flags=re.MULTILINE)
    )
    command = BRINGUP.replace("/path/to/robot.yaml", str(contract))
    command = command.replace("/path/to/checkpoint", str(demo_model()))
    robot = Terminal("ros2 run vla_accel_ros sim_robot --ros-args -r __ns:=/left_arm")
    try:
        with launched(command) as bringup:
            bringup.wait_for("network: ROS domain")
            for command in starting_with("vla say", "vla ask"):
                typed(f"{command} --timeout 100")
            for command in starting_with("ros2 service call"):
                assert "success=True" in typed(command)
    finally:
        os.killpg(robot.process.pid, signal.SIGTERM)
        robot.process.wait(20.0)
