"""Makes the output of each of a contract's controllers, with the channel of its kind."""

from __future__ import annotations

from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.extensions import controller_kind, load
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup
from vla_accel_ros.nodes.running.lifecycle import ManagedNode


def make_output(
    node: ManagedNode, contract: Contract, controller: Controller, twist: TwistBuffer | None
) -> Output:
    """The output of one controller. twist: the buffer of hand velocities, None if no servo_twist controller
    moves the hand."""
    joints = {joint.name: joint for joint in contract.joints}
    limits = JointLimits.of(joints[name] for name in controller.joints)
    kind: type[Adapter] = load(controller_kind(controller.kind).adapter)
    return kind.make(Setup(node, controller, limits, twist))
