"""A mobile base beside an arm: it rolls by chunks within its limits, stops when they end, and is held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from force_arm import MS, START, S, Stepped, make_arm, make_sensor
from hypothesis import given
from hypothesis import strategies as st
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine, TrajectoryLine, make_contract

from vla_accel_ros.contract.parts import Base, Controller, Joint, Teleop
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.limits.joint_limits import JointLimits

LINEAR, ANGULAR, HARDER, TURNS_HARDER, TIMEOUT_S = 0.6, 1.5, 1.2, 6.0, 0.5
AGE_S, RAMP_S = 0.8, LINEAR / HARDER


class Robot(Stepped):
    """A base of yaw and x beside a joint. speed: yaw and x of the chunks [rad/s, m/s], None: none come.
    steps: actions of a chunk. stalls: the process does nothing. watched: the watchdog's timer runs. Attribute
    `commands`, with their times."""

    def __init__(self, mode: str = "blend", felt: bool = False) -> None:
        super().__init__()
        limits = JointLimits(*(np.full(1, x) for x in (0.0, 1.0, 2.0, 20.0)))
        axes = [("base.angular.z", ANGULAR), ("base.linear.x", LINEAR)]
        base = Base(
            axes=tuple(Joint(name, -v, v, v, 1.0, "velocity") for name, v in axes),
            places=(5, 0),
            controller=Controller("base/cmd_vel", (), "TwistStamped", 50.0, frame="base_link"),
            speeds=(LINEAR, ANGULAR),
            accelerations=(HARDER, TURNS_HARDER),
            timeout_s=TIMEOUT_S,
        )
        contract = make_contract(
            "joint_trajectory",
            make_arm(("arm",), limits),
            base=base,
            teleop=Teleop("leader/joint_states", 50.0, 0.2, {"arm": "arm"}),
            force=Force((make_sensor(),), Retreat(m=0.03), ("arm",)) if felt else None,
        )
        self.speed: tuple[float, float] | None = (0.0, 0.4)
        self.watched = True
        self.steps, self.stalls, self._request, self._felt, self.push_n = 10, False, 0, felt, 0.0
        self.commands: list[tuple[int, np.ndarray]] = []
        parameters = Parameters(replace(Options(), mode=mode))
        self.set_by_ns = 0  # how far ROS time was set
        clock = Clock(lambda: self.now + self.set_by_ns, lambda: self.now)
        self.begin(Process(contract, parameters, clock, self._line))

    def _line(self, controller: Controller) -> StreamLine | TrajectoryLine:
        return StreamLine(self._command) if controller.rate_hz else TrajectoryLine(lambda *sent: None)

    def _command(self, twist: np.ndarray) -> None:
        self.commands.append((self.now, twist.copy()))

    def step(self) -> None:
        self.now += MS
        k = (self.now - START) // MS
        if self.stalls:
            return
        if self._felt:
            self.feel(((1e-3 * (k % 7), 0.0, self.push_n, 0.0, 0.0, 0.0), self.now))
        if k % 20 == 0 and not self._felt:
            self.node.tick()
        if k % 10 == 0:
            self.node.joints(("arm",), np.full(1, 0.5), self.now + self.set_by_ns)
        if k % 100 == 0 and self.speed is not None:
            self._request += 1
            rows = [[0.5, *self.speed]] * self.steps
            self.node.chunk(make_chunk(rows, self.now + self.set_by_ns - 30 * MS, 0.1, self._request))
        if k % 20 == 0 and self.watched:
            self.node.watch()

    @property
    def velocity(self) -> np.ndarray:
        """What is commanded: yaw and x."""
        return self.commands[-1][1][[5, 0]]

    def assert_limits(self) -> None:
        """Of all that was commanded, as a base executes it."""
        times, twists = np.array([t for t, _ in self.commands]), np.array([v for _, v in self.commands])
        passed_s = np.diff(times)[:, None] / S
        before = np.where(passed_s > TIMEOUT_S, 0.0, twists[:-1])
        change = np.abs(twists[1:] - before)[:, [5, 0]] / np.minimum(passed_s, 0.04)
        assert (np.abs(twists[:, [5, 0]]) <= np.array([ANGULAR, LINEAR]) * 1.001).all()
        assert (change <= np.array([TURNS_HARDER, HARDER]) * 1.001).all()
        assert not twists[:, 1:5].any()


@pytest.mark.parametrize("mode", ["blend", "block"])
def test_the_base_rolls_by_chunks_and_stops_when_they_cease(mode: str) -> None:
    robot = Robot(mode)
    robot.run(1.5)
    assert robot.velocity == pytest.approx([0.0, 0.4])
    robot.speed = None
    robot.run(2.5)
    assert robot.follower.safety.state is MotionState.HOLDING and not robot.velocity.any()
    robot.speed = (-1.0, -0.3)
    robot.run(1.5)
    assert robot.velocity == pytest.approx([-1.0, -0.3])
    robot.assert_limits()


def test_the_base_stops_by_the_age_limit_of_chunks_however_long_they_are() -> None:
    robot = Robot()
    robot.steps = 50
    robot.run(1.5)
    last_ns, robot.speed = robot.now - 30 * MS, None
    robot.run(3.0)
    moving = [t_ns for t_ns, twist in robot.commands if twist.any()]
    assert AGE_S < (moving[-1] - last_ns) / S < AGE_S + RAMP_S + 0.15
    assert robot.commands[-1][0] > robot.now - 30 * MS, "it is commanded to stand"


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=1, max_size=5))
def test_whatever_the_rows_the_base_keeps_its_limits(speeds: list[tuple[float, float]]) -> None:
    robot = Robot()
    robot.run(1.0)
    for speed in speeds:
        robot.speed = speed
        robot.run(0.3)
    robot.assert_limits()


def test_a_hold_stops_the_base_by_its_ramp_and_a_release_makes_it_silent() -> None:
    robot = Robot()
    robot.run(1.5)
    robot.node.order("hold")
    robot.run(0.2)
    assert robot.follower.safety.state is MotionState.STOPPING and robot.velocity[1] > 0.1
    robot.run(1.0)
    assert robot.follower.safety.state is MotionState.HOLDING and not robot.velocity.any()
    robot.node.order("release")
    robot.run(0.5)
    count = len(robot.commands)
    robot.run(1.0)
    assert len(robot.commands) == count
    robot.assert_limits()


def test_a_person_who_takes_over_the_arm_stops_the_base() -> None:
    robot = Robot()
    robot.steps = 50
    robot.run(1.5)
    robot.node.order("take_over")
    for _ in range(60):  # the leader speaks, so nothing else stops the robot
        robot.node.command(("arm",), np.full(1, 0.5), robot.now)
        robot.run(0.02)
    assert robot.running and not robot.velocity.any()
    robot.node.order("give_back")
    robot.run(1.5)
    assert robot.velocity == pytest.approx([0.0, 0.4])
    robot.assert_limits()


@pytest.mark.parametrize(("pause_s", "share"), [(0.3, 1.0), (0.7, 0.0)])
def test_after_a_pause_the_base_goes_on_from_its_speed_unless_its_timeout_has_stopped_it(
    pause_s: float, share: float
) -> None:
    robot = Robot()
    robot.run(1.5)
    robot.stalls = True
    robot.run(pause_s)
    robot.stalls, count = False, len(robot.commands)
    robot.until(lambda: len(robot.commands) > count)
    first = robot.commands[count][1][0]
    assert first == pytest.approx(0.4 * share, abs=HARDER * 0.04 + 1e-9)
    robot.run(0.5)
    robot.assert_limits()


@pytest.mark.parametrize("poison", [np.nan, np.inf, 100.0])
def test_a_chunk_whose_base_is_not_finite_or_far_too_fast_moves_nothing(poison: float) -> None:
    robot = Robot()
    robot.run(1.5)
    sent = robot.node.robot.outputs.sent
    robot.speed = (0.0, poison)
    robot.run(0.5)
    assert robot.node.robot.outputs.sent == sent
    assert any("base" in line for _, line in robot.node.robot.log)
    robot.run(2.0)
    assert not robot.velocity.any() and robot.follower.safety.state is MotionState.HOLDING
    robot.assert_limits()


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_a_chunk_of_another_width_is_refused(columns: int) -> None:
    robot = Robot()
    with pytest.raises(ValueError, match="shape"):
        robot.follower.follow(make_chunk(np.zeros((10, columns)), robot.now), robot.now)


def test_a_contact_stops_the_base_too() -> None:
    robot = Robot(felt=True)
    robot.run(2.5)
    assert robot.velocity == pytest.approx([0.0, 0.4])
    robot.push_n, robot.speed, robot.watched = 20.0, None, False
    robot.run(RAMP_S + 0.1)
    assert not robot.velocity.any() and robot.reactions
    robot.assert_limits()


def test_a_clock_that_is_set_back_stops_the_base_by_its_ramp_and_it_goes_on_in_the_new_time() -> None:
    robot = Robot()
    robot.run(1.5)
    robot.set_by_ns = -5 * S
    robot.run(0.3)
    assert 0.0 < robot.velocity[1] < 0.4
    robot.run(3.0)
    assert robot.velocity == pytest.approx([0.0, 0.4])
    robot.assert_limits()
