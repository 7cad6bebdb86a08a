"""The simulated robot keeps the promises of a real robot's driver: one that all these tests look at."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from calling import stop_cameras
from running import NodeProcess, until
from sensor_msgs.msg import Image
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.joint_trajectory import TrajectoryMessage
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import choose_task


@pytest.fixture
def ros_domain(shared_domain: int) -> int:
    """Of the robot that all these tests share."""
    return shared_domain


@pytest.fixture(scope="module")
def robot(shared_start) -> NodeProcess:
    return shared_start("sim_robot")


@pytest.fixture
def send(operator: Operator) -> Callable[[Trajectory], None]:
    """send(trajectory): each controller gets its share, when it is listening."""
    controllers = operator.contract.controllers
    publishers = [operator.node.create_publisher(JointTrajectory, c.topic, qos.COMMAND) for c in controllers]

    def send(trajectory: Trajectory) -> None:
        for controller, publisher in zip(controllers, publishers):
            operator.wait(publisher.get_subscription_count, 90.0, "controller listening")
            publisher.publish(TrajectoryMessage(controller.joints).fill(trajectory, trajectory.start_ns))

    return send


def watched(operator: Operator) -> dict[str, list[Image]]:
    """The images of each camera, as they come."""
    images: dict[str, list[Image]] = {camera.name: [] for camera in operator.contract.cameras}
    for camera in operator.contract.cameras:
        operator.node.create_subscription(Image, camera.topic, images[camera.name].append, qos.SENSOR)
    return images


def test_streams_come_at_their_rates_with_stamps_of_the_present(robot, contract):
    with Operator(contract) as operator:
        images = watched(operator)
        operator.wait(lambda: len(operator.joints) > 150, 90.0, "150 joint states")
        joints = operator.joints[50:]
        period_s = (joints[-1].stamp_ns - joints[0].stamp_ns) * 1e-9 / (len(joints) - 1)
        assert 0.007 < period_s < 0.1  # 0.01 where nothing else runs
        assert abs(operator.now_ns() - operator.measured.stamp_ns) < 1e9
        operator.wait(lambda: all(images.values()), 90.0, "images of both cameras")
        image = images["wrist"][-1]
        assert (image.encoding, image.height, image.width, image.step) == ("rgb8", 224, 224, 672)
        assert len(set(image.data)) > 20  # a scene, not a blank


def test_a_trajectory_moves_the_arm_and_it_holds_at_the_end(robot, operator, send):
    begin = operator.wait(lambda: operator.measured, 90.0, "joint state")
    goal = begin.positions + np.array([0.4, 0.1, -0.1, 0.1, 0.3, 0.2])
    now_ns = operator.now_ns()
    times = np.array([now_ns, now_ns + 800_000_000])
    velocities = np.zeros((2, 6))
    send(Trajectory(operator.contract.joint_names, times, np.stack([begin.positions, goal]), velocities))
    operator.wait(
        lambda: operator.measured.stamp_ns > now_ns + 1_500_000_000, 90.0, "joint state after the motion"
    )
    np.testing.assert_allclose(operator.measured.positions, goal, atol=0.05)
    assert np.abs(operator.measured.velocities).max() < 0.02


@pytest.mark.parametrize(
    ("age_s", "end_velocity", "reason"),
    [(2.0, 0.0, "the trajectory ended"), (-0.5, 1.0, "end with zero velocity")],
)
def test_a_trajectory_that_is_over_or_ends_in_motion_is_rejected(
    robot, operator, send, age_s, end_velocity, reason
):
    robot.forget_log()
    begin = operator.wait(lambda: operator.measured, 90.0, "joint state")
    velocities = np.full((1, 6), end_velocity)
    names = operator.contract.joint_names

    def logged() -> bool:  # one rejection a second
        times = np.array([operator.now_ns() - round(age_s * 1e9)])
        send(Trajectory(names, times, begin.positions[None] + 0.3, velocities))
        return reason in robot.log

    until(logged, 90.0, f"{reason!r} in the log", lambda: robot.log)
    count = len(operator.joints)
    operator.wait(lambda: len(operator.joints) > count + 30, 90.0, "joint states afterwards")
    np.testing.assert_allclose(operator.measured.positions, begin.positions, atol=0.02)


def test_reset_puts_the_scene_of_a_seed_and_refuses_an_unknown_task(robot, operator):
    instruction = operator.reset("place", 7, timeout_s=60.0)
    assert instruction == choose_task("place", 7).instruction
    truth = operator.wait(
        lambda: operator.truth and operator.truth.instruction == instruction and operator.truth,
        90.0,
        "ground truth of the new scene",
    )
    alike = SimRobot()
    alike.reset(choose_task("place", 7), 7)
    blocks = alike.truth().view.blocks
    for name, pose in zip(truth.names, truth.poses):
        if name.endswith("_block"):
            block = blocks[name.removesuffix("_block")]
            assert math.dist((pose.position.x, pose.position.y), (block.x, block.y)) < 0.005
    with pytest.raises(ValueError, match=r"'dance': .*reach, place, follow"):
        operator.reset("dance", 0)


def test_an_instruction_changes_what_is_scored(robot, operator):
    first = operator.reset("reach", 1, timeout_s=60.0)
    other = "reach the red block" if "red" not in first else "reach the blue block"
    operator.instruct(other)
    operator.wait(
        lambda: operator.truth and operator.truth.instruction == other, 90.0, "score of the new words"
    )
    operator.instruct("make me a coffee")
    count = len(operator.truths)
    operator.wait(lambda: len(operator.truths) > count + 3, 90.0, "further ground truth")
    assert operator.truth.instruction == other


def test_a_stopped_camera_is_silent_and_the_other_goes_on(robot, contract):
    with Operator(contract) as operator:
        images = watched(operator)

        def newest_ns() -> int:
            return convert.stamp_ns(images["front"][-1].header.stamp)

        operator.wait(lambda: images["front"], 90.0, "image of the front camera")
        stop_cameras(operator, "front")
        stopped, count = operator.now_ns(), len(images["wrist"])
        operator.wait(lambda: len(images["wrist"]) > count + 10, 90.0, "images of the wrist camera")
        assert newest_ns() <= stopped
        stop_cameras(operator)
        operator.wait(lambda: newest_ns() > stopped, 90.0, "front camera again")
