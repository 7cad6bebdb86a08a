"""What an added kind of controller is made from: an Output (control/outputs/output.py) with a node at hand.

The kinds of this package have their decisions in control/outputs, and here only the topics; another
package's adapter may do both in one class. `make_outputs` makes those of a contract.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration

from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.kinematics.guard import guarded
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Clock, Output
from vla_accel_ros.extensions import controller_kind, load
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.running.lifecycle import ManagedNode


@dataclass(frozen=True)
class Setup:
    """What an adapter is made from.

    node: publishes its commands (`node.output`) and has the parameters. limits: of the controller's joints,
    in its order. twist: the buffer of the velocities that it takes, of a hand or a base; None for others.
    """

    node: ManagedNode
    controller: Controller
    limits: JointLimits
    twist: TwistBuffer | None = None

    @property
    def clock(self) -> Clock:
        """The node's."""
        return NodeClock(self.node)


class Adapter(Output):
    """Sends commands to one controller. All calls come from the node's thread."""

    @classmethod
    @abstractmethod
    def make(cls, setup: Setup) -> Output:
        """The adapter of one controller, made when the node configures. Raises ValueError if something is
        missing."""


class CommandTopic:
    """The topic of a controller. kind: of its messages."""

    def __init__(self, setup: Setup, kind: Any) -> None:
        self._publisher = setup.node.output(kind, setup.controller.topic, qos.COMMAND)

    def close(self) -> None:
        """Return when everything sent has arrived."""
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))


class NodeClock:
    """The clocks of a node."""

    def __init__(self, node: ManagedNode) -> None:
        self._node = node
        self.now_ns, self.was_set = node.now_ns, node.clock_was_set

    @property
    def jumped_ns(self) -> int:
        """How far ROS time was set last."""
        return self._node.jumped_ns

    @property
    def simulated(self) -> bool:
        """Whether ROS time comes from /clock."""
        return self._node.get_clock().ros_time_is_active

    def monotonic_ns(self) -> int:
        """A clock that is never set."""
        return time.monotonic_ns()


def make_output(
    node: ManagedNode, contract: Contract, controller: Controller, twist: TwistBuffer | None
) -> Output:
    """The output of one controller. twist: see Setup."""
    limits = guarded(contract, controller.joints)
    kind: type[Adapter] = load(controller_kind(controller.kind).adapter)
    return kind.make(Setup(node, controller, limits, twist))
