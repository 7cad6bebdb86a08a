"""A hand that is moved by twists and touches something: it goes back the way it came, and stays where a
contact is too great."""

from __future__ import annotations

import pytest
from force_arm import MS
from hand_robot import LINEAR, Robot

from vla_accel_ros.control.chunking.twist import RAMP_S
from vla_accel_ros.control.following.watchdog import OPERATOR, MotionState
from vla_accel_ros.control.force.guard import Why

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
