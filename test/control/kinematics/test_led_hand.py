"""A hand that MoveIt Servo leads: rows of poses leave as twists or poses, and no joint has a target.

Servo is one that does as it is told: it moves the joints of a UR5e by the Jacobian of hand_arms.py's forward
kinematics, which judges, too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executed import judge_velocities
from hand_arms import load, text, ur5e
from hypothesis import given, settings
from hypothesis import strategies as st
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine, TrajectoryLine

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.chunking.twist import RAMP_S, TwistBuffer
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.kinematics.hand import Box
from vla_accel_ros.control.kinematics.led import Tip
from vla_accel_ros.control.kinematics.rotations import pinocchio

S = 1_000_000_000
TICK_NS = S // 100
START = np.array([0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02])
LINEAR, ANGULAR, LAG_S = 0.5, 1.5, 0.03
KINDS = ("servo_twist", "servo_pose")


def turned(vector: Any) -> np.ndarray:
    """The rotation of an axis times an angle (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    x, y, z = np.asarray(vector) / max(angle, 1e-12)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross


def vector_of(rotation: np.ndarray) -> np.ndarray:
    """Back, for less than half a turn."""
    off = np.array(
        [rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]]
    )
    sine, cosine = np.linalg.norm(off) / 2.0, (np.trace(rotation) - 1.0) / 2.0
    return off / 2.0 if sine < 1e-9 else off / (2.0 * sine) * np.arctan2(sine, cosine)


def rpy_of(rotation: np.ndarray) -> list[float]:
    return [
        np.arctan2(rotation[2, 1], rotation[2, 2]),
        np.arcsin(-rotation[2, 0]),
        np.arctan2(rotation[1, 0], rotation[0, 0]),
    ]


def of_quaternion(numbers: np.ndarray) -> np.ndarray:
    x, y, z, w = numbers
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def tip_of(joints: np.ndarray) -> np.ndarray:
    return ur5e(joints[:6])


