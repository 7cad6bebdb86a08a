"""Chunks by shared memory, 480 a second, as controllers get them: within limits, stopped as by the topic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from builders import JOINTS
from chunk_writer import FAR, INFERENCE, NEAR, RATE_HZ, Writer, assert_no_leap, reach, sent, wait_until_still
from chunks import Policy
from running import NodeProcess
from stand_ins import Arm, write_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.segment import segment_path

Launched = Callable[..., NodeProcess]


@pytest.fixture
def kind() -> dict[str, object]:
    """The one controller that has all joints."""
    return {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": RATE_HZ}


@pytest.fixture
def contract(tmp_path: Path, kind: dict[str, object], joints: list[str]) -> Contract:
    joint_fields = yaml.safe_load(demo_contract().read_text())["joints"]
    loose = [{**joint, "following_error": "off"} for joint in joint_fields]
    controllers = [{**kind, "joints": joints}]
    return Contract.load(write_contract(tmp_path, {}, controllers=controllers, joints=loose, home=None))


@pytest.fixture
def joints() -> list[str]:
    return ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


@pytest.fixture
def writer(operator: Operator, tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(operator, tmp_path)
    yield writer
    writer.kill()
    segment_path(writer.name).unlink(missing_ok=True)


@pytest.fixture
def launched(start: Callable[..., NodeProcess], tmp_path: Path) -> Launched:
    def launched(**parameters: object) -> NodeProcess:
        path = str(tmp_path / "contract.yaml")
        return start("trajectory", autostart=True, contract=path, **{"lead_s": 0.01, **parameters})

    return launched


def test_a_writer_is_followed_is_killed_and_the_next_is_followed(
    operator: Operator, contract: Contract, arm: Arm, writer: Writer, launched: Launched, joints: list[str]
) -> None:
    assert len(joints) == JOINTS
    begin = arm.array(joints)
    writer.start(NEAR)
    node = launched()
    reach(operator, arm, joints, NEAR)
    operator.wait(
        lambda: (
            "trajectory: chunks" in operator.diagnostics
            and operator.diagnostics["trajectory: chunks"].message == f"by the slot of {INFERENCE}"
        ),
        90.0,
        "word of the slot",
    )
    writer.lead(FAR)
    operator.wait(lambda: np.abs(arm.array(joints) - NEAR).max() > 0.2, 90.0, "arm on its way")
    writer.kill()
    node.wait_for_log("the chunk slot is no longer used: the process that wrote chunk slot ")
    line = node.wait_for_log("stopping: chunk is")
    assert "; the process that wrote chunk slot" in line.partition("stopping: ")[2]
    wait_until_still(operator, arm, joints)
    node.wait_for_log("holding")
    count = len(arm.commands)
    operator.wait(lambda: len(arm.commands) > count + 20, 90.0, "commands that hold")
    assert not np.ptp(sent(arm, joints)[count:], axis=0).any()  # what the dead one left is not followed
    writer.start(FAR)
    reach(operator, arm, joints, FAR)
    assert_no_leap(arm, joints, begin, contract)


def test_a_slot_that_is_damaged_stops_the_arm_and_the_topic_takes_over(
    operator: Operator, contract: Contract, arm: Arm, writer: Writer, launched: Launched, joints: list[str]
) -> None:
    begin = arm.array(joints)
    writer.start(NEAR)
    node = launched()
    operator.wait(lambda: np.abs(arm.array(joints) - begin).max() > 0.05, 120.0, "arm on its way")
    os.truncate(segment_path(writer.name), 100)
    node.wait_for_log("the chunk slot is no longer used: slot ")
    node.wait_for_log("stopping: chunk is")
    wait_until_still(operator, arm, joints)
    writer.kill()
    policy = Policy(operator)
    policy.goal = FAR
    operator.wait(
        policy.drives(lambda: np.abs(arm.array(joints) - FAR).max() < 0.02), 120.0, "arm at the topic's goal"
    )
    assert "chunks come from action_chunk" in node.log
    assert_no_leap(arm, joints, begin, contract)
