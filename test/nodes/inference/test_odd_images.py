"""Images that come twice, late or in any order: a set is seen once, and no older frame after a newer one."""

from __future__ import annotations

import random

import numpy as np
from builders import make_checkpoint
from sensor_msgs.msg import Image, JointState

from vla_accel_msgs.msg import Observed
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.messages.convert import set_stamp, stamp_ns

MS = 1_000_000


class Cameras:
    """Drivers of all cameras and the joints, with the stamps they are told."""

    def __init__(self, operator: Operator) -> None:
        contract = operator.contract
        publish = operator.node.create_publisher
        self._images = [publish(Image, camera.topic, qos.SENSOR) for camera in contract.cameras]
        self._joints = publish(JointState, contract.joint_states.topic, qos.SENSOR)
        self._state = JointState(name=list(contract.joint_names), position=[0.0] * len(contract.joints))
        self._image = Image(height=8, width=8, encoding="rgb8", step=24, data=bytes(192))

    def send(self, *stamps_ns: int) -> None:
        """A frame of all cameras for each stamp, in this order, and joints of that time."""
        for sent_ns in stamps_ns:
            for message, publishers in ((self._state, [self._joints]), (self._image, self._images)):
                set_stamp(message.header.stamp, sent_ns)
                for publisher in publishers:
                    publisher.publish(message)


def test_frames_twice_late_and_shuffled(start, operator, tmp_path):
    model = make_checkpoint(tmp_path / "model")
    start("inference", model=str(model), steps=1, vision_hz=200.0, language_hz=0.0, autostart=True)
    cameras, chance = Cameras(operator), random.Random(0)
    observed: list[Observed] = []
    operator.node.create_subscription(Observed, "observed", observed.append, qos.REPORT)
    operator.instruct("reach the red block")
    sent: list[int] = []

    def another() -> bool:
        """Every 30 ms a new frame, and then some of the last half second again, in any order."""
        now_ns = operator.now_ns()
        if not sent or now_ns - sent[-1] > 30 * MS:
            sent.append(now_ns)
            recent = [stamp for stamp in sent if now_ns - stamp < 400 * MS]
            cameras.send(now_ns, *chance.choices(recent, k=3), now_ns, now_ns)
        return len(operator.chunks) > 40

    operator.wait(another, 180.0, "chunks of 40 frames")
    stamps = np.array([received.chunk.stamp_ns for received in operator.chunks])
    versions = np.array([received.chunk.kv_version for received in operator.chunks])
    assert (np.diff(stamps) >= 0).all() and set(stamps) <= set(sent)  # one camera's frame may come first
    assert (np.diff(versions) > 0).all()
    sets = np.array([[stamp_ns(stamp) for stamp in message.stamps] for message in observed])
    assert len(sets) > 40 and (np.diff(sets, axis=0) >= 0).all()
    assert len(np.unique(sets, axis=0)) == len(sets)
    assert not operator.refused
