"""The simulated robot's parameters, and how it ends."""

from __future__ import annotations

import os

import numpy as np
import pytest
from geometry_msgs.msg import WrenchStamped
from sensor_msgs.msg import CameraInfo

from vla_accel_ros.nodes import qos
from vla_accel_ros.sensing.force_slot import ForceReader
from vla_accel_ros.sim.robot import SimRobot


def test_camera_info_projects_as_the_renderer_does(start, operator):
    start("sim_robot", image_width=160, image_height=120)
    infos: list[CameraInfo] = []
    operator.node.create_subscription(CameraInfo, "camera/front/camera_info", infos.append, qos.SENSOR)
    info = operator.wait(lambda: infos and infos[-1], 90.0, "camera_info")
    robot = SimRobot(image_size=(120, 160))
    camera = robot.model.camera("front")
    rotation = robot.data.cam("front").xmat.reshape(3, 3)
    for point in ((0.2, 0.1, 0.0), (0.3, -0.12, 0.05)):
        x, y, z = rotation.T @ (np.array(point) - camera.pos)  # MuJoCo looks along -z with y up
        u, v, w = np.array(info.p).reshape(3, 4) @ np.array([x, -y, -z, 1.0])
        expected = np.array(robot.project(*point)) * (160, 120) - 0.5  # pixel centres at whole numbers
        np.testing.assert_allclose((u / w, v / w), expected, atol=1e-6)


def test_it_ends_cleanly_on_sigterm_and_refuses_a_wrong_parameter(start, operator):
    robot = start("sim_robot")
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    assert robot.end() == 0
    refused = start("sim_robot", namespace="wrong", task="dance")
    assert refused.process.wait(60.0) == 2
    assert "parameter 'task' is 'dance': give one of reach, place, follow" in refused.log


def test_with_a_plate_it_has_a_force_sensor_on_a_topic_and_in_a_slot(start, operator):
    slot = f"sim-{os.getpid()}"
    heard: list[WrenchStamped] = []
    reader = ForceReader(slot)
    operator.node.create_subscription(WrenchStamped, "wrist/wrench", heard.append, qos.SENSOR)
    start("sim_robot", plate=True, force_slot=slot, image_width=32, image_height=32)
    read: list[tuple[int, tuple[float, ...]]] = []

    def enough() -> bool:
        read.extend(reader.read())
        return len(heard) > 50 and len(read) > 200

    operator.wait(enough, 90.0, "wrenches")
    stamps = np.array([stamp_ns for stamp_ns, _ in read])
    assert (np.diff(stamps) > 0).all()
    newest = heard[-1].wrench.force
    assert 1.0 < abs(newest.z) < 3.0  # the weight of the hand
    assert read[-1][1][2] == pytest.approx(newest.z, abs=0.5)
