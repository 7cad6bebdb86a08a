"""A person moves the hand: where it goes is judged by the arm's published Denavit-Hartenberg table."""

from __future__ import annotations

import hand_arms
import numpy as np
import pytest
from executed import TrajectoryController, judge_path, judge_velocities
from world import Clock, Parameters, Process, StreamLine, TrajectoryLine, make_contract, make_joints

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import Controller, Teleop, TeleopHand
from vla_accel_ros.control.kinematics.arm import Arm
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.teleop.hand import HandCommands
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

S = 1_000_000_000
NAMES = tuple(f"j{i + 1}" for i in range(6))
BENT = np.array([0.3, -1.2, 1.6, -1.0, -1.4, 0.2])
TIMES = np.arange(1, 26)[:, None] * 0.02


def commands(axes: str = "base", span: float = 6.28, **more: float) -> HandCommands:
    limits = JointLimits(np.full(6, -span), np.full(6, span), np.full(6, 3.0), np.full(6, 20.0))
    arm = Arm(hand_arms.ur5e_urdf(), NAMES, limits, "l0", "tool0")
    speeds = {"linear": 0.25, "angular": 1.0} | more
    return HandCommands("twist", TeleopHand(arm, axes, **speeds), limits)


def turned(begin: np.ndarray, end: np.ndarray) -> float:
    """By what angle."""
    cosine = (np.trace(begin[:3, :3].T @ end[:3, :3]) - 1.0) / 2.0
    return float(np.arccos(np.clip(cosine, -1.0, 1.0)))


@pytest.mark.parametrize("axes", ["base", "tool"])
def test_a_twist_moves_the_tip_straight_along_its_axes_and_does_not_turn_it(axes):
    hand, way = commands(axes), np.array([0.1, -0.06, 0.08])
    hand.add((), [*way, 0.0, 0.0, 0.0], S)
    rows = hand.rows(BENT, TIMES)
    begin, end = hand_arms.ur5e(BENT), hand_arms.ur5e(rows[-1])
    expected = way * 0.5 if axes == "base" else begin[:3, :3] @ way * 0.5
    np.testing.assert_allclose(end[:3, 3] - begin[:3, 3], expected, atol=2e-3)
    assert turned(begin, end) < 0.01 and not hand.trouble


def test_a_turning_twist_turns_the_tip_in_place():
    hand = commands()
    hand.add((), [0.0, 0.0, 0.0, 0.0, 0.0, 0.6], S)
    rows = hand.rows(BENT, TIMES)
    begin, end = hand_arms.ur5e(BENT), hand_arms.ur5e(rows[-1])
    np.testing.assert_allclose(end[:3, 3], begin[:3, 3], atol=2e-3)
    np.testing.assert_allclose(end[:3, :3], hand_arms.turn_z(0.3)[:3, :3] @ begin[:3, :3], atol=0.01)


def test_a_hand_is_no_faster_than_it_may_and_its_joints_neither():
    hand = commands()
    hand.add((), [2.0, 0.0, 0.0, 0.0, 0.0, 0.0], S)
    rows = hand.rows(BENT, TIMES)
    begin, end = hand_arms.ur5e(BENT), hand_arms.ur5e(rows[0])
    assert np.linalg.norm(end[:3, 3] - begin[:3, 3]) == pytest.approx(0.25 * 0.02, rel=0.05)
    fast = commands(linear=10.0)
    fast.add((), [10.0, 0.0, 0.0, 0.0, 0.0, 0.0], S)
    steps = np.diff(np.vstack([BENT, fast.rows(BENT, TIMES)]), axis=0)
    assert np.abs(steps).max() <= 3.0 * 0.02 * 1.001


