"""joint_trajectory_controller, by its topic: the default.

The controller interpolates, and holds the end by itself; a trajectory is sent when there is another one. How
long it takes until it is executed is measured (control/delivery.py). Both sources are polled: rclpy holds the
interpreter while it waits for acknowledgements, so it is only ever asked.
"""

from __future__ import annotations

from rclpy.duration import Duration
from trajectory_msgs.msg import JointTrajectory

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import convert, qos
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup
from vla_accel_ros.nodes.controllers.state import ControllerState
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.lifecycle import ManagedNode


class JointTrajectoryAdapter(Adapter):
    """stamp: "now" or "zero", see the parameter of the trajectory node."""

    def __init__(self, node: ManagedNode, controller: Controller, stamp: str, delivery: Delivery) -> None:
        super().__init__(controller)
        self._node, self._delivery = node, delivery
        self._publisher = node.output(JointTrajectory, controller.topic, qos.COMMAND)
        self._message = convert.TrajectoryMessage(controller.joints, stamp)
        # A controller with another clock, for which stamp is zero, says nothing about ours.
        self._state = ControllerState(node, controller) if stamp == "now" else None

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        node = setup.node
        delivery = Delivery(value(node, "lead_s"), value(node, "lead_max_s"))
        return cls(node, setup.controller, value(node, "stamp"), delivery)

    def send(self, trajectory: Trajectory, now_ns: int) -> None:
        message = self._message.fill(trajectory, now_ns=now_ns)
        self._publisher.publish(message)
        if self._publisher.get_subscription_count():
            decided_ns = min(trajectory.start_ns, now_ns)
            stamp_ns = convert.stamp_ns(message.header.stamp)
            self._delivery.sent(stamp_ns, decided_ns, self._node.now_ns())

    def begin(self) -> None:
        self._delivery.forget()

    def stop(self, braking: Trajectory | None, now_ns: int) -> None:
        self._delivery.forget()
        if braking is not None:  # on arrival: the controller may not have heard of the new time yet
            self._publisher.publish(self._message.fill(braking, on_arrival_ns=now_ns))

    def lead_s(self, now_ns: int) -> float:
        newest = self._state.newest() if self._state is not None else None
        if newest is not None:
            self._delivery.executing(*newest)
        if self._delivery.awaits_acknowledgement(now_ns):
            self._delivery.acknowledged(self._publisher.wait_for_all_acked(Duration()), now_ns)
        return self._delivery.step(now_ns)

    @property
    def trouble(self) -> str:
        return self._delivery.trouble

    def close(self) -> None:
        # The publisher may be destroyed next, and with it a stop that has not arrived.
        self._publisher.wait_for_all_acked(Duration(seconds=0.5))

    def values(self) -> dict[str, object]:
        delivery = self._delivery
        return {
            "delivery p99 [ms]": delivery.p99_s * 1e3,
            "lead [ms]": delivery.lead_s * 1e3,
            "measured by": delivery.source if delivery.count else "nothing yet",
            "deliveries": delivery.count,
            "never executed": delivery.lost,
        }
