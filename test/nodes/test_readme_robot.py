"""The commands of README.md to a running robot, as they are printed.

The robot is the simulated arm in the namespace left_arm, with a home and a policy of random weights. BAG is
what its recorder wrote, DIR a folder of the test. Of `ros2 service call` the service is called that it names,
with the type that it names, since the Python package index has no ros2.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from readme_commands import inline, run, starting_with
from running import NodeProcess
from stack import Stack, wait_for_recorder
from stand_ins import ARM, write_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract

HOME = dict(zip(ARM, (0.0, 0.0, 0.8, 0.3, 0.0)))
UPPER = {"shoulder_lift": 0.2, "elbow_flex": 2.0}
"""Random weights lead the arm anywhere within limits; from further down the way home is through the table."""


def above_the_table() -> list[dict[str, Any]]:
    """The simulated arm's joints, as a contract has them, within UPPER."""
    joints = yaml.safe_load(Path(demo_contract()).read_text())["joints"]
    return [{**joint, "upper": UPPER.get(joint["name"], joint["upper"])} for joint in joints]


def test_a_robot_is_told_asked_stopped_recorded_and_replayed(
    start: Callable[..., NodeProcess], tmp_path: Path, ros_domain: int
) -> None:
    arm = {"topic": "arm_controller/joint_trajectory"}
    file = write_contract(tmp_path, arm, home=HOME, joints=above_the_table())
    parameters: dict[str, Any] = {"contract": str(file)}
    inference = {"answer_tokens": 8, **parameters}
    stack = Stack(start, tmp_path, "left_arm", inference=inference, **parameters)
    recorder = start("recorder", "left_arm", autostart=True, record_dir=str(tmp_path / "bags"), **parameters)
    with Operator(Contract.load(file), "left_arm") as operator:
        wait_for_recorder(operator)
        for command in starting_with("vla say", "vla ask"):
            assert run(f"{command} --timeout 120", tmp_path)
        operator.wait(lambda: operator.sent and len(operator.chunks) > 10, 180.0, "chunks and trajectories")
        assert recorder.end() == 0  # what it has is replayed as slowly as it was recorded
        (doctor,) = [code for code in inline() if code.startswith("vla doctor --namespace")]
        assert "inference" in run(f"{doctor} || true", tmp_path)
        stop(operator)
    for process in (stack.inference, stack.trajectory, stack.robot):
        process.end()
    (bag,) = (tmp_path / "bags").iterdir()
    for command in starting_with("vla replay", "vla export"):
        run(command, tmp_path, BAG=bag, DIR=tmp_path / "dataset")
    assert (tmp_path / "dataset" / "meta").is_dir()


def stop(operator: Operator) -> None:
    """The services, the first of which stops it."""
    for command in starting_with("ros2 service call"):
        _, _, _, name, kind = shlex.split(command)
        package, _, service = kind.split("/")
        service_type = getattr(import_module(f"{package}.srv"), service)
        answer = operator.call(service_type, name, service_type.Request(), 60.0, once=True)
        assert answer.success, f"{command}: {answer.message}"
