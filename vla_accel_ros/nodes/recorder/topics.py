"""The topics to record of a robot, by its contract: all inputs, outputs and reports.

Our own nodes publish with known QoS, so their topics are subscribed to from the start. The topics of others
(cameras, joints, force sensors, controllers' commands, which one of several adapters sends) are subscribed to
when their publishers appear, reliably if those offer it: a recorder must not lose what the network can keep.
What force sensors write to shared memory is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import String

from vla_accel_msgs.msg import (
    ActionChunk,
    FrameHandle,
    GroundTruth,
    LanguageOutput,
    LoopStats,
    Motion,
    Observed,
    Session,
)
from vla_accel_ros.contract.checks.graph_check import TF_STATIC, forces, odometry, person, transforms
from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.extensions import controller_kind
from vla_accel_ros.nodes.interfaces import interface, type_name

# A second of best-effort images: the writer may have to wait for the disk, the executor never does.
_IMAGES, _MESSAGES, _FORCES = 30, 200, 1000
_CAMERA = {"raw": Image, "compressed": CompressedImage, "ring": FrameHandle}


@dataclass(frozen=True)
class Recorded:
    """A topic to subscribe to. ours: published by a node of this package, reliably. camera: the camera of its
    frames."""

    kind: Any
    topic: str
    ours: bool = False
    latched: bool = False
    depth: int = _MESSAGES
    camera: str = ""

    @property
    def bag_type(self) -> str:
        """The type of the topic in the bag."""
        return type_name(Image if self.kind is FrameHandle else self.kind)


def recorded(contract: Contract) -> list[Recorded]:
    """Every topic of a robot, each once. Raises ValueError if an interface package is not installed."""
    entries = [
        Recorded(kind, topic, ours=True, latched=True)
        for kind, topic in (
            (Session, "session"),
            (String, "parameters"),
            (String, "instruction"),
            (String, "subtask"),
            (Motion, "motion"),
        )
    ]
    entries += [
        Recorded(kind, topic, ours=True)
        for kind, topic in (
            (Observed, "observed"),
            (ActionChunk, "action_chunk"),
            (String, "question"),
            (LanguageOutput, "language_output"),
            (LoopStats, "loop_stats"),
            (DiagnosticArray, "/diagnostics"),
        )
    ]
    for camera in contract.cameras:
        entries.append(Recorded(_CAMERA[camera.transport], camera.topic, depth=_IMAGES, camera=camera.name))
        if camera.info:
            entries.append(Recorded(CameraInfo, camera.info))
    entries.append(Recorded(JointState, contract.joint_states.topic))
    for topic in odometry(contract):
        entries.append(Recorded(interface(topic.type, "recording base.odometry"), topic.topic))
    for topic in transforms(contract):
        kind = interface(topic.type, f"recording {topic.about}")
        entries.append(Recorded(kind, topic.topic, latched=topic.topic == TF_STATIC))
    for sensor in forces(contract):
        kind = interface(sensor.type, f"recording {sensor.about}")
        entries.append(Recorded(kind, sensor.topic, depth=_FORCES))
    for topic in person(contract):
        entries.append(Recorded(interface(topic.type, f"recording {topic.about}"), topic.topic))
    entries += [Recorded(_command(controller), controller.topic) for controller in contract.commanded]
    entries.append(Recorded(GroundTruth, "ground_truth"))
    return entries


def _command(controller: Controller) -> Any:
    """The type of a controller's commands."""
    return interface(
        controller_kind(controller.kind).message, f"recording a controller of kind {controller.kind}"
    )