def test_a_stretched_arm_is_slow_and_says_why():
    hand, stretched = commands(), np.array([0.3, -0.6, 0.0, -1.0, -1.4, 0.2])
    outwards = hand_arms.ur5e(stretched)[:3, 3]
    hand.add((), [*(0.25 * outwards / np.linalg.norm(outwards)), 0.0, 0.0, 0.0], S)
    steps = np.diff(np.vstack([stretched, hand.rows(stretched, TIMES)]), axis=0)
    assert np.abs(steps).max() <= 3.0 * 0.02 * 1.001 and "singular" in hand.trouble


def test_at_the_end_of_a_joints_range_the_hand_stops_and_names_it():
    hand = commands(span=1.61)
    hand.add((), [0.0, 0.0, -0.25, 0.0, 0.0, 0.0], S)
    rows = hand.rows(BENT, TIMES)
    assert (np.abs(rows) <= 1.61).all() and "j3" in hand.trouble
    np.testing.assert_array_equal(rows[-1], rows[-2])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([np.nan] + [0.0] * 5, "six"),
        ([0.0] * 5, "six"),
        ([100.0] + [0.0] * 5, "m/s"),
        ([0.0] * 5 + [60.0], "rad"),
    ],
)
def test_twists_that_cannot_be_meant_are_refused(numbers, words):
    hand = commands()
    with pytest.raises(ValueError, match=words):
        hand.add((), numbers, S)
    assert hand.newest is None


def test_an_arm_that_is_taken_over_goes_where_its_hand_is_led_within_the_limits(tmp_path):
    (tmp_path / "arm.urdf").write_text(hand_arms.ur5e_urdf())
    text = hand_arms.text().replace("actions: hands\n", "actions: joints\n").replace(
        "joint_states: {", "teleop: {topic: twist, type: TwistStamped, rate_hz: 50, max_age_s: 0.2,\n"
        "  hand: {base: l0, tip: tool0, axes: base, linear: 0.25, angular: 1.0}}\njoint_states: {",
    ).replace("- {name: j", "- {action: absolute, name: j")  # fmt: skip
    text = text.replace("{name: finger_joint", "{action: absolute, name: finger_joint")
    (tmp_path / "robot.yaml").write_text(text[: text.index("hands:")] + text[text.index("joints:\n") :])
    contract = Contract.load(tmp_path / "robot.yaml")
    now, position = [1000 * S], np.array([*BENT, 0.01])
    controller = TrajectoryController(contract.joint_names, position, True)
    controller.starts[0] = now[0]

    def accept(path: Trajectory, start_ns: int, stamped: bool) -> None:
        controller.accept(path, now[0], TrajectoryPoint(now[0], controller.state(now[0]).position))

    node = Process(contract, Parameters(), Clock(lambda: now[0]), lambda _: TrajectoryLine(accept))
    node.order("take_over")
    begin = hand_arms.ur5e(BENT)
    for tick in range(200):
        now[0] += S // 100
        node.joints(contract.joint_names, controller.state(now[0]).position, now[0])
        if tick % 2 == 0:
            speed = 0.1 if tick >= 80 else 0.0
            node.command((), [0.0, speed, 0.0, 0.0, 0.0, 0.0], now[0])
        node.watch()
    moved = hand_arms.ur5e(controller.state(now[0]).position[:6]) - begin
    assert moved[1, 3] == pytest.approx(0.12, abs=0.025)
    np.testing.assert_allclose(moved[[0, 2], 3], 0.0, atol=5e-3)
    limits = JointLimits.of(contract.joints)
    times, positions = controller.path(now[0])
    assert not judge_path(times, positions, limits, *controller.exceptions)


