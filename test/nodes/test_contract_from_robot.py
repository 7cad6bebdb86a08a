"""`vla contract make --from-robot` on stand-ins of drivers: a UR5e with a controller manager, and without."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
from builders import make_checkpoint, make_config, make_stats

from robots.drivers import COLOURS, RobotDriver, ur5e
from robots.running import RunningDriver
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.contract.write import fill

OWN = {"acceleration": "5.0", "action": "absolute", "step_dt_s": "0.05", "topic": "topic_{}"}
MAP = ("--map", "base=base_0_rgb", "wrist=left_wrist_0_rgb")


def small(robot: RobotDriver) -> RobotDriver:
    """Slower and smaller, as much as a busy machine delivers."""
    cameras = tuple(replace(camera, size=(48, 64), rate_hz=10.0) for camera in robot.cameras)
    return replace(robot, rate_hz=50.0, cameras=cameras)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = make_checkpoint(tmp_path / "model", make_config())
    (file,) = folder.rglob("norm_stats.json")
    file.write_text(json.dumps({"norm_stats": {"state": make_stats(0, 7), "actions": make_stats(1, 7)}}))
    return folder


def made(model: Path, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    command = [
        "contract",
        "make",
        "--from-robot",
        "--model",
        str(model),
        "--files",
        str(folder / "files"),
        *words,
    ]
    assert main(command) == 0
    return capsys.readouterr().out


def test_contract_from_a_ur5e_is_that_of_the_examples_but_for_what_only_its_user_knows(
    model: Path, tmp_path: Path, ros_domain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = small(ur5e())
    with RunningDriver(robot):
        text = made(model, tmp_path, capsys, *MAP)
    (tmp_path / "robot.yaml").write_text(fill(text, OWN))
    contract, example = Contract.load(tmp_path / "robot.yaml"), robot.contract
    assert contract.joint_names == example.joint_names
    assert [(j.lower, j.upper, j.velocity) for j in contract.joints] == [
        (j.lower, j.upper, j.velocity) for j in example.joints
    ]
    assert set(contract.controllers) == set(example.controllers)
    for camera, expected in zip(contract.cameras, example.cameras, strict=True):
        assert (camera.name, camera.image) == (expected.name, expected.image)
        assert (camera.topic, camera.info) == (f"/{expected.topic}", f"/{expected.info}")
        assert camera.rate_hz == pytest.approx(10.0, rel=0.3)
    assert contract.joint_states.topic == "/joint_states"
    asked = set(re.findall(r"(\w+): \?\?\?", text))
    assert asked == {"acceleration", "action", "step_dt_s"}
    picture = cv2.imread(str(tmp_path / "files" / "base.png"))
    assert picture is not None and picture[0, 0, ::-1].tolist() == list(COLOURS)
    for idle in ("forward_velocity_controller", "16UC1"):
        assert idle in text


def test_contract_from_a_robot_without_controller_manager_asks_which_of_its_controllers_is_active(
    model: Path, tmp_path: Path, ros_domain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = replace(small(ur5e()), managed=False)
    with RunningDriver(robot):
        text = made(model, tmp_path, capsys, *MAP)
    (line,) = [line for line in text.splitlines() if "- topic: ???" in line]
    assert (
        "scaled_joint_trajectory_controller/joint_trajectory" in line
        and "/joint_trajectory_controller/" in line
    )
    (tmp_path / "robot.yaml").write_text(fill(text, OWN))
    gripper, _ = Contract.load(tmp_path / "robot.yaml").controllers
    assert (gripper.topic, gripper.kind) == ("gripper_position_controller/commands", "forward_command")


def test_contract_from_a_robot_in_a_namespace_is_relative_to_it(
    model: Path, tmp_path: Path, ros_domain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    robot = replace(small(ur5e()), namespace="/cell")
    with RunningDriver(robot):
        text = made(model, tmp_path, capsys, *MAP, "--namespace", "cell")
    (tmp_path / "robot.yaml").write_text(fill(text, OWN))
    contract, example = Contract.load(tmp_path / "robot.yaml"), robot.contract
    assert contract.joint_states.topic == "joint_states"
    assert {camera.topic for camera in contract.cameras} == {camera.topic for camera in example.cameras}
    assert set(contract.controllers) == set(example.controllers)


def test_contract_from_an_empty_graph_says_what_to_start(
    model: Path, tmp_path: Path, ros_domain: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contract", "make", "--from-robot", "--model", str(model), "--seconds", "0.5"]) == 2
    refusal = capsys.readouterr().err
    assert "driver" in refusal and "ROS_DOMAIN_ID" in refusal
