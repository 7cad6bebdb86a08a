"""A force sensor's thread makes the commands, and hundreds of chunks a second come by shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from chunk_writer import FAR, NEAR, RATE_HZ, Writer, assert_no_leap, passes, sent, wait_until_still
from force_driver import QUANTITIES, Sensor
from running import NodeProcess
from stand_ins import Arm, motion_of, write_contract

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.segment import segment_path

JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]
SLOT = f"wrist-beside-chunks-{os.getpid()}"


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    joint_fields = yaml.safe_load(demo_contract().read_text())["joints"]
    joints = [{**joint, "following_error": "off"} for joint in joint_fields]
    kind = {"topic": "arm_positions/commands", "kind": "forward_command", "rate_hz": RATE_HZ}
    wrench = {"slot": SLOT, "rate_hz": 1000, "max_age_s": 1.0, **QUANTITIES}
    force = {"wrench": wrench, "retreat": {"rest_s": 0.2}}
    controllers = [{**kind, "joints": JOINTS}]
    more = {"controllers": controllers, "joints": joints, "force": force}
    return Contract.load(write_contract(tmp_path, {}, home=None, **more))


@pytest.fixture
def sensor() -> Iterator[Sensor]:
    sensor = Sensor(SLOT)
    yield sensor
    sensor.over = True
    sensor.join()


@pytest.fixture
def writer(operator: Operator, tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(operator, tmp_path)
    yield writer
    writer.kill()
    segment_path(writer.name).unlink(missing_ok=True)


def test_they_are_followed_give_way_to_a_contact_and_end_with_their_writer(
    operator: Operator,
    contract: Contract,
    arm: Arm,
    sensor: Sensor,
    writer: Writer,
    start: Callable[..., NodeProcess],
    tmp_path: Path,
) -> None:
    begin = arm.array(JOINTS)
    path = str(tmp_path / "contract.yaml")
    node = start("trajectory", autostart=True, contract=path, chunks_from="slot", lead_s=0.01)
    writer.start(NEAR)
    operator.wait(lambda: np.abs(arm.array(JOINTS) - begin).max() > 0.25, 120.0, "motion")
    sensor.force = 14.0
    operator.wait(lambda: "gives way: force is 1" in node.log, 60.0, "word of it")
    sensor.force = 1.0
    operator.wait(lambda: np.abs(arm.array(JOINTS) - NEAR).max() < 0.02, 120.0, "arm at the goal")
    writer.lead(FAR)
    operator.wait(lambda: np.abs(arm.array(JOINTS) - NEAR).max() > 0.3, 120.0, "motion again")
    writer.kill()
    operator.wait(lambda: "has ended" in motion_of(operator), 60.0, "word of the writer's end")
    wait_until_still(operator, arm, JOINTS)
    position = arm.array(JOINTS)
    passes(operator, 0.5)
    np.testing.assert_allclose(sent(arm, JOINTS)[-1], position, atol=1e-6)
    assert_no_leap(arm, JOINTS, begin, contract)
