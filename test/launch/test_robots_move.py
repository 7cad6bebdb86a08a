"""Each robot's launch file, to motion: its driver and our nodes start, and every joint moves in limits.

The driver is a stand-in with the published names (bench/robots) in a package that the launch file finds.
Where there is a `ros2`, it launches; else launcher.py does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from terminal import launched
from test_robot_launch_files import CONTRACTS, driver_file, install_drivers, path

from robots.policies import write_policy
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import share_path

ROOT = Path(__file__).resolve().parents[2]
SPREAD, MOVED = 0.002, 0.002
"""Of a joint's range: the policies' actions, which no contract may find too fast, and what is motion."""
DRIVERS = {
    "ur": ("ur_robot_driver", "ur_control.launch.py", "ur5e"),
    "franka": ("franka_bringup", "franka.launch.py", "franka"),
    **{name: ("arms", "arms.launch.py", name) for name in ("so101", "so101_bimanual", "aloha")},
}
"""Robot -> package and launch file of its driver, and its name in bench/robots."""
PARAMETERS = """
inference: {ros__parameters: {steps: 2, language_hz: 0.0}}
trajectory: {ros__parameters: {lead_s: 0.1}}
"""


def command(robot: str, contract: Contract, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What launches a robot with its driver. folder: has the model; gets the packages of others."""
    package, file, driver = DRIVERS[robot]
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "")
    install_drivers(folder, monkeypatch)
    monkeypatch.setenv("AMENT_PREFIX_PATH", os.pathsep.join(filter(None, (str(folder), prefixes))))
    stand_in = f"exec {sys.executable} {ROOT}/bench/robots/running.py {driver} calm"
    for name, program, line in ((package, file, stand_in), ("controller_manager", "spawner", "exit 0")):
        (folder / "share/ament_index/resource_index/packages" / name).touch()
        executable = folder / "lib" / name / program
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\n{line}\n")
        executable.chmod(0o755)
    parameters = folder / "params.yaml"
    parameters.write_text(PARAMETERS)
    words = [str(path(robot)), f"model:={folder / 'model'}", f"params_file:={parameters}"]
    if package == "arms":
        words.append(f"driver:={driver_file(folder / 'share' / package / 'launch', package, file, '')}")
    else:
        words.append("robot_ip:=10.0.0.2")
    (folder / "frames").mkdir()
    cv2.imwrite(str(folder / "frames" / "0.png"), np.full((48, 64, 3), 90, np.uint8))
    cameras = [camera.name for camera in contract.cameras if camera.transport == "ring"]  # of our own node
    words += [f"{name}:={folder / 'frames'}" for name in cameras]
    if shutil.which("ros2"):
        return shlex.join(["ros2", "launch", *words])
    launcher = [sys.executable, str(ROOT / "test" / "launch" / "launcher.py"), words[0], str(folder / "ids")]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'test' / 'launch'}")
    return shlex.join([*launcher, *words[1:]])


@pytest.mark.parametrize("robot", DRIVERS)
def test_robot_moves_within_its_limits_from_its_launch_file(
    robot: str, ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = Contract.load(share_path(f"config/contracts/{CONTRACTS[robot]}.yaml"))
    write_policy(tmp_path / "model", contract, SPREAD)
    ranges = np.array([joint.upper - joint.lower for joint in contract.joints])
    with (
        launched(command(robot, contract, tmp_path, monkeypatch)) as terminal,
        Operator(contract) as operator,
    ):

        def positions() -> np.ndarray:
            assert terminal.process.poll() is None, terminal.printed
            return np.array([state.positions for state in operator.joints])

        def moved() -> bool:
            return bool((np.ptp(positions(), axis=0) > MOVED * ranges).all())

        try:
            operator.wait(lambda: len(positions()), 90.0, "joint states of the driver")
            operator.instruct("reach the red block")
            operator.wait(moved, 120.0, "motion of every joint")
        except TimeoutError as error:
            pytest.fail(f"{error}: {np.ptp(positions(), axis=0) / ranges}\n{terminal.printed}")
        states = operator.joints
    times_s = 1e-9 * np.array([state.stamp_ns - states[0].stamp_ns for state in states])
    measured = np.array([state.positions for state in states])
    assert "a controller refused" not in terminal.printed, terminal.printed
    limits = {name: [getattr(joint, name) for joint in contract.joints] for name in ("lower", "upper")}
    assert (limits["lower"] <= measured.min(axis=0)).all() and (measured.max(axis=0) <= limits["upper"]).all()
    speeds = np.diff(measured, axis=0) / np.diff(times_s)[:, None]
    # A second divided difference of what a controller executes is one of its accelerations.
    accelerations = 2.0 * np.diff(speeds, axis=0) / (times_s[2:] - times_s[:-2])[:, None]
    executed = [c.joints for c in contract.controllers if c.kind == "joint_trajectory"]
    for column, joint in enumerate(contract.joints):
        if any(joint.name in joints for joints in executed):
            assert np.abs(speeds[:, column]).max() <= 1.001 * joint.velocity, joint.name
            assert np.abs(accelerations[:, column]).max() <= 1.001 * joint.acceleration, joint.name
