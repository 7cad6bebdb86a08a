"""What a joint_trajectory_controller reports on controller_state, if control_msgs is installed.

Since Jazzy it reports at the rate of its updates, 500 Hz and more, while the trajectory node needs the newest
state only sometimes. So the subscription is in no executor's wait set: it keeps one message, and `newest`
takes it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup

from vla_accel_ros.contract.controller_check import node_of
from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.trajectory import TrajectoryPoint
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode

# States that are closer in time are not compared.
_APART_NS = 5_000_000
_USUAL = 0.05
"""Greatest relative difference of a speed from 1 that still counts as 1."""


def state_type() -> Any | None:
    """control_msgs/msg/JointTrajectoryControllerState; None where it is not installed."""
    try:
        return interface("control_msgs/msg/JointTrajectoryControllerState", "controller_state")
    except ValueError:
        return None


class ReportedState(NamedTuple):
    """began_ns: when the executed trajectory began, None if the controller does not say; stamp_ns: stamp of
    the state, in nanoseconds. reference: commanded position, by joint name. rests: whether it reports to be
    at rest. speed: execution speed, 1 as sent."""

    began_ns: int | None
    stamp_ns: int
    reference: dict[str, float]
    rests: bool = False
    speed: float = 1.0


class _Timed(NamedTuple):
    told: ReportedState
    since_ns: int  # time_from_start by its clock
    passed_ns: int  # the same of the trajectory, which is slower if the speed is scaled


class Reports:
    """The states of one controller, which releases fill differently.

    One that always reports time_from_start = 0 (those before Humble, the scaled one of Universal Robots) does
    not say when its trajectory began. Two states show that it rests, even if it reports no velocity. The
    execution speed follows from how much of a trajectory has passed or, if that is little, from three states:
    some controllers have their speed scaled, by a person's slider or a safety controller.
    """

    def __init__(self) -> None:
        self._before: _Timed | None = None
        self._tells_speed, self._odd = False, list[float]()

    def read(self, message: Any) -> ReportedState:
        """Evaluate the next state."""
        stamp_ns, point = convert.stamp_ns(message.header.stamp), message.reference
        since_ns = convert.stamp_ns(message.feedback.time_from_start)
        passed_ns = convert.stamp_ns(point.time_from_start)
        reference = dict(zip(message.joint_names, point.positions))
        began_ns = stamp_ns - since_ns if since_ns else None
        moves, before, timed = any(point.velocities), self._before, (since_ns, passed_ns)
        self._tells_speed |= moves
        if before is None:
            told = ReportedState(began_ns, stamp_ns, reference)
            self._before = _Timed(told, *timed)
            return told
        # If began_ns differs each time, the controller repeats an old state.
        same = _same(began_ns, before.told.began_ns)
        rests = bool(reference) and not moves and same
        rests = rests and (self._tells_speed or reference == before.told.reference)
        apart = not 0 <= stamp_ns - before.told.stamp_ns < _APART_NS
        if apart and same and began_ns is not None and since_ns > before.since_ns:
            speed = (passed_ns - before.passed_ns) / (since_ns - before.since_ns)
            self._odd = [*self._odd[-1:], speed] if abs(speed - 1.0) > _USUAL else []
        speed = self._odd[1] if len(self._odd) > 1 else 1.0
        if moves and began_ns is not None and abs(since_ns - passed_ns) > max(_APART_NS, _USUAL * since_ns):
            speed = passed_ns / since_ns  # average so far
        told = ReportedState(began_ns, stamp_ns, reference, rests, speed)
        if apart:
            self._before = _Timed(told, *timed)
        return told


def _same(began_ns: int | None, other_ns: int | None) -> bool:
    if began_ns is None or other_ns is None:
        return began_ns is other_ns
    return abs(began_ns - other_ns) < _APART_NS


class ControllerState:
    """The state of one controller, polled. Closed with the node's `release`."""

    def __init__(self, node: ManagedNode, controller: Controller) -> None:
        self._subscription, self._reports = None, Reports()
        kind = state_type()
        if kind is not None:
            topic = f"{node_of(controller)}/controller_state"
            self._subscription = node.create_subscription(
                kind, topic, _unused, qos.SENSOR, callback_group=_Polled()
            )
            node.on_release(lambda: node.destroy_subscription(self._subscription))

    @property
    def listens(self) -> bool:
        """Whether there is a subscription."""
        return self._subscription is not None

    def newest(self) -> ReportedState | None:
        """The newest state; None if there is no new one."""
        if self._subscription is None:
            return None
        with self._subscription.handle:
            taken = self._subscription.handle.take_message(self._subscription.msg_type, False)
        if taken is None:
            return None
        return self._reports.read(taken[0])


def fill(message: Any, began_ns: int, desired: TrajectoryPoint, measured: TrajectoryPoint) -> None:
    """Write the state at desired.stamp_ns of a controller that executes a trajectory that began at
    began_ns."""
    convert.set_stamp(message.header.stamp, desired.stamp_ns)
    for point, state in (
        (message.reference, desired),
        (message.feedback, measured),
        (message.output, desired),
    ):
        point.positions = state.position.tolist()
        point.velocities = [] if state.velocity is None else state.velocity.tolist()
    for point in (message.reference, message.feedback):
        convert.set_stamp(point.time_from_start, desired.stamp_ns - began_ns)
    message.error.positions = (desired.position - measured.position).tolist()


class _Polled(MutuallyExclusiveCallbackGroup):
    """A group that an executor never waits for."""

    def can_execute(self, entity: Any) -> bool:
        return False


def _unused(_: Any) -> None:
    """rclpy requires a callback; a polled subscription never calls it."""
