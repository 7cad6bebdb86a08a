"""Chunks by shared memory, 480 a second, as controllers get them: within limits, stopped as by the topic."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import yaml
from builders import JOINTS
from calling import call
from chunk_writer import (
    FAR,
    INFERENCE,
    NEAR,
    RATE_HZ,
    S,
    Writer,
    assert_no_leap,
    passes,
    reach,
    sent,
    wait_until_still,
)
from chunks import Policy
from running import NodeProcess
from stack import commanded_acceleration
from stand_ins import Arm, motion_of, write_contract
from std_srvs.srv import Trigger

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
    assert segment_path(writer.name).exists()
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


def test_what_a_dead_writer_left_before_the_node_began_moves_nothing(
    operator: Operator, arm: Arm, writer: Writer, launched: Launched
) -> None:
    writer.start(NEAR)
    writer.kill()
    assert segment_path(writer.name).exists()
    node = launched(chunks_from="slot")
    operator.wait(lambda: "living writer" in motion_of(operator), 90.0, "why nothing moves")
    assert not arm.commands and "running" not in node.log


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


def test_messages_of_the_writer_move_nothing_twice_and_those_of_another_node_stop_the_arm(
    operator: Operator, arm: Arm, tmp_path: Path, launched: Launched, joints: list[str]
) -> None:
    policy = Policy(operator)  # it tells of other goals, so that what it moved would show
    policy.goal = FAR
    writer, stranger = Writer(operator, tmp_path, operator.node.get_fully_qualified_name()), None
    try:
        writer.start(NEAR)
        node = launched()
        operator.wait(policy.drives(lambda: np.abs(arm.array(joints) - NEAR).max() < 0.02), 120.0, "goal")
        passed_ns = operator.now_ns() + S
        operator.wait(policy.drives(lambda: operator.now_ns() > passed_ns), 90.0, "messages")
        np.testing.assert_allclose(arm.array(joints), NEAR, atol=0.02)
        assert "second publisher" not in node.log
        writer.kill()
        operator.wait(policy.drives(lambda: "chunks come from action_chunk" in node.log), 90.0, "the topic")
        # Who appears within a second of silence, as there was after the kill, has replaced another.
        replaced_ns = operator.now_ns() + 2 * S
        operator.wait(policy.drives(lambda: operator.now_ns() > replaced_ns), 90.0, "messages")
        stranger = Writer(operator, tmp_path, "/stranger")
        begins = Thread(target=stranger.start, args=(NEAR,))  # meanwhile the topic must not be silent
        begins.start()
        operator.wait(policy.drives(lambda: not begins.is_alive()), 90.0, "the stranger")
        operator.wait(
            policy.drives(lambda: "a second publisher" in node.log and "/stranger; end it" in node.log),
            90.0,
            "word of the stranger",
        )
        operator.wait(policy.drives(lambda: motion_of(operator).startswith("holding")), 90.0, "hold")
    finally:
        writer.kill()
        if stranger is not None:
            stranger.kill()
        segment_path(writer.name).unlink(missing_ok=True)


def test_held_is_held_over_a_crash_while_chunks_come_by_the_slot(
    operator: Operator, contract: Contract, arm: Arm, writer: Writer, launched: Launched, joints: list[str]
) -> None:
    begin = arm.array(joints)
    writer.start(NEAR)
    node = launched()
    operator.wait(lambda: np.abs(arm.array(joints) - begin).max() > 0.05, 120.0, "arm on its way")
    assert call(operator, Trigger, "trajectory/hold", Trigger.Request()).success
    wait_until_still(operator, arm, joints)
    node.kill()
    count, position = len(arm.commands), arm.array(joints)
    operator.diagnostics.clear()
    node.start()
    operator.wait(lambda: motion_of(operator).startswith("holding: held by the operator"), 90.0, "hold")
    passes(operator, 1.0)
    later = sent(arm, joints)[count:]
    assert not len(later) or not np.ptp(np.concatenate([position[None], later]), axis=0).any()
    assert call(operator, Trigger, "trajectory/resume", Trigger.Request()).success
    reach(operator, arm, joints, NEAR)
    assert_no_leap(arm, joints, begin, contract)


class TestWholeTrajectories:
    """A joint_trajectory_controller, where a person chose the slot."""

    @pytest.fixture
    def kind(self) -> dict[str, object]:
        return {"topic": "arm_controller/joint_trajectory"}

    def test_a_controller_of_whole_trajectories_gets_sixty_a_second_within_limits(
        self, operator: Operator, arm: Arm, writer: Writer, launched: Launched, joints: list[str]
    ) -> None:
        writer.start(NEAR)
        launched(chunks_from="slot", lead_s=0.05)
        began_ns = operator.now_ns()
        reach(operator, arm, joints, NEAR)
        writer.lead(FAR)
        reach(operator, arm, joints, FAR)
        seconds, count = (operator.now_ns() - began_ns) * 1e-9, len(operator.sent)
        assert 0 < count <= 62 * seconds + 5
        assert not arm.rejected
        assert (commanded_acceleration(operator, began_ns) <= 1.02).all()