class Servo:
    """A hand that MoveIt Servo moves at 100 Hz, by at most 0.5 m/s and 1 rad/s, and a finger of its own; the
    policy's twist comes at 10 Hz, a person's at 50 Hz, None for silence."""

    def __init__(self) -> None:
        self.now, self.policy, self.finger = 1000 * S, np.zeros(6), np.array([0.3])
        self.person: np.ndarray | None = None
        self.sent: list[tuple[int, np.ndarray]] = []
        joints = make_joints(("finger",), JointLimits(*np.array([[0.0], [1.0], [1.0], [5.0]])))
        contract = make_contract("servo_twist", joints, teleop=Teleop("twist", 50.0, 0.2, {}, "TwistStamped"))
        self.controller = TrajectoryController(("finger",), self.finger, True)
        self.controller.starts[0] = self.now
        self.node = Process(contract, Parameters(), Clock(lambda: self.now), self._line, go_on=True)

    def _line(self, controller: Controller) -> object:
        if controller.kind == "servo_twist":
            return StreamLine(lambda twist: self.sent.append((self.now, twist.copy())))
        start = TrajectoryPoint(self.now, self.finger)
        return TrajectoryLine(lambda path, _, __: self.controller.accept(path, self.now, start))

    def run(self, seconds: float) -> np.ndarray:
        """The newest twist that Servo was sent."""
        for tick in range(round(seconds * 100)):
            self.now += S // 100
            self.node.joints(("finger",), self.controller.state(self.now).position, self.now)
            if tick % 10 == 0:
                stamp_ns, rows = self.now - S // 20, np.tile([*self.policy, 0.3], (32, 1)).astype(np.float32)
                self.node.chunk(Chunk(rows, stamp_ns, 1 / 30, tick, tick, np.zeros(32, np.float32)))
            if tick % 2 == 0 and self.person is not None:
                self.node.command((), self.person, self.now)
            self.node.watch()
            self.node.tick()
        return self.sent[-1][1]


def test_a_person_moves_the_hand_that_servo_moves_within_its_limits_both_ways():
    servo = Servo()
    servo.policy = np.array([0.4, 0.0, 0.0, 0.0, 0.5, 0.0])
    np.testing.assert_allclose(servo.run(1.0), servo.policy)
    servo.person = led = np.array([-0.3, 0.2, 0.0, 0.0, 0.0, -0.8])
    servo.node.order("take_over")
    np.testing.assert_allclose(servo.run(1.0), led)
    assert servo.node.motion.takeover.state == "human"
    servo.person = np.array([3.0, 4.0, 0.0, 0.0, 0.0, 2.0])
    np.testing.assert_allclose(servo.run(0.5), [0.3, 0.4, 0.0, 0.0, 0.0, 1.0])  # as fast as it may go
    servo.node.order("give_back")
    np.testing.assert_allclose(servo.run(1.0), servo.policy)
    for half, fastest in ((slice(0, 3), 0.5), (slice(3, 6), 1.0)):
        sizes = [(t_ns, twist[half]) for t_ns, twist in servo.sent]
        assert not judge_velocities(sizes, np.full(3, fastest), np.full(3, fastest / 0.15), 0.02)
    assert servo.controller.state(servo.now).position == pytest.approx(0.3)


def test_a_twist_of_another_frame_than_the_controllers_is_refused():
    servo = Servo()
    servo.node.order("take_over")
    servo.node.command(("tool0",), np.full(6, 0.1), servo.now)
    assert any("tool0" in line and "base" in line for _, line in servo.node.robot.log)
    assert servo.node.motion.takeover.state == ""


def test_a_person_who_falls_silent_stops_the_hand_that_servo_moves():
    servo = Servo()
    servo.policy = np.array([0.4, 0.0, 0.0, 0.0, 0.5, 0.0])
    servo.run(1.0)
    servo.node.order("take_over")
    servo.person = np.array([-0.3, 0.2, 0.0, 0.0, 0.0, -0.8])
    servo.run(1.0)
    servo.person = None
    silent_ns = servo.now
    assert not servo.run(1.0).any()
    moved = [t_ns for t_ns, twist in servo.sent if twist.any()]
    assert moved[-1] - silent_ns <= (0.2 + 0.15 + 0.03) * S
    assert "twist" in "; ".join(servo.node.robot.follower.safety.reasons)
