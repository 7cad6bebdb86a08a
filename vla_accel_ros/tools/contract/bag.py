"""Reads what a robot offered from a bag of it, for a contract.

A bag shows what was published, not who listened: controllers are known by the trajectories that they were
sent, which name their joints.
"""

from __future__ import annotations

from pathlib import Path

from vla_accel_ros.contract.checks.graph_check import IMAGE_TYPES, JOINTS_TYPE
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sensing.survey import DESCRIPTION, TYPES, ControllerOffer, Survey
from vla_accel_ros.tools.bags import STRING, TRAJECTORY, stamp_ns


def survey_bag(path: Path, namespace: str, seconds: float) -> Survey:
    """The first seconds of a bag. namespace: the robot's. Raises ValueError if it cannot be read."""
    bag = Bag(path)
    bag.survey()
    survey = Survey(f"the bag {path.name}", f"/{namespace.strip('/')}" if namespace.strip("/") else "")
    survey.note({topic: [kind] for topic, kind in bag.topics.items()})
    sent: dict[str, tuple[str, ...]] = {}
    end_ns = 0
    for entry in bag.entries((*TYPES, STRING, TRAJECTORY)):
        end_ns = end_ns or entry.log_ns + int(seconds * 1e9)
        if entry.log_ns > end_ns:
            break
        if entry.type in (IMAGE_TYPES["raw"], IMAGE_TYPES["compressed"]) and entry.topic in survey.streams:
            survey.image(entry.topic, entry.data, entry.log_ns)
        elif entry.type == JOINTS_TYPE:
            message = bag.decode(entry)
            survey.joints(
                entry.topic, message.name, message.position, stamp_ns(message.header.stamp), entry.log_ns
            )
        elif entry.type == IMAGE_TYPES["ring"]:
            message = bag.decode(entry)
            size = message.height, message.width
            survey.handle(entry.topic, size, message.encoding, stamp_ns(message.header.stamp), entry.log_ns)
        elif entry.type == TRAJECTORY:
            sent[entry.topic] = tuple(bag.decode(entry).joint_names)
        elif entry.topic.rpartition("/")[2] == DESCRIPTION:
            survey.description, survey.description_origin = (
                bag.decode(entry).data,
                f"{entry.topic} in {path.name}",
            )
    survey.controllers = [
        ControllerOffer(
            topic.rpartition("/")[0], "joint_trajectory", topic, joints, origin=f"sent in {path.name}"
        )
        for topic, joints in sent.items()
        if topic.startswith(f"{survey.namespace}/")
    ]
    return survey