def way(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """From a pose [4, 4] to another, along and about the axes of the base."""
    turn = vector_of(end[:3, :3] @ begin[:3, :3].T)
    return np.concatenate([end[:3, 3] - begin[:3, 3], turn])


def jacobian(joints: np.ndarray) -> np.ndarray:
    here = tip_of(joints)
    steps = np.eye(6) * 1e-6
    return np.stack([way(here, tip_of(joints[:6] + step)) * 1e6 for step in steps], axis=1)


def written(kind: str, hand: str, box: str = "") -> str:
    lines = text(hand + box)
    names = ", ".join(f"j{i}" for i in range(1, 7))
    servo = f"{{kind: {kind}, topic: servo/commands, joints: [{names}], rate_hz: 100, frame: l0}}"
    lines = lines.replace(f"joints: [{names}, finger_joint]", "joints: [finger_joint]")
    return lines.replace("controllers:\n", f"controllers:\n  - {servo}\n")


class LedArm:
    """A UR5e with Servo, and a finger. Attributes: `sent`, what Servo was sent, with times; `finger`, the
    last of its trajectories; `joints`, where they are; `paused`."""

    def __init__(self, folder: Path, kind: str, hand: str, box: str = "", mode: str = "blend") -> None:
        self.kind, self.contract = kind, load(folder, written(kind, hand, box))
        self.now, self.joints, self.request = 1000 * S, START.copy(), 0
        self.sent: list[tuple[int, np.ndarray]] = []
        self.finger: Any = None
        self._line: StreamLine | None = None
        self._twist = np.zeros(6)
        options = replace(Options(), mode=mode)
        self.node = Process(self.contract, Parameters(options), Clock(lambda: self.now), self._make_line)

    def _make_line(self, controller: Controller) -> StreamLine | TrajectoryLine:
        if controller.kind == self.kind:
            self._line = StreamLine(lambda command: self.sent.append((self.now, command.copy())))
            return self._line
        return TrajectoryLine(lambda path, *_: setattr(self, "finger", path))

    @property
    def paused(self) -> bool:
        assert self._line is not None
        return self._line.paused

    @property
    def tip(self) -> np.ndarray:
        return tip_of(self.joints)

    def row(self, away: list[float], turn: list[float] | None = None) -> list[float]:
        """The absolute pose so far from START [m, rad about the axes of the base], and the finger."""
        begin = tip_of(START)
        rotation = turned(turn or [0.0, 0.0, 0.0]) @ begin[:3, :3]
        return [*(begin[:3, 3] + away), *rpy_of(rotation), 0.03]

    def run(self, seconds: float, row: list[float] | None, rows: int = 10) -> None:
        """row: of chunks, ten times a second; None: no chunks come."""
        for tick in range(round(seconds * 100)):
            self.now += TICK_NS
            self._servo()
            self.node.joints(self.contract.joint_names, self.joints, self.now)
            if row is not None and tick % 10 == 0:
                self.request += 1
                self.node.chunk(make_chunk([row] * rows, self.now - 3 * TICK_NS, 0.05, self.request))
            self.node.tick()
            if tick % 2 == 0:
                self.node.watch()

    def _servo(self) -> None:
        """It follows with a lag, and halts 0.1 s after the last command."""
        wanted = np.zeros(6)
        if self.sent and not self.paused and self.now - self.sent[-1][0] <= S // 10:
            wanted = self.sent[-1][1]
            if self.kind == "servo_pose":
                goal = np.eye(4)
                goal[:3, 3], goal[:3, :3] = wanted[:3], of_quaternion(wanted[3:])
                wanted = np.clip(way(self.tip, goal) / LAG_S, -1.0, 1.0)
        self._twist = self._twist + (wanted - self._twist) * min(1.0, TICK_NS / S / LAG_S)
        self.joints[:6] += np.linalg.solve(jacobian(self.joints), self._twist) * TICK_NS / S

    @property
    def velocities(self) -> list[tuple[int, np.ndarray]]:
        """The hand's, as sent, with times; of poses those that lead from one to the next."""
        if self.kind == "servo_twist":
            return self.sent
        poses = []
        for _, numbers in self.sent:
            pose = np.eye(4)
            pose[:3, 3], pose[:3, :3] = numbers[:3], of_quaternion(numbers[3:])
            poses.append(pose)
        pairs = zip(self.sent[1:], self.sent, poses, poses[1:])
        return [(t, way(a, b) / ((t - before) / S)) for (t, _), (before, _), a, b in pairs]

    def judge(self) -> None:
        for half, speed in ((slice(0, 3), LINEAR), (slice(3, 6), ANGULAR)):
            sizes = [(t, np.array([np.linalg.norm(v[half])])) for t, v in self.velocities]
            axes = [(t, v[half]) for t, v in self.velocities]
            assert not judge_velocities(sizes, np.array([speed]), np.array([np.inf]), 0.02)
            assert not judge_velocities(axes, np.full(3, np.inf), np.full(3, speed / RAMP_S), 0.02)


ABSOLUTE = "rotation: rpy, state: rpy, relative_to: absolute, "


@pytest.mark.parametrize("mode", ["blend", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_hand_arrives_where_its_rows_say_within_its_speeds(tmp_path, kind, mode):
    arm = LedArm(tmp_path, kind, ABSOLUTE, mode=mode)
    row = arm.row([-0.1, 0.05, 0.1], [0.0, 0.2, 0.3])
    arm.run(4.0, row)
    assert arm.node.robot.follower.safety.state is MotionState.RUNNING
    np.testing.assert_allclose(arm.tip[:3, 3], row[:3], atol=2e-3)
    goal = turned([0.0, 0.2, 0.3]) @ tip_of(START)[:3, :3]
    assert np.linalg.norm(vector_of(goal @ arm.tip[:3, :3].T)) < 5e-3
    assert arm.finger.positions[-1] == pytest.approx(0.03)
    arm.judge()


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_the_hand_lead_it_on_and_it_stops_when_chunks_cease(tmp_path, kind):
    arm = LedArm(tmp_path, kind, "preset: libero, relative_to: commanded, ")
    begin = arm.tip[:3, 3].copy()
    arm.run(1.5, [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.02])  # 0.1 * 0.05 m in 0.05 s
    assert arm.velocities[-1][1][:3] == pytest.approx([0.0, 0.0, 0.1], abs=0.02)
    lasted_s = (arm.now - arm.sent[0][0]) / S
    arm.run(1.5, None)
    assert arm.node.robot.follower.safety.state is MotionState.HOLDING and arm.paused
    assert not arm.velocities[-1][1].any() or np.abs(arm.velocities[-1][1]).max() < 1e-6
    moved = arm.tip[:3, 3] - begin
    assert moved[2] == pytest.approx(0.1 * lasted_s, abs=0.02) and np.abs(moved[:2]).max() < 0.01
    arm.judge()


@pytest.mark.parametrize("kind", KINDS)
def test_the_hand_stops_before_the_end_of_its_box_with_the_reason(tmp_path, kind):
    begin = tip_of(START)[:3, 3]
    lower, upper = (begin - 0.1).round(4).tolist(), (begin + 0.1).round(4).tolist()
    arm = LedArm(tmp_path, kind, ABSOLUTE, f"box: {{lower: {lower}, upper: {upper}}}, ")
    arm.run(3.0, arm.row([0.0, 0.0, 0.09]))
    assert arm.tip[2, 3] == pytest.approx(begin[2] + 0.09, abs=3e-3)
    arm.run(2.0, arm.row([0.0, 0.0, 0.2]))
    reasons = "; ".join(arm.node.robot.follower.safety.reasons)
    assert "box" in reasons and "action 0" in reasons
    assert arm.node.robot.follower.safety.state is MotionState.HOLDING
    assert arm.tip[2, 3] < upper[2]
    arm.judge()


moves = st.tuples(*(st.floats(-0.3, 0.3) for _ in range(3)), *(st.floats(-0.5, 0.5) for _ in range(3)))


@settings(max_examples=12)
@pytest.mark.parametrize("kind", KINDS)
@given(targets=st.lists(moves, min_size=1, max_size=4), commanded=st.booleans())
def test_whatever_the_rows_the_hand_keeps_its_speeds_and_its_box(tmp_path_factory, kind, targets, commanded):
    begin = tip_of(START)[:3, 3]
    lower, upper = (begin - 0.08).round(4), (begin + 0.08).round(4)
    box = f"box: {{lower: {lower.tolist()}, upper: {upper.tolist()}}}, "
    hand = "preset: libero, relative_to: commanded, " if commanded else ABSOLUTE
    arm = LedArm(tmp_path_factory.mktemp("led"), kind, hand, box)
    arm.run(0.6, [0.0] * 6 + [0.02] if commanded else arm.row([0.0, 0.0, 0.0]))
    for target in targets:
        row = [*target, 0.02] if commanded else arm.row(list(target[:3]), list(target[3:]))
        arm.run(0.4, row)
    arm.run(0.5, None)
    arm.judge()
    tips, at = [begin.copy()], begin.copy()
    for (t, velocity), (until, _) in zip(arm.velocities, [*arm.velocities[1:], (arm.now, None)]):
        at = at + velocity[:3] * min((until - t) / S, 0.02)
        tips.append(at)
    if kind == "servo_pose":
        tips = [numbers[:3] for _, numbers in arm.sent] or tips
    beyond = np.maximum(lower - np.array(tips), np.array(tips) - upper).max()
    assert beyond < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_release_the_hand_goes_on_from_where_others_have_left_it(tmp_path, kind):
    arm = LedArm(tmp_path, kind, "preset: libero, ")
    row = [0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.02]
    arm.run(1.0, row)
    arm.node.order("release")
    arm.run(1.0, row)
    count = len(arm.sent)
    assert arm.paused
    arm.joints[:6] += np.array([0.2, -0.1, 0.1, 0.0, 0.1, 0.0])
    arm.run(0.5, row)
    assert len(arm.sent) == count
    left = arm.tip[:3, 3].copy()
    arm.node.order("reclaim")
    arm.run(0.5, None)
    arm.run(1.0, row)
    assert len(arm.sent) > count
    if kind == "servo_pose":
        np.testing.assert_allclose(arm.sent[count][1][:3], left, atol=5e-3)
    assert np.linalg.norm(arm.tip[:3, 3] - left) < 0.15


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_rows_that_are_no_pose_move_nothing(tmp_path, poison):
    arm = LedArm(tmp_path, "servo_twist", ABSOLUTE)
    arm.run(0.5, None)
    arm.run(1.0, [poison, *arm.row([0.0, 0.0, 0.1])[1:]])
    assert not any(command.any() for _, command in arm.sent)


def test_rows_in_another_unit_are_refused(tmp_path):
    arm = LedArm(tmp_path, "servo_twist", ABSOLUTE)
    row = arm.row([0.0, 0.0, 0.0])
    arm.run(1.5, [1000.0 * row[0], 1000.0 * row[1], 1000.0 * row[2], *row[3:]])
    assert not any(command.any() for _, command in arm.sent)
    assert any("unit" in line for _, line in arm.node.robot.log)


JAW = "{rotation: rpy, state: rpy, relative_to: absolute, base: l6, tip: finger, linear: 1, angular: 1}"
TELEOP = (
    "teleop: {topic: leader, type: TwistStamped, rate_hz: 50, max_age_s: 0.2, "
    "hand: {base: l0, tip: tool0, axes: base, linear: 0.1, angular: 0.1}}"
)


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("frame: l0", "frame: world", "controllers[0].frame", "l0"),
        ("[j1, j2, j3, j4, j5, j6], rate", "[j1, j2, j3, j4, j5], rate", "controllers[0].joints", "j6"),
        ("actions: hands", "actions: joints", "controllers[0].kind", "servo_pose"),
        ("relative_to: absolute", "relative_to: absolute, beside: true", "hands", "beside"),
        ("joints:\n  - {name: j1", f"  jaw: {JAW}\njoints:\n  - {{name: j1", "hands = 2", "servo_pose"),
        ("chunk:", f"{TELEOP}\nchunk:", "teleop", "TwistStamped"),
        ("actions: hands", "actions: twist", "actions", "twists"),
    ],
)
def test_a_controller_that_leads_another_hand_is_refused(tmp_path, old, new, field, value):
    lines = written("servo_pose", ABSOLUTE).replace(old, new)
    if "j6" in value:
        lines = lines.replace("joints: [finger_joint]", "joints: [j6, finger_joint]")
    if "actions: joints" in new:
        lines = lines.replace("hands:\n  arm", "keys_of:\n  arm")
    with pytest.raises(ValueError) as refusal:
        load(tmp_path, lines)
    assert field in str(refusal.value) and value in str(refusal.value)


def test_a_contract_reads_the_same_state_with_and_without_servo(tmp_path):
    led: Contract = load(tmp_path, written("servo_twist", ABSOLUTE))
    own = load(tmp_path, text(ABSOLUTE))
    assert led.state_names == own.state_names and led.action_names == own.action_names
    np.testing.assert_array_equal(led.to_policy(START), own.to_policy(START))


@given(
    st.lists(st.tuples(st.integers(1, 40), *(st.floats(-1.0, 1.0) for _ in range(3))), min_size=1, max_size=6)
)
def test_velocities_towards_the_end_of_the_box_end_within_it_by_the_ramp(moves):
    """Whatever is asked for, as of rows whose hand is not where it was thought."""
    tip = Tip(Box((-0.1, -0.2, -0.05), (0.1, 0.2, 0.05)), goes_on=True)
    buffer = TwistBuffer("second", LINEAR, ANGULAR, TICK_NS / S, tip=tip)
    tip.measured(pinocchio().SE3.Identity(), S)
    now, at, sent = S, np.zeros(3), []
    for number, (ticks, *velocity) in enumerate(moves):
        buffer.update(make_chunk([[*velocity, 0.0, 0.0, 0.0]] * 9, now, 0.1, number), now)
        for _ in range(ticks):
            now += TICK_NS
            velocity_now = buffer.tick(now)
            assert velocity_now is not None
            at = at + velocity_now[:3] * TICK_NS / S
            sent.append((now, velocity_now[:3]))
            assert (np.abs(at) <= np.array([0.1, 0.2, 0.05]) + 1e-3).all()
    change = np.linalg.norm(np.diff([velocity for _, velocity in sent], axis=0), axis=1)
    assert change.max(initial=0.0) <= 1.001 * LINEAR / RAMP_S * TICK_NS / S


def test_a_hand_that_is_pushed_while_it_is_held_is_sent_no_pose_from_before(tmp_path):
    arm = LedArm(tmp_path, "servo_pose", "preset: libero, ")
    row = [0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.02]
    arm.run(1.0, row)
    arm.node.order("hold")
    arm.run(1.0, row)
    assert arm.paused
    arm.joints[:6] += np.array([0.1, -0.1, 0.1, 0.0, 0.1, 0.0])
    arm.run(0.3, row)
    left, count = arm.tip[:3, 3].copy(), len(arm.sent)
    arm.node.order("resume")
    arm.run(1.0, row)
    np.testing.assert_allclose(arm.sent[count][1][:3], left, atol=5e-3)
