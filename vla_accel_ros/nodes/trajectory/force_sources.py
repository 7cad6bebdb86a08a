"""Sources of force samples: a slot of shared memory, or a topic that is received in its own thread.

A sensor's topic has its own node and executor, because a chunk may keep the trajectory node's executor busy
for milliseconds. A WrenchStamped, at 1 kHz, is read in place and not converted to a message.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from vla_accel_ros.contract.checks.graph_check import FORCE_TYPES
from vla_accel_ros.control.force.sensor import ForceSensor
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.sensing.force_slot import ForceReader

_KEPT = 64
_LOOK_S = 0.2

Sample = tuple[int, tuple[float, ...]]


class Source(Protocol):
    """Gives new samples; `problem` says why there are none, if that is known."""

    @property
    def problem(self) -> str: ...

    def read(self) -> list[Sample]:
        """(stamp_ns, sample), oldest first."""
        ...

    def close(self) -> None: ...


def open_source(node: ManagedNode, sensor: ForceSensor) -> Source:
    """The source of a sensor of a contract. Raises ValueError for an invalid slot name."""
    return ForceReader(sensor.slot) if sensor.slot else TopicSource(node, sensor)


class TopicSource:
    """The newest samples of a topic. Its node is named after the trajectory node and the sensor."""

    problem = ""

    def __init__(self, owner: ManagedNode, sensor: ForceSensor) -> None:
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._joints = tuple(quantity.axes[0] for quantity in sensor.quantities)
        self._clock_ns = owner.now_ns
        self._node = Node(
            f"{owner.get_name()}_{sensor.name}",
            namespace=owner.get_namespace(),
            context=owner.context,
            use_global_arguments=False,  # these would give it the trajectory node's name
            enable_rosout=False,
            start_parameter_services=False,
            parameter_overrides=[Parameter("use_sim_time", value=_simulated(owner))],
        )
        topic = owner.resolve_topic_name(sensor.topic)
        heard: dict[str, Callable[..., None]] = {
            "WrenchStamped": self._on_wrench,
            "JointState": self._on_state,
            "Float64MultiArray": self._on_array,
        }
        kind, raw = interface(FORCE_TYPES[sensor.type], "force"), sensor.type == "WrenchStamped"
        self._node.create_subscription(kind, topic, heard[sensor.type], qos.SENSOR, raw=raw)
        self._over = threading.Event()
        self._executor = DirectExecutor(context=owner.context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name=f"{sensor.name} topic", daemon=True)
        self._thread.start()

    def read(self) -> list[Sample]:
        samples = []
        with suppress(IndexError):
            while True:
                samples.append(self._samples.popleft())
        return samples

    def close(self) -> None:
        self._over.set()
        self._thread.join(2.0)
        self._executor.shutdown(timeout_sec=1.0)
        self._node.destroy_node()

    def _spin(self) -> None:
        with suppress(ExternalShutdownException):
            while not self._over.is_set():
                self._executor.spin_once(timeout_sec=_LOOK_S)

    def _on_wrench(self, message: bytes) -> None:
        self._samples.append(wrench_of(message))

    def _on_state(self, message: JointState) -> None:
        efforts = dict(zip(message.name, message.effort))
        sample = tuple(efforts[name] for name in self._joints if name in efforts)
        self._samples.append((convert.stamp_ns(message.header.stamp), sample))

    def _on_array(self, message: Float64MultiArray) -> None:
        # The message has no stamp: its arrival counts.
        self._samples.append((self._clock_ns(), tuple(message.data)))


def wrench_of(message: bytes) -> Sample:
    """Stamp and numbers of a serialized WrenchStamped (CDR, either byte order); an empty sample if the bytes
    are invalid, since anybody may publish them."""
    try:
        order = "<" if message[1] & 1 else ">"
        seconds, nanoseconds, length = struct.unpack_from(f"{order}iII", message, 4)
        # Doubles are aligned to 8 bytes, counted from after the 4 bytes of the encapsulation.
        offset = 4 + -(-(12 + length) // 8) * 8
        return seconds * 1_000_000_000 + nanoseconds, struct.unpack_from(f"{order}6d", message, offset)
    except (IndexError, struct.error):
        return 0, ()


def _simulated(node: ManagedNode) -> bool:
    return bool(node.get_parameter("use_sim_time").value)
