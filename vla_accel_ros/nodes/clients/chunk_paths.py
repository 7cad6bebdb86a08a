"""Publishes where a robot's chunks lead, as markers, and receives /diagnostics for somebody who counts.

It only subscribes to the robot, best effort, so it holds nobody up. Nothing is computed unless somebody draws
the markers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import Point
from rclpy.duration import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import ColorRGBA, String
from visualization_msgs.msg import Marker, MarkerArray

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.files.kinematics import Kinematics
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.chunk_topic import TOPIC as CHUNKS
from vla_accel_ros.nodes.clients.client_node import FleetWatcher

TOPIC = "chunk_path"
MOST_HZ = 20.0
SHOWN_S = 0.5
MOST_ROWS = 1000
WIDTH_M = 0.004
EXECUTED, REST = (0.1, 0.7, 0.3), (0.6, 0.6, 0.6)
"""Colours of the actions up to the execution horizon, and of those after it."""


class ChunkPaths(FleetWatcher):
    """In the graph of this process's environment, in a robot's namespace; a context manager.

    tips: the links whose paths are shown, see Kinematics. heard: called with the lines of /diagnostics. say:
    called with a sentence about each URDF.
    """

    def __init__(
        self,
        namespace: str,
        joint_states: str,
        tips: Sequence[str],
        heard: Callable[[Sequence[DiagnosticStatus]], None],
        say: Callable[[str], object],
    ) -> None:
        super().__init__(heard, namespace)
        self._tips, self._say = tips, say
        self._description, self._robots = "", dict[tuple[str, ...], Kinematics | None]()
        self._positions: dict[str, float] = {}
        self._due_s = 0.0
        listen = self._node.create_subscription
        self._markers = self._node.create_publisher(MarkerArray, TOPIC, qos.COMMAND)
        listen(ActionChunk, CHUNKS, self._on_chunk, qos.SENSOR)
        listen(String, "robot_description", self._on_description, qos.LATCHED)
        listen(JointState, joint_states, self._on_joints, qos.SENSOR)

    def _on_joints(self, message: JointState) -> None:
        self._positions |= dict(zip(message.name, message.position))

    def _on_description(self, message: String) -> None:
        self._description = message.data
        self._robots.clear()

    def _on_chunk(self, message: ActionChunk) -> None:
        now_s, joints = time.monotonic(), tuple(message.joint_names)
        if now_s < self._due_s or not self._description or not self._markers.get_subscription_count():
            return
        if joints not in self._robots:
            self._robots = {joints: self._robot(joints)}
        robot = self._robots[joints]
        actions = np.array(message.actions, np.float64)
        if robot is None or not joints or actions.size % len(joints) or not np.isfinite(actions).all():
            return
        self._due_s = now_s + 1.0 / MOST_HZ
        rows = actions.reshape(-1, len(joints))[:MOST_ROWS]
        executed = message.execution_horizon or message.horizon
        markers = []
        for link, path in robot.paths(joints, rows, self._positions).items():
            markers.append(_strip(robot.frame, link, 0, path[:executed], EXECUTED))
            markers.append(_strip(robot.frame, link, 1, path[max(executed - 1, 0) :], REST))
        self._markers.publish(MarkerArray(markers=markers))

    def _robot(self, joints: tuple[str, ...]) -> Kinematics | None:
        try:
            robot = Kinematics(self._description, joints, self._tips)
        except ValueError as error:
            self._say(f"no paths: {error}")
            return None
        self._say(f"{TOPIC}: paths of {', '.join(robot.tips)} in the frame {robot.frame}")
        return robot


def _strip(frame: str, link: str, number: int, path: np.ndarray, colour: tuple[float, ...]) -> Marker:
    """A line through points [h, 3]; less than two are no line, which a viewer would refuse."""
    marker = Marker(ns=link, id=number, type=Marker.LINE_STRIP)
    marker.action = Marker.ADD if len(path) > 1 else Marker.DELETE
    marker.header.frame_id = frame  # with a stamp of 0 viewers take the newest transform
    marker.scale.x, marker.pose.orientation.w = WIDTH_M, 1.0
    marker.color = ColorRGBA(r=colour[0], g=colour[1], b=colour[2], a=1.0)
    marker.lifetime = Duration(seconds=SHOWN_S).to_msg()
    marker.points = [Point(x=x, y=y, z=z) for x, y, z in path.tolist()]
    return marker
