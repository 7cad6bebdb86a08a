"""Relays everything between the simulated robot and the nodes, and may corrupt it on the way.

The robot's topics are renamed to `robot/...` and those of inference's chunks to `model/...`; the relay passes
each message on under its original name. So a fault is in one place, nothing else changes, and no node can
tell that it is artificial. What reached the controllers and where the joints truly were is recorded in a time
that no one sets: steady time, or simulated time without its jumps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import rclpy
from rclpy.clock import Clock as RosClock
from rclpy.clock import ClockType
from rclpy.executors import ExternalShutdownException
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.executor import DirectExecutor

ROBOT, MODEL = "robot/", "model/"

GAP_NS = 30_000_000
"""The relay was late if its timer of 10 ms was."""


class Relay:
    """Relays the topics of one robot. sim_time: also publish /clock. A context manager.

    Attributes that corrupt messages, settable at any time: `cameras` (name -> "silent", "repeats" or
    "freezes"), `joints` ("silent" or "freezes"), `offset` (joint -> rad), `chunk` (maps each chunk), `late_s`
    (of commands) and `clock_stands`.
    """

    def __init__(self, contract: Contract, sim_time: bool = False) -> None:
        self.contract = contract
        self.cameras: dict[str, str] = {}
        self.joints, self.offset, self.late_s = "", dict[str, float](), 0.0
        self.chunk: Callable[[ActionChunk], ActionChunk] | None = None
        self.sent: list[tuple[int, str, Trajectory]] = []
        self.states: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._last: dict[str, bytes] = {}
        self._frozen: list[float] = []
        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node("relay", context=self._context)
        self._pass_on()
        # One for all: what two readings of clocks differ by is no step of a path.
        self._offset_ns = min(time.time_ns() - time.monotonic_ns() for _ in range(1000))
        self._sim_time, self._jumped_ns, self._last_jump_ns = sim_time, 0, 0
        self.clock_ns, self.clock_stands, self._ticked_ns = 1000 * 10**9, False, time.monotonic_ns()
        if sim_time:
            self._clock = self.node.create_publisher(Clock, "/clock", 10)
            self.node.create_timer(0.01, self._tick, clock=RosClock(clock_type=ClockType.STEADY_TIME))
            self.node.set_parameters([Parameter("use_sim_time", value=True)])
        self.gaps: list[tuple[int, int]] = []  # (when, how long) this process was not scheduled
        self._awake_ns = time.monotonic_ns()
        self.node.create_timer(0.01, self._note_gap, clock=RosClock(clock_type=ClockType.STEADY_TIME))
        self._executor = DirectExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._thread.join()
        self.node.destroy_node()
        self._context.try_shutdown()

    def time_ns(self) -> int:
        """The present time of the records."""
        if not self._sim_time:
            return time.monotonic_ns()
        since_ns = 0 if self.clock_stands else time.monotonic_ns() - self._ticked_ns
        return self.clock_ns - self._jumped_ns + since_ns

    def jump(self, by_ns: int) -> None:
        """Set /clock."""
        self._jumped_ns, self._last_jump_ns = self._jumped_ns + by_ns, by_ns
        self.clock_ns += by_ns

    def well(self) -> None:
        """Corrupt nothing."""
        self.cameras, self.joints, self.offset = {}, "", {}
        self.chunk, self.late_s, self.clock_stands = None, 0.0, False

    def renamed(self, node: str) -> dict[str, str]:
        """The remappings with which a node is started."""
        if node == "inference":
            return {"action_chunk": f"{MODEL}action_chunk"}
        if node != "sim_robot":
            return {}
        topics = [self.contract.joint_states.topic]
        topics += [camera.topic for camera in self.contract.cameras]
        topics += [controller.topic for controller in self.contract.controllers]
        return {topic: f"{ROBOT}{topic}" for topic in topics}

    def _pass_on(self) -> None:
        node, contract = self.node, self.contract
        for camera in contract.cameras:
            out = node.create_publisher(Image, camera.topic, qos.SENSOR)
            given = partial(self._on_image, camera.name, out)
            node.create_subscription(Image, f"{ROBOT}{camera.topic}", given, qos.SENSOR, raw=True)
        self._joints_out = node.create_publisher(JointState, contract.joint_states.topic, qos.SENSOR)
        topic = f"{ROBOT}{contract.joint_states.topic}"
        node.create_subscription(JointState, topic, self._on_joints, qos.SENSOR)
        self._chunks_out = node.create_publisher(ActionChunk, "action_chunk", qos.COMMAND)
        node.create_subscription(ActionChunk, f"{MODEL}action_chunk", self._on_chunk, qos.COMMAND)
        for controller in contract.controllers:
            out = node.create_publisher(JointTrajectory, f"{ROBOT}{controller.topic}", qos.COMMAND)
            given = partial(self._on_command, controller.topic, out)
            node.create_subscription(JointTrajectory, controller.topic, given, qos.REPORT)

    def _on_image(self, name: str, out: Publisher, data: bytes) -> None:
        how = self.cameras.get(name, "")
        if how == "silent":
            return
        if not how or name not in self._last:
            self._last[name] = data
        elif how == "freezes":
            data = self._last[name][:4] + data[4:12] + self._last[name][12:]  # its stamp in CDR
        else:
            data = self._last[name]
        out.publish(data)

    def _on_joints(self, message: JointState) -> None:
        order = [message.name.index(name) for name in self.contract.joint_names]
        position, velocity = (np.array(x)[order] for x in (message.position, message.velocity))
        self.states.append((self.time_ns(), position, velocity))
        if self.joints == "silent":
            return
        if self.joints == "freezes":
            message.position = self._frozen or message.position
            message.velocity = [0.0] * len(message.position)
        else:
            self._frozen = list(message.position)
        for name, away in self.offset.items():
            message.position[message.name.index(name)] += away
        self._joints_out.publish(message)

    def _on_chunk(self, message: ActionChunk) -> None:
        spoil = self.chunk
        self._chunks_out.publish(message if spoil is None else spoil(message))

    def _on_command(self, topic: str, out: Publisher, message: JointTrajectory) -> None:
        if self.late_s:
            threading.Timer(self.late_s, self._deliver, (topic, out, message)).start()
        else:
            self._deliver(topic, out, message)

    def _deliver(self, topic: str, out: Publisher, message: JointTrajectory) -> None:
        here_ns = self.time_ns()
        now_ns = here_ns + (self._jumped_ns if self._sim_time else self._offset_ns)
        with suppress(ValueError):
            trajectory = convert.trajectory_from_message(message, now_ns)
            times = trajectory.times_ns + (here_ns - now_ns)
            if abs(int(times[0]) - here_ns) > 10**9:  # of the time before a jump, of which no one had heard
                times = times + self._last_jump_ns
            moved = Trajectory(trajectory.joints, times, trajectory.positions, trajectory.velocities)
            self.sent.append((here_ns, topic, moved))
        out.publish(message)

    def _note_gap(self) -> None:
        before_ns, self._awake_ns = self._awake_ns, time.monotonic_ns()
        if self._awake_ns - before_ns > GAP_NS:
            self.gaps.append((self.time_ns(), self._awake_ns - before_ns))

    def _tick(self) -> None:
        steady_ns = time.monotonic_ns()
        if not self.clock_stands:
            self.clock_ns += steady_ns - self._ticked_ns
        self._ticked_ns = steady_ns
        message = Clock()
        convert.set_stamp(message.clock, self.clock_ns)
        self._clock.publish(message)

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            self._executor.spin()
