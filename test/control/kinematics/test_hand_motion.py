"""A Motion whose chunks are poses: it goes as far as its arm reaches, stops there smoothly and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from executed import judge_positions
from hand_arms import EXPLICIT, load, text, ur5e
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.kinematics.rotations import numbers
from vla_accel_ros.control.limits.joint_limits import JointLimits

S = 1_000_000_000
TICK_NS = S // 100
START = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
OUT = np.array([-0.7, -0.7, 0.0])
"""A direction away from the base, at START."""


class HandArm:
    """A UR5e that is where it was last commanded. Attribute `commands`: with their times."""

    def __init__(
        self,
        folder: Path,
        hand: str,
        speed: str = "1",
        late_ns: int = 2 * TICK_NS,
        start: np.ndarray = START,
    ) -> None:
        contract = load(folder, text(hand))
        names = contract.joint_names
        stream = Controller("arm/commands", names, "forward_command", rate_hz=100.0)
        joints = tuple(replace(joint, velocity=min(joint.velocity, 2.0)) for joint in contract.joints)
        self.contract: Contract = replace(contract, controllers=(stream,), joints=joints)
        self.now, self.where, self.request = 1000 * S, start.copy(), 0
        self.commands: list[tuple[int, np.ndarray]] = []
        parameters, self._late_ns = Parameters(Options(speed=speed)), late_ns
        self.node = Process(
            self.contract, parameters, Clock(lambda: self.now), lambda _: StreamLine(self._take)
        )

    def _take(self, command: np.ndarray) -> None:
        self.where = command.copy()
        self.commands.append((self.now, self.where))

    def run(self, seconds: float, row: list[float] | Callable[[float], list[float]] | None) -> None:
        """row: of a chunk of ten, ten times a second, or what it is at a time [s]; None: no chunks come."""
        for tick in range(round(seconds * 100)):
            self.now += TICK_NS
            self.node.joints(self.contract.joint_names, self.where, self.now)
            if row is not None and tick % 10 == 0:
                self.request += 1
                stamp_ns = self.now - self._late_ns
                due_s = [stamp_ns / S + 0.05 * step for step in range(1, 11)]
                rows = [row(t) for t in due_s] if callable(row) else [row] * 10
                self.node.chunk(make_chunk(rows, stamp_ns, 0.05, self.request))
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


ALONG = np.array([-0.6, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
"""From here the tip goes along y beside a plane of constant x, of which it is on the base's side."""


def beside_a_plane(folder: Path, margin_m: float) -> tuple[HandArm, Callable[[float], list[float]]]:
    """An arm that may not cross the plane, and rows that lead its hand along it."""
    x, y, z = ur5e(ALONG[:6])[:3, 3]
    rpy = numbers(ur5e(ALONG[:6])[:3, :3], "rpy")
    box = f"box: {{lower: [{x - margin_m}, -2, -2], upper: [2, 2, 2]}}, "
    arm = HandArm(folder, EXPLICIT + box, start=ALONG)
    arm.run(1.5, [x, y, z, *rpy, 0.02])
    begin_s = arm.now / S

    def row(t_s: float) -> list[float]:
        return [x, y - 0.3 * (t_s - begin_s), z, *rpy, 0.02]

    return arm, row


def test_arm_that_catches_up_after_a_pause_is_no_faster_than_its_hand_may_be(tmp_path):
    arm, row = beside_a_plane(tmp_path, 0.05)
    arm.run(0.5, row)
    begin = len(arm.commands)
    arm.now += 15 * TICK_NS  # the process does nothing
    arm.run(0.5, row)
    tips = np.array([ur5e(command[:6])[:3, 3] for _, command in arm.commands[begin:]])
    speeds = np.linalg.norm(np.diff(tips, axis=0), axis=1) * S / TICK_NS
    assert 0.4 < speeds.max() <= 0.5005  # 0.5 m/s are allowed, and it was asked for 0.3
    assert abs(arm.tip[1] - row(arm.now / S)[1]) < 0.01


@pytest.mark.parametrize("held", [False, True])
def test_arm_whose_way_back_to_the_path_leaves_its_box_stops_and_goes_on_after_resume(tmp_path, held):
    arm, row = beside_a_plane(tmp_path, 0.0005)
    arm.run(0.5, row)
    arm.now += 15 * TICK_NS
    if held:
        arm.node.order("hold")
    arm.run(0.3, row)
    arm.run(1.0, None)
    assert arm.node.robot.follower.safety.state is MotionState.HOLDING
    assert held or any("box" in reason for reason in arm.node.holds)
    lower = arm.contract.hands[0][0].box.lower[0]
    tips = np.array([ur5e(command[:6])[:3, 3] for _, command in arm.commands])
    assert tips[:, 0].min() >= lower - 2e-4
    stopped = arm.tip
    arm.node.order("resume")
    arm.run(2.0, [stopped[0] + 0.05, stopped[1], *row(0.0)[2:]])
    assert arm.tip[0] > stopped[0] + 0.02
    assert arm.node.robot.follower.counts["joins"] == 2
    arm.judge()
