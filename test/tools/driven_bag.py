"""Bags of a robot that moves as a formula says, whose pictures tell the time and whose commands are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import yaml
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_msgs.msg import Motion, Observed
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.session import Session
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages.convert import session_to_message, set_stamp
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.recording import marks as marks_module
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.sensing.cameras.image import image_message

S = 1_000_000_000
START_NS = 5_000 * S
SIZE = (64, 96)
APART = 0.5
OBSERVED_AFTER_NS = S // 10
"""How old the pictures of an observation are."""


def measured(seconds: float, joint: int) -> float:
    """Where a joint is, seconds after the start."""
    return 0.1 * joint + 0.3 * np.sin(2.0 * seconds)


def sent(seconds: float, joint: int) -> float:
    """Where it is commanded to be."""
    return measured(seconds, joint) + 0.05 + 0.01 * seconds


def level(seconds: float) -> int:
    """The grey of a picture taken then."""
    return 30 + round(seconds * 30) * 2 % 200


class Drive:
    """Writes a bag of robots that do the same, each with its joints APART further on.

    contract: changes of the simulated arm's. seen: whether a camera's picture of a time is there. told,
    observed: (seconds, instruction) as it was given, and with which it was observed. picture: of every
    camera, instead of grey ones. motion: (seconds, state) as the trajectory node reports it.
    set_by: when the clock is set, and by how many seconds. spoilt: bytes and type of a message on a topic, a
    second after the start. marks: (seconds, event, task) as a person marks episodes. subtasks: (seconds,
    text) that is acted on. felt: where a joint says that it is, if not where it is measured. also: of a tick
    (300 a second), its time in seconds and its stamp, messages by their topics. description: a URDF.
    """

    def __init__(
        self,
        path: Path,
        seconds: float = 2.0,
        told: tuple[tuple[float, str], ...] = ((0.0, "reach the red block"),),
        seen: Callable[[str, float], bool] = lambda camera, seconds: True,
        observed: tuple[tuple[float, str], ...] = (),
        motion: tuple[tuple[float, int], ...] = (),
        size: tuple[int, int] = SIZE,
        commands: bool = True,
        set_by: tuple[float, float] = (np.inf, 0.0),
        spoilt: Mapping[str, tuple[bytes, str]] = MappingProxyType({}),
        robots: Sequence[str] = ("arm",),
        marks: tuple[tuple[float, str, str], ...] = (),
        subtasks: tuple[tuple[float, str], ...] = (),
        felt: Callable[[float, int], float] | None = None,
        picture: np.ndarray | None = None,
        also: Callable[[int, float, int], Iterable[tuple[str, object]]] = lambda *_: (),
        description: str = "",
        **changes: object,
    ) -> None:
        self._file = path.parent / f"{path.name}.yaml"
        document = yaml.safe_load(demo_contract().read_text()) | {"home": None} | changes
        document = {key: field for key, field in document.items() if field is not None}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(document, sort_keys=False))
        self.contract = Contract.load(self._file)
        self._picture, self._description = picture, description
        self._bag, self._topics, self._robots = McapBag(path), set[str](), robots
        self._now_ns = START_NS
        for robot in robots:
            self._write_to(f"/{robot}/session", session_to_message(self._session(robot), START_NS))
        words, observations, states, steps = list(told), list(observed), list(motion), list(subtasks)
        self._felt, unmarked = felt, list(marks)
        for tick in range(round(seconds * 300) + 1):
            now_s = tick / 300
            self._now_ns = START_NS + round((now_s + (set_by[1] if now_s >= set_by[0] else 0.0)) * S)
            while words and words[0][0] <= now_s:
                self._write("instruction", String(data=words.pop(0)[1]))
            while steps and steps[0][0] <= now_s:
                self._write("subtask", String(data=steps.pop(0)[1]))
            while unmarked and unmarked[0][0] <= now_s:
                self._write(marks_module.TOPIC, String(data=marks_module.text_of(*unmarked.pop(0)[1:])))
            while states and states[0][0] <= now_s:
                report = Motion(state=states.pop(0)[1])
                set_stamp(report.header.stamp, self._now_ns)
                self._write("motion", report)
            while observations and observations[0][0] <= now_s:
                names = [camera.name for camera in self.contract.cameras]
                seen_with = Observed(instruction=observations.pop(0)[1], cameras=names)
                set_stamp(seen_with.header.stamp, self._now_ns)
                seen_with.stamps = [Time() for _ in names]
                for stamp in seen_with.stamps:
                    set_stamp(stamp, self._now_ns - OBSERVED_AFTER_NS)
                self._write("observed", seen_with)
            for topic, (raw, kind) in spoilt.items() if tick == 300 else ():
                self._write(topic, raw, kind)
            for topic, message in also(tick, now_s, self._now_ns):
                self._write(topic, message)
            if tick % 3 == 0:
                for number, robot in enumerate(robots):
                    message = self._joints(now_s, APART * number)
                    self._write_to(f"/{robot}/{self.contract.joint_states.topic}", message)
            if tick % 10 == 0:
                for camera in self.contract.cameras:
                    if seen(camera.name, now_s):
                        self._add_frame(camera.topic, now_s, size)
            if tick % 30 == 0 and commands:
                self._command(now_s)
        self._bag.close()

    def _write(self, topic: str, message: object, kind: str = "") -> None:
        for robot in self._robots:
            self._write_to(topic if topic.startswith("/") else f"/{robot}/{topic}", message, kind)

    def _write_to(self, name: str, message: object, kind: str = "") -> None:
        kind = kind or type_name(type(message))
        if name not in self._topics:
            self._topics.add(name)
            self._bag.add(Topic(name, kind, definition(kind), True))
        raw = message if isinstance(message, bytes | bytearray) else serialize_message(message)
        self._bag.write(name, self._now_ns, raw)

    def _add_frame(self, topic: str, now_s: float, size: tuple[int, int]) -> None:
        grey = np.full((*size, 3), level(now_s), np.uint8)
        picture = grey if self._picture is None else self._picture
        self._write(topic, image_message(self._now_ns, "camera", picture), "sensor_msgs/msg/Image")

    def _joints(self, now_s: float, further: float) -> JointState:
        names = self.contract.joint_names
        positions = [(self._felt or measured)(now_s, j) + further for j in range(len(names))]
        message = JointState(name=list(names), position=positions)
        set_stamp(message.header.stamp, self._now_ns)
        return message

    def _command(self, now_s: float) -> None:
        names = self.contract.joint_names
        for controller in self.contract.controllers:
            joints = [names.index(name) for name in controller.joints]
            if controller.kind in ("forward_command", "parallel_gripper"):
                self._write(controller.topic, Float64MultiArray(data=[sent(now_s, j) for j in joints]))
                continue
            message = JointTrajectory(joint_names=list(controller.joints))
            set_stamp(message.header.stamp, self._now_ns)
            for step in range(31):
                point = JointTrajectoryPoint(positions=[sent(now_s + step / 30, j) for j in joints])
                duration = point.time_from_start
                duration.sec, duration.nanosec = divmod(round(step * S / 30), S)
                message.points.append(point)
            self._write(controller.topic, message)

    def _session(self, robot: str) -> Session:
        cameras = {camera.name: f"/{robot}/{camera.topic}" for camera in self.contract.cameras}
        return Session(
            id="drive",
            model="/nowhere",
            checksum="",
            contract=self._file.read_text(),
            urdf=self._description,
            cameras=tuple(cameras),
            topics=tuple(cameras.values()),
            settings=json.dumps({}),
            device="",
            versions=(),
            build="",
        )
