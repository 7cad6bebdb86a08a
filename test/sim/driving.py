"""Small builders for the simulator's tests: drive an episode, put the arm over a point."""

from __future__ import annotations

from training.expert import Expert
from vla_accel_ros.sim.kinematics import GRIPPER_OPEN, Pose, inverse
from vla_accel_ros.sim.robot import SimRobot


def drive(robot: SimRobot, expert: Expert, until_s: float, *, stop_at_success: bool = False) -> None:
    """Let the expert drive to until_s of simulation time."""
    while robot.time_s < until_s - 1e-9 and not (stop_at_success and robot.truth().success):
        robot.step(expert.act())


def joints_over(x: float, y: float, z: float, gripper: float = GRIPPER_OPEN) -> tuple[float, ...]:
    """Six joint angles with the tip at x, y, z, pointing down."""
    return (*inverse(Pose(x, y, z, 0.0, 0.0)), gripper)
