"""Things are touched: the simulated arm is driven into a plate by chunks, and a hand is moved by twists. Both
give way and go on, within limits."""

from __future__ import annotations

import numpy as np
import pytest
from force_arm import MS, START, ForceArm, S, Sample, make_sensor
from hand_robot import LINEAR, Robot

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.twist import RAMP_S
from vla_accel_ros.control.following.watchdog import OPERATOR, MotionState
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Why
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sim.kinematics import JOINTS, Pose, inverse
from vla_accel_ros.sim.robot import STEP_S, SimRobot
from vla_accel_ros.sim.tasks import tasks

PLATE_M, BOUND_N = 0.06, 30.0
ABOVE, INSIDE = Pose(0.2, 0.0, 0.12, 0.0, 0.0), Pose(0.2, 0.0, 0.02, 0.0, 0.0)
LIMITS = JointLimits.of(Contract.load(demo_contract()).joints)


class Plate:
    """Physics between an arm's commands and its force sensor. peak_n: the greatest force on the hand, without
    its weight."""

    def __init__(self, arm: ForceArm) -> None:
        self._arm, self.robot = arm, SimRobot(plate_m=PLATE_M)
        self.robot.reset(tasks()[0], 0, start=arm.position.tolist())
        self._rng = np.random.default_rng(0)
        self._commanded = arm.position
        self.peak_n = 0.0
        self.weight: np.ndarray | None = None
        arm.sample, arm.measure = self.sample, lambda _: self.robot.state().astype(float)

    def commands(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        still = np.repeat(self._commanded[None], len(times_s), axis=0)
        return still, np.zeros_like(still)

    def sample(self, now_ns: int, commanded: np.ndarray) -> Sample:
        self._commanded = commanded
        self.robot.advance((now_ns - START) / S, self)
        wrenches = self.robot.wrenches()
        if not wrenches:
            return None
        if self.weight is None and self.robot.time_s > 0.1:
            self.weight = wrenches[-1][1]
        if self.weight is not None:
            self.peak_n = max(
                self.peak_n, *(float(np.linalg.norm((w - self.weight)[:3])) for _, w in wrenches)
            )
        at_s, wrench = wrenches[-1]
        return tuple(wrench + self._rng.normal(0.0, 0.02, 6)), START + round(at_s * 1e9)

    def measured(self, commanded: np.ndarray) -> np.ndarray:
        """The joints, of an arm without a force loop, which is asked every 10 ms."""
        self.sample(self._arm.now, commanded)
        return self.robot.state().astype(float)


def make(streamed: bool, guarded: bool, **sensor: float) -> tuple[ForceArm, Plate]:
    arm = ForceArm(
        streamed,
        make_sensor(bias=4.0, **sensor),
        Retreat(rest_s=0.2),
        JOINTS,
        LIMITS,
        np.array((*inverse(ABOVE), 0.3)),
        guarded,
    )
    arm.speed, arm.goal = 0.15, np.array((*inverse(INSIDE), 0.3))
    plate = Plate(arm)
    if not guarded:
        arm.measure = lambda commanded: (plate.sample(arm.now, commanded), plate.robot.state().astype(float))[
            1
        ]
    return arm, plate


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "trajectories"])
def test_an_arm_that_is_driven_into_a_plate_gives_way_and_goes_on(streamed):
    arm, plate = make(streamed, guarded=True)
    arm.until(lambda: bool(arm.reactions), 6.0)
    assert arm.reactions[0].why is Why.CONTACT
    arm.until(lambda: not arm.running)
    assert plate.robot.view().tip.z < PLATE_M + 0.012
    arm.until(lambda: arm.running, 3.0)
    assert np.linalg.norm((np.array(plate.robot.data.sensordata[:6]) - plate.weight)[:3]) < 5.0
    assert plate.peak_n < BOUND_N
    arm.goal = arm.position  # a policy that has seen it goes up again
    arm.run(2.0)
    assert plate.robot.view().tip.z > 0.1
    assert not arm.held.faults and arm.running
    assert arm.broken() == []


def test_without_the_force_loop_it_presses_beyond_the_bound():
    arm, plate = make(True, guarded=False)
    arm.run(4.0)
    assert plate.peak_n > 3.0 * BOUND_N


def test_a_hard_hit_stops_it_and_holds():
    arm, _ = make(True, guarded=True)
    arm.speed = 2.0
    arm.until(lambda: bool(arm.held.faults), 6.0)
    arm.run(1.0)
    assert not arm.running
    assert any("the limit is 30 N" in fault for fault in arm.held.faults)
    assert arm.broken() == []


def test_wrenches_come_twice_a_tick_with_their_times():
    robot = SimRobot(plate_m=PLATE_M)
    robot.step(robot.target, 0.1)
    wrenches = robot.wrenches()
    times = np.array([stamp for stamp, _ in wrenches])
    np.testing.assert_allclose(np.diff(times), STEP_S / 2)
    assert len(wrenches) == 96 and times[-1] == pytest.approx(0.1)
    assert robot.wrenches() == []


WALL_M, N_PER_M = 0.10, 1500.0


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
    robot.resume()
    robot.until(lambda: robot.velocity > 0.19)
    robot.assert_ramps()


def test_a_sensor_that_falls_silent_stops_it(robot: Robot) -> None:
    robot.silent = True
    robot.until(lambda: not robot.running)
    robot.run(0.5)
    assert robot.velocity == 0.0 and robot.reactions[0].why is Why.BLIND
    robot.silent = False
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
    robot.follower.follow(robot.chunk(0.2), robot.now)  # not adopted yet
    (hand,) = robot.node.robot.outputs.streams
    assert hand.values()["chunks after_contact"] == 1
    robot.run(0.2)
    assert robot.velocity <= 0.0


@pytest.mark.parametrize("grippers", [("gripper",), ()], ids=["gripper", "none"])
@pytest.mark.parametrize("late_ms", [30, 330, 400, 450])
def test_however_late_chunks_are_it_never_moves_without_reacting(
    grippers: tuple[str, ...], late_ms: int
) -> None:
    """Chunks may be over for the joints that they have while they still move the hand."""
    robot = Robot(grippers)
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
