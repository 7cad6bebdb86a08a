"""A hand that is moved by twists and touches something: it goes back the way it came, and stays where a
contact is too great."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
from force_arm import MS, START, Held, S, Stepped, make_sensor
from motion import make_chunk

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.twist import RAMP_S, TwistBuffer
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import OPERATOR, MotionState, Safety, Watchdog
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force, ForceGuard, Reaction, Why
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.limits.joint_limits import JointLimits

LINEAR, TICK = 0.5, 10 * MS
WALL_M, N_PER_M = 0.10, 1500.0


class Robot(Stepped):
    """A hand on a line, with a gripper or no joint at all, and a force sensor that is asked each millisecond.

    force_n: of the hand's position; speed: of the chunks [m/s]; None: none come.
    """

    def __init__(self, joints: tuple[str, ...]) -> None:
        limits = JointLimits(*(np.full(len(joints), x) for x in (0.0, 1.0, 2.0, 20.0)))
        retreat = Retreat(m=0.03)
        self.twist = TwistBuffer("second", LINEAR, 1.0, TICK / S, way_back=retreat.hand)
        unwatched = FollowingError(np.full(len(joints), np.inf), np.zeros(len(joints)))
        safety = Safety(Watchdog({"joint_states": 0.3, "chunk": 0.5}))
        self.follower = ChunkFollower(TrajectoryBuffer(joints, limits), safety, 0.5, self.twist, unwatched)
        force = Force((make_sensor(),), retreat, joints)
        self.guard = ForceGuard(force, joints, limits, np.zeros(len(joints), bool), self.twist)
        self.held = Held()
        self.held.over(self.follower)
        self.reactions: list[Reaction] = []
        self.taking = TakingOver(self.guard, self.held, nullcontext(), self.reactions.append)
        self.taking.begin(self.follower)
        self.joints, self.now, self.position, self.velocity = joints, START, 0.0, 0.0
        self.force_n: Callable[[float], float] = lambda position: 0.0
        self.speed: float | None = 0.2
        self.velocities: list[float] = []
        self.furthest, self._request, self.late_ns = 0.0, 0, 30 * MS

    @property
    def running(self) -> bool:
        return self.follower.safety.state is MotionState.RUNNING

    def step(self) -> None:
        """A millisecond."""
        self.now += MS
        k = (self.now - START) // MS
        self.position += 1e-3 * self.velocity
        self.furthest = max(self.furthest, self.position)
        force = 1e-3 * (k % 7), 0.0, self.force_n(self.position), 0.0, 0.0, 0.0
        self.guard.take(0, force, self.now, self.now)
        reaction = self.guard.step(self.now, 0)
        if reaction is not None:
            self.reactions.append(reaction)
        if k % 10 == 0:
            self.follower.measured(np.full(len(self.joints), 0.5), self.now, self.now)
            command = self.twist.tick(self.now)
            self.velocity = 0.0 if command is None else float(command[0])
            self.velocities.append(self.velocity)
        if k % 100 == 0 and self.speed is not None:
            self._request += 1
            row = [self.speed, 0, 0, 0, 0, 0] + [0.8] * len(self.joints)
            self.taking.adopt(self.now)
            chunk = make_chunk([row] * 10, self.now - self.late_ns, 0.05, self._request)
            path = self.follower.follow(chunk, self.now)
            if path is not None:
                self.guard.follow(path)
        if k % 20 == 0:
            self.taking.adopt(self.now)
            _, path = self.follower.step(self.now)
            if path is not None:
                self.guard.follow(path)
            self.taking.watch(self.now)

    def assert_ramps(self) -> None:
        moved = self.velocities[int(np.flatnonzero(self.velocities)[0]) :]
        change = np.abs(np.diff(moved)) * S / TICK
        assert (change <= LINEAR / RAMP_S * 1.001).all()


@pytest.fixture(params=[("gripper",), ()], ids=["gripper", "none"])
def robot(request: pytest.FixtureRequest) -> Robot:
    robot = Robot(request.param)
    robot.until(lambda: robot.velocity > 0.19)
    return robot


def wall(position: float) -> float:
    return N_PER_M * max(0.0, position - WALL_M)


def test_it_goes_back_from_a_wall_and_goes_on_when_that_is_over(robot: Robot) -> None:
    robot.force_n = wall
    robot.until(lambda: bool(robot.reactions))
    assert robot.reactions[0].why is Why.CONTACT and "the limit is 10 N" in robot.reactions[0].sentence
    touched_m = robot.position
    robot.until(lambda: not robot.running)
    robot.speed = None
    robot.until(lambda: robot.follower.safety.state is MotionState.HOLDING)
    assert [reaction.why for reaction in robot.reactions] == [Why.CONTACT, Why.RETREAT, Why.OVER]
    brakes_m = 0.5 * 0.2**2 / (LINEAR / RAMP_S)
    assert robot.furthest < touched_m + brakes_m + 0.2 * 0.03
    assert wall(robot.position) == 0.0 and robot.velocity == 0.0
    assert "gives way" in next(iter(robot.held.holds), "") or not robot.held.holds
    robot.force_n, robot.speed = lambda position: 0.0, 0.2
    robot.until(lambda: robot.running and robot.position > WALL_M + 0.05)
    robot.assert_ramps()
    assert not robot.held.faults


def test_a_collision_stops_it_until_someone_resumes(robot: Robot) -> None:
    robot.force_n = lambda position: 100.0
    robot.until(lambda: bool(robot.reactions))
    assert robot.reactions[0].why is Why.COLLISION
    at_m = robot.position
    robot.force_n = lambda position: 0.0
    robot.run(2.0)
    assert len(robot.held.faults) == 1 and "free the arm" in next(iter(robot.held.faults))
    assert robot.velocity == 0.0 and robot.position < at_m + 0.02 and not robot.running
    for reason in list(robot.held.holds):
        robot.held.faults.pop(reason, None)
        robot.held.resume(reason)
    robot.taking.forgive()
    robot.until(lambda: robot.velocity > 0.19)
    robot.assert_ramps()


def test_a_sensor_that_falls_silent_stops_it(robot: Robot) -> None:
    taken = robot.guard.take
    robot.guard.take = lambda *given: None  # type: ignore[method-assign]
    robot.until(lambda: not robot.running)
    robot.run(0.5)
    assert robot.velocity == 0.0 and robot.reactions[0].why is Why.BLIND
    robot.guard.take = taken  # type: ignore[method-assign]
    robot.until(lambda: robot.velocity > 0.19)
    robot.assert_ramps()


def test_an_operators_hold_ends_the_way_back(robot: Robot) -> None:
    robot.force_n = lambda position: 15.0
    robot.until(lambda: robot.velocity < -0.05)
    robot.held.hold(OPERATOR)
    robot.run(0.3)
    assert robot.velocity == 0.0
    assert robot.reactions[-1].why is Why.OVER
    robot.assert_ramps()


def test_a_contact_that_lasts_ends_where_it_gave_way_and_needs_someone(robot: Robot) -> None:
    robot.force_n = lambda position: 15.0
    robot.until(lambda: bool(robot.reactions))
    at_m = robot.position
    robot.run(3.0)
    assert robot.velocity == 0.0 and at_m - 0.03 <= robot.position < at_m
    assert any("gave way as far as it may" in fault for fault in robot.held.faults)


def test_chunks_that_come_between_a_contact_and_the_nodes_knowing_move_nothing(robot: Robot) -> None:
    robot.force_n = lambda position: 15.0
    robot.until(lambda: bool(robot.reactions))
    robot._request += 1
    row = [0.2, 0, 0, 0, 0, 0] + [0.8] * len(robot.joints)
    chunk = make_chunk([row] * 10, robot.now - 30 * MS, 0.05, robot._request)
    robot.follower.follow(chunk, robot.now)  # not adopted yet
    assert robot.twist.counts["after_contact"] == 1
    robot.run(0.2)
    assert robot.velocity <= 0.0


@pytest.mark.parametrize("joints", [("gripper",), ()], ids=["gripper", "none"])
@pytest.mark.parametrize("late_ms", [30, 330, 400, 450])
def test_however_late_chunks_are_it_never_moves_without_reacting(
    joints: tuple[str, ...], late_ms: int
) -> None:
    """Chunks may be over for the joints that they have while they still move the hand."""
    robot = Robot(joints)
    robot.late_ns = late_ms * MS
    for _ in range(2000):
        robot.step()
        if robot.velocity:
            break
    robot.force_n = lambda position: 100.0
    robot.run(0.02)
    if robot.velocity:
        assert [reaction.why for reaction in robot.reactions] == [Why.COLLISION]
    robot.run(0.3)
    assert robot.velocity == 0.0
