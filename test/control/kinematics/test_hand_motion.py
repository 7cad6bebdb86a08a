"""A Motion whose chunks are poses: it goes as far as its arm reaches, stops there smoothly and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from executed import judge_positions
from hand_arms import load, text, ur5e
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.limits.joint_limits import JointLimits

S = 1_000_000_000
TICK_NS = S // 100
START = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
OUT = np.array([-0.7, -0.7, 0.0])
"""A direction away from the base, at START."""


class HandArm:
    """A UR5e that is where it was last commanded. Attribute `commands`: with their times."""

    def __init__(self, folder: Path, hand: str, speed: str = "1", late_ns: int = 2 * TICK_NS) -> None:
        contract = load(folder, text(hand))
        names = contract.joint_names
        stream = Controller("arm/commands", names, "forward_command", rate_hz=100.0)
        joints = tuple(replace(joint, velocity=min(joint.velocity, 2.0)) for joint in contract.joints)
        self.contract: Contract = replace(contract, controllers=(stream,), joints=joints)
        self.now, self.where, self.request = 1000 * S, START.copy(), 0
        self.commands: list[tuple[int, np.ndarray]] = []
        parameters, self._late_ns = Parameters(Options(speed=speed)), late_ns
        self.node = Process(
            self.contract, parameters, Clock(lambda: self.now), lambda _: StreamLine(self._take)
        )

    def _take(self, command: np.ndarray) -> None:
        self.where = command.copy()
        self.commands.append((self.now, self.where))

    def run(self, seconds: float, row: list[float] | None) -> None:
        """row: of a chunk of ten, ten times a second; None: no chunks come."""
        for tick in range(round(seconds * 100)):
            self.now += TICK_NS
            self.node.joints(self.contract.joint_names, self.where, self.now)
            if row is not None and tick % 10 == 0:
                self.request += 1
                self.node.chunk(make_chunk([row] * 10, self.now - self._late_ns, 0.05, self.request))
            self.node.tick()
            if tick % 2 == 0:
                self.node.watch()

    @property
    def tip(self) -> np.ndarray:
        return ur5e(self.where[:6])[:3, 3]

    def judge(self) -> None:
        limits = JointLimits.of(self.contract.joints)
        assert not judge_positions(self.commands, limits, 0.02)
        hand = self.contract.hands[0][0]
        tips = np.array([ur5e(command[:6])[:3, 3] for _, command in self.commands])
        speed = np.linalg.norm(np.diff(tips, axis=0), axis=1) * S / TICK_NS
        assert speed.max() <= 1.001 * hand.linear


def reasons(arm: HandArm) -> str:
    return "; ".join(arm.node.robot.follower.safety.reasons)


def test_hand_moves_as_its_chunks_say(tmp_path):
    arm = HandArm(tmp_path, "preset: libero, relative_to: commanded, ")
    begin = arm.tip
    arm.run(2.0, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.02])
    arm.judge()
    moved = arm.tip - begin
    assert 0.12 < moved[2] < 0.22 and np.abs(moved[:2]).max() < 0.01  # 0.1 m/s for about two seconds


def test_slow_task_moves_the_hand_at_a_share_of_what_its_chunks_say(tmp_path):
    """Also by chunks whose first rows are past by the clock, and ahead along the path."""
    arm = HandArm(tmp_path, "preset: libero, relative_to: commanded, ", "0.25", 12 * TICK_NS)
    begin = arm.tip
    arm.run(2.0, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.02])
    arm.judge()
    assert 0.02 < (arm.tip - begin)[2] < 0.045


def test_arm_that_is_stretched_out_stops_smoothly_says_why_and_comes_back(tmp_path):
    arm = HandArm(tmp_path, "preset: libero, relative_to: commanded, ")
    arm.run(8.0, [*(0.3 * OUT), 0.0, 0.0, 0.0, 0.02])
    stretched = arm.tip
    assert arm.node.robot.follower.safety.state is MotionState.HOLDING
    assert "out of its reach" in reasons(arm) and "arm" in reasons(arm)
    arm.run(3.0, [*(-0.1 * OUT), 0.0, 0.0, 0.0, 0.02])
    assert np.linalg.norm(arm.tip - stretched) > 0.05
    arm.judge()


def test_hand_that_is_asked_out_of_its_box_stops_before_its_side(tmp_path):
    top = float(ur5e(START[:6])[2, 3]) + 0.1
    box = f"box: {{lower: [-2, -2, -2], upper: [2, 2, {top}]}}, "
    arm = HandArm(tmp_path, f"preset: libero, relative_to: commanded, {box}")
    arm.run(4.0, [0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.02])
    assert top - 0.1 < arm.tip[2] <= top + 1e-4 and "box" in reasons(arm)
    arm.judge()


def test_hand_that_is_asked_too_fast_goes_as_fast_as_it_may(tmp_path):
    arm = HandArm(tmp_path, "preset: libero, relative_to: commanded, m: 0.5, ")
    arm.run(0.5, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.02])
    arm.judge()


@pytest.mark.parametrize("row", [[np.nan] * 7, [0.0] * 3])
def test_chunk_of_no_use_stops_the_arm_with_its_reason(tmp_path, row):
    arm = HandArm(tmp_path, "preset: libero, ")
    arm.run(1.0, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.02])
    arm.run(2.0, row)
    assert arm.node.robot.follower.safety.state is MotionState.HOLDING and "refused" in reasons(arm)
    arm.judge()
