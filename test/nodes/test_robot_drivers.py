"""Each robot of the launch files, by a stand-in of its driver: the contract fits the graph, chunks move it,
and MoveIt gets a UR and a Franka for as long as they are released.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from calling import call
from chunks import Policy
from control_msgs.action import FollowJointTrajectory
from rclpy.action import ActionClient
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robots.drivers import ROBOTS, RobotDriver
from robots.running import RunningDriver
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import share_path
from vla_accel_ros.tools.cli import main

S = 1_000_000_000
FILES = {"ur5e": "ur5e_robotiq"}
WAY = 0.15
"""Of each joint's range, to where chunks move it."""


@pytest.fixture
def robot(name: str) -> RobotDriver:
    return ROBOTS[name]().calm


@pytest.fixture
def contract(robot: RobotDriver) -> Contract:
    return robot.contract


@pytest.fixture
def driver(robot: RobotDriver, operator):
    with RunningDriver(robot) as driver:
        yield driver


@pytest.fixture
def policy(contract, operator, driver) -> Policy:
    """Away from where the joints are, by a share of their range."""
    policy = Policy(operator)
    ranges = np.array([joint.upper - joint.lower for joint in contract.joints])
    policy.goal = contract.to_policy(positions(driver, contract) + WAY * ranges)
    return policy


@pytest.fixture
def node(name: str, start):
    file = share_path(f"config/contracts/{FILES.get(name, name)}.yaml")
    return start("trajectory", autostart=True, contract=str(file))


def positions(driver: RunningDriver, contract: Contract) -> np.ndarray:
    return np.array([driver.position[name] for name in contract.joint_names])


@pytest.mark.parametrize("name", ROBOTS)
def test_chunks_move_every_joint_of_the_driver(name, contract, driver, policy, node, operator):
    begin, goal = positions(driver, contract), contract.to_robot(policy.goal)

    def nearer() -> bool:
        return bool((np.abs(positions(driver, contract) - goal) < 0.5 * np.abs(begin - goal)).all())

    operator.wait(policy.drives(nearer), 90.0, "motion of every joint")
    assert driver.rejected == []


@pytest.mark.parametrize("name", ["ur5e", "franka", "aloha"])
def test_doctor_finds_topics_and_controllers_of_the_driver_as_the_contract_has_them(
    name, driver, ros_domain, capsys
):
    file = share_path(f"config/contracts/{FILES.get(name, name)}.yaml")
    main(["doctor", "--json", "--seconds", "1", "--contract", str(file)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    for section in ("graph", "controllers"):
        found = [(f["level"], f["about"], f["what"]) for f in findings if f["section"] == section]
        assert found and {level for level, *_ in found} == {"ok"}, found
    assert not [f for f in findings if "no state of" in f["what"]]


@pytest.mark.parametrize("name", ["ur5e", "franka"])
def test_moveit_moves_the_released_robot_and_chunks_go_on_from_there(
    name, contract, driver, policy, node, operator
):
    arm = contract.controllers[0]
    begin = positions(driver, contract)

    def moved() -> bool:
        return bool(np.abs(positions(driver, contract) - begin).max() > 0.1)

    operator.wait(policy.drives(moved), 90.0, "motion")
    assert call(operator, Trigger, "trajectory/release", Trigger.Request()).success
    place = np.array([contract.home[joint] for joint in arm.joints]) - 0.1
    client = ActionClient(operator.node, FollowJointTrajectory, arm.action)
    trajectory = JointTrajectory(joint_names=list(arm.joints))
    point = JointTrajectoryPoint(positions=place.tolist(), velocities=[0.0] * len(place))
    convert.set_stamp(point.time_from_start, S)
    trajectory.points = [point]
    operator.wait(lambda: client.server_is_ready(), 30.0, "action of the controller")
    count = len(operator.sent)
    accepted = client.send_goal_async(FollowJointTrajectory.Goal(trajectory=trajectory))
    operator.wait(policy.drives(accepted.done), 30.0, "answer to MoveIt's goal")
    ended = accepted.result().get_result_async()
    operator.wait(policy.drives(ended.done), 60.0, "end of MoveIt's goal")
    moved_to = np.array([driver.position[joint] for joint in arm.joints])
    np.testing.assert_allclose(moved_to, place, atol=1e-3)
    assert len(operator.sent) == count

    assert call(operator, Trigger, "trajectory/reclaim", Trigger.Request()).success
    operator.wait(policy.drives(lambda: len(operator.sent) > count + 5), 90.0, "trajectories after it")
    first = next(s.trajectory for s in operator.sent[count:] if s.trajectory.joints == arm.joints)
    np.testing.assert_allclose(first.positions[0], place, atol=0.02)
    assert driver.rejected == [] and driver.goals == 1
    client.destroy()
