"""The simulated arm is driven into a plate by chunks: with the force loop it gives way and goes on, without
it presses several times as hard."""

from __future__ import annotations

import numpy as np
import pytest
from force_arm import START, ForceArm, S, Sample, make_sensor

from vla_accel_ros.contract.contract import Contract
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
