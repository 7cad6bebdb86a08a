"""Samples of force sensors by topic: a WrenchStamped is read in place, efforts by the names of joints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import rclpy
from geometry_msgs.msg import WrenchStamped
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.trajectory.force_sources import Sample, TopicSource, wrench_of

STAMP_NS = 1_795_000_000_123_456_789
WRENCH = (1.5, -2.5, 3.5, 0.25, -0.5, 0.75)


def make_wrench(frame: str) -> WrenchStamped:
    message = WrenchStamped()
    message.header.frame_id = frame
    convert.set_stamp(message.header.stamp, STAMP_NS)
    force, torque = message.wrench.force, message.wrench.torque
    force.x, force.y, force.z, torque.x, torque.y, torque.z = WRENCH
    return message


@pytest.mark.parametrize("frame", ["", "a", "tool0", "wrist", "a_frame_of_some_length", "é" * 9])
def test_a_wrench_is_read_where_it_lies_whatever_its_frame(frame):
    assert wrench_of(serialize_message(make_wrench(frame))) == (STAMP_NS, WRENCH)


@pytest.mark.parametrize("length", range(0, 72, 5))
def test_bytes_that_are_no_wrench_are_an_empty_sample_and_nobody_s_end(length):
    whole = serialize_message(make_wrench("wrist"))
    assert len(whole) > length
    assert wrench_of(whole[:length]) == (0, ())
    assert wrench_of(b"\x00\x01\x00\x00" + b"\xff" * length) == (0, ())


class Owner(Node):
    """What a source needs of the trajectory node."""

    def now_ns(self) -> int:
        return STAMP_NS


@pytest.fixture
def owner(ros_domain: int) -> Iterator[Owner]:
    context = rclpy.Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    owner = Owner("trajectory", namespace="arm", context=context)
    yield owner
    owner.destroy_node()
    context.try_shutdown()


def efforts(kind: str) -> ForceSensor:
    joints = tuple(Quantity(f"effort of {name}", "Nm", (name,), 1.0, 2.0) for name in ("b", "a"))
    return ForceSensor("effort", joints, 100.0, 0.1, topic="told", type=kind)


def first(owner: Owner, source: TopicSource, kind: type, message: object) -> Sample:
    publisher = owner.create_publisher(kind, "told", qos.SENSOR)
    samples: list[Sample] = []

    def came() -> bool:
        samples.extend(source.read())
        return bool(samples)

    wait_until(came, lambda: publisher.publish(message))
    return samples[0]


def wait_until(condition: Callable[[], object], meanwhile: Callable[[], object]) -> None:
    until_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until_s, "nothing came within 30 s"
        meanwhile()
        time.sleep(0.02)


def test_efforts_are_those_of_the_joints_in_their_order(owner):
    source = TopicSource(owner, efforts("JointState"))
    message = JointState(name=["a", "x", "b"], effort=[1.0, 9.0, 2.0])
    convert.set_stamp(message.header.stamp, STAMP_NS)
    assert first(owner, source, JointState, message) == (STAMP_NS, (2.0, 1.0))
    source.close()


def test_joints_without_efforts_are_a_short_sample(owner):
    source = TopicSource(owner, efforts("JointState"))
    message = JointState(name=["a", "b"], position=[0.0, 0.0])
    assert first(owner, source, JointState, message)[1] == ()
    source.close()


def test_an_array_has_the_time_of_its_arrival(owner):
    source = TopicSource(owner, efforts("Float64MultiArray"))
    message = Float64MultiArray(data=[2.0, 1.0])
    assert first(owner, source, Float64MultiArray, message) == (STAMP_NS, (2.0, 1.0))
    source.close()
