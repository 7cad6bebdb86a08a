"""joint_trajectory_controller, by its topic: the default.

The controller interpolates, and holds the end by itself; a message is sent only for a new trajectory. The
message is reused, as building one of 50 x 7 anew takes five times as long. The time until execution is
measured (control/delivery.py). Both of its sources are polled: rclpy holds the GIL while it waits for
acknowledgements, so this never waits for them.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from rclpy.duration import Duration
from rclpy.serialization import serialize_message
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.control.delivery import Delivery
from vla_accel_ros.control.hand_over import HandOver
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.on_arrival import ahead, first_ns
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup, by_name
from vla_accel_ros.nodes.controllers.state import ControllerState, ReportedState
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.lifecycle import ManagedNode

# A message should never take longer.
KEEP_S = 1.0
# A message that is delayed again and again is sent with twice the lead each time, at most this often.
_TRIES, _DOUBLED_S, _NEVER_NS = 6, 0.01, 2**63
TOLD_NS = 500_000_000
"""How long a controller's report counts."""
HEAR_S = 1.0
"""How long to wait for a controller to report its setpoint before the first motion: many report nothing."""
_NEWS_NS = 100_000_000  # the same while it is commanded
_REPORTS = 64
_TOLD_S = 10.0
"""How long it is told that a trajectory has left late."""


class JointTrajectoryAdapter(Adapter):
    """stamp: "now" or "zero", see the parameter of the trajectory node. limits: of the controller's joints.

    clock: monotonic seconds. Stamped trajectories are sent so that the controller joins them without a step,
    however long this process was delayed (control/hand_over.py). Those without a stamp allow the controller
    another clock (control/on_arrival.py).
    """

    def __init__(
        self,
        node: ManagedNode,
        controller: Controller,
        stamp: str,
        delivery: Delivery,
        limits: JointLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(controller)
        self._node, self._delivery = node, delivery
        self._hand_over, self._stamped = HandOver(limits), stamp == "now"
        # What a controller with another clock executes, if it got it at once.
        self._on_arrival = HandOver(limits)
        self._publisher = node.output(JointTrajectory, controller.topic, qos.COMMAND)
        self._message = TrajectoryMessage(controller.joints, stamp)
        # stamp: zero is for a controller with another clock, whose reports say nothing about ours.
        self._state = ControllerState(node, controller) if stamp == "now" else None
        self._told: ReportedState | None = None
        self._reported = deque[ReportedState](maxlen=_REPORTS)  # while its speed is scaled
        self._holds = False  # it holds by itself
        self._scaled = False
        self._clock, self._hear_until_s = clock, 0.0
        self._here: tuple[np.ndarray, int] | None = None  # measured joints, and their stamp
        self._limits, self._rests_ns = limits, 0
        self._left_late, self._late, self._told_until_s = 0, "", -math.inf

    @classmethod
    def make(cls, setup: Setup) -> Adapter:
        node = setup.node
        delivery = Delivery(value(node, "lead_s"), value(node, "lead_max_s"))
        return cls(node, setup.controller, value(node, "stamp"), delivery, setup.limits)

    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """The message is serialized before the clock is read for the last time; from there to the middleware
        it takes some tens of microseconds."""
        decided, lead_s = trajectory.select(self.controller.joints), self._delivery.lead_s
        path: Trajectory | None
        self._look()
        if self._scaled or self._delivery.overdue(self._node.now_ns()):
            return  # it comes to rest on what it has; anything sent now would make it step
        self._hand_over.rests(*self._held(), lead_s, self._here)
        for _ in range(_TRIES):
            now_ns = self._node.now_ns()
            by_ns = _NEVER_NS
            if self._stamped:
                path, by_ns = self._hand_over.next(decided, decided_ns, now_ns, lead_s)
                if path is None:
                    return
                message = self._message.fill(path, now_ns=now_ns)
            else:
                state = self._on_arrival.state(now_ns)
                path = ahead(decided, first_ns(decided, self._limits, lead_s, now_ns, state))
                message = self._message.fill(path, on_arrival_ns=now_ns)
                self._rests_ns = path.end_ns + round(lead_s * 1e9)
            serialized, stamp_ns = serialize_message(message), convert.stamp_ns(message.header.stamp)
            now_ns = self._node.now_ns()
            if self._node.clock_was_set():
                self._hand_over.dropped()
                return  # the time in which it was decided is over: a stop follows
            if now_ns <= by_ns:
                break
            lead_s = 2.0 * max(lead_s, _DOUBLED_S)
        self._publisher.publish(serialized)
        self._check_left(by_ns, self._delivery.lead_s)
        assert path is not None
        if self._stamped:
            self._hand_over.sent(path, decided, now_ns)
        else:
            self._on_arrival.sent(path, path, now_ns)
        if self._publisher.get_subscription_count():
            self._delivery.sent(stamp_ns, min(trajectory.start_ns, decided_ns), self._node.now_ns())

    def _check_left(self, by_ns: int, lead_s: float) -> None:
        """Note that a trajectory that should have left by then, to arrive lead_s later, has left so late that
        its controller joins it with a step: this process was not scheduled between its last look at the clock
        and the middleware."""
        usual_s = min(self._delivery.p99_s, lead_s)
        late_s = (self._node.now_ns() - by_ns) * 1e-9 - (lead_s - usual_s)
        if late_s > 0.0 and not self._node.clock_was_set():
            self._left_late += 1
            self._told_until_s = self._clock() + _TOLD_S
            self._late = (
                f"a trajectory left {late_s:.2f} s late, because this process was not scheduled: the joints "
                "may have stepped; look at the load of this machine"
            )

    def measured(self, positions: Mapping[str, float], stamps_ns: Mapping[str, int], believed: bool) -> None:
        joints = self.controller.joints
        oldest_ns = min((stamps_ns[name] for name in joints), default=0)
        self._here = np.array([positions[name] for name in joints]), oldest_ns

    def begin(self) -> None:
        self._delivery.forget()
        self._hand_over.forget()
        self._on_arrival.forget()
        self._rests_ns = 0

    def open(self) -> list[str]:
        if self._state is not None and self._state.listens:
            self._state.newest()  # discard reports from before
            self._hear_until_s = self._clock() + HEAR_S
        return []

    def stop(self, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        lead_s, was_ns = self._delivery.lead_s, now_ns - self._node.jumped_ns
        self._look()
        self._delivery.forget()
        self._on_arrival.forget()
        share = None if braking is None else braking.select(self.controller.joints)
        self._tell(was_ns, now_ns)
        stop = self._hand_over.stop(share, was_ns, now_ns, lead_s)
        if stop is not None:  # on arrival: the controller may not have heard of the new time yet
            self._publisher.publish(self._message.fill(stop, on_arrival_ns=now_ns))
        stopping = self._hand_over.stopping
        self._rests_ns = 0 if stopping is None else stopping.end_ns
        return stopping

    def _tell(self, was_ns: int, now_ns: int) -> None:
        """Pass on the setpoint that the controller reported, in the time before the clock was set or in the
        new one."""
        told = self._told
        if told is None or min(abs(was_ns - told.stamp_ns), abs(now_ns - told.stamp_ns)) >= TOLD_NS:
            return
        set_ns = (now_ns - was_ns) * (abs(now_ns - told.stamp_ns) < abs(was_ns - told.stamp_ns))
        self._hand_over.told(self._positions(told), told.stamp_ns - set_ns)

    def _held(self) -> tuple[np.ndarray | None, int]:
        """Position and time at which the controller rested by itself, if it reports that."""
        told, now_ns = self._told, self._node.now_ns()
        if told is None or not self._holds or abs(now_ns - told.stamp_ns) > _NEWS_NS:
            return None, 0
        return self._positions(told), min(told.stamp_ns, now_ns)

    def _positions(self, told: ReportedState) -> np.ndarray:
        return np.array([told.reference.get(name, np.nan) for name in self.controller.joints])

    def reference(self, now_ns: int) -> Mapping[str, float]:
        self._look()
        told = self._told
        return told.reference if told is not None and abs(now_ns - told.stamp_ns) < TOLD_NS else {}

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        if self._scaled and self._reported:
            return min(self._reported, key=lambda told: abs(told.stamp_ns - t_ns)).reference
        executed = self._hand_over if self._stamped else self._on_arrival
        return by_name(self.controller.joints, executed.commanded(t_ns))

    def rests_ns(self) -> int:
        return self._hand_over.rests_ns if self._stamped else self._rests_ns

    def lead_s(self, now_ns: int) -> float:
        self._look()
        if self._delivery.awaits_acknowledgement(now_ns):
            self._delivery.acknowledged(self._publisher.wait_for_all_acked(Duration()), now_ns)
        return self._delivery.step(now_ns)

    def _look(self) -> None:
        newest = self._state.newest() if self._state is not None else None
        if newest is None:
            return
        self._told, ours, self._hear_until_s = self._counted(newest), True, 0.0
        if newest.began_ns is not None:
            ours = self._delivery.executing(newest.began_ns, newest.stamp_ns)
        self._holds = newest.rests and (not ours or self._delivery.unsure)
        self._scaled = newest.speed != 1.0 or (self._scaled and not newest.rests)
        if not self._scaled:
            self._reported.clear()
        self._reported.append(self._told)

    def _counted(self, told: ReportedState) -> ReportedState:
        """A report with continuous joints in the turn in which they are measured, which its controller does
        not know."""
        if self._here is None or not self._limits.continuous.any():
            return told
        position = self._limits.near(self._positions(told), self._here[0])
        known = by_name(self.controller.joints, position).items()
        return told._replace(reference={name: at for name, at in known if np.isfinite(at)})

    @property
    def waits(self) -> bool:
        return self._clock() < self._hear_until_s

    @property
    def awaits_arrival(self) -> bool:
        return self._delivery.awaits_arrival(self._node.now_ns())

    @property
    def hindrance(self) -> str:
        if self._delivery.overdue(self._node.now_ns()):
            return (
                f"{self.controller.topic}: the controller does not execute what it was sent: is it active, "
                "and is its host or the network too busy?"
            )
        if not self._scaled:
            return ""
        if self._told is not None and abs(self._node.now_ns() - self._told.stamp_ns) >= TOLD_NS:
            return (
                f"{self.controller.topic}: the controller's speed was scaled when it last reported its "
                "state, and it has reported none since: is it active?"
            )
        return (
            f"{self.controller.topic}: the controller's speed scaling changes the speed of what it is "
            "sent: set it to 100 %"
        )

    @property
    def trouble(self) -> str:
        return self._delivery.trouble or (self._late if self._clock() < self._told_until_s else "")

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
            "sent late": self._hand_over.late,
            "left late": self._left_late,
        }


class TrajectoryMessage:
    """One controller's JointTrajectory, reused for every trajectory sent to it.

    joints: the controller's joints, in its order. stamp: "now" or "zero", see the parameter of the trajectory
    node.
    """

    def __init__(self, joints: tuple[str, ...], stamp: str = "now") -> None:
        self._joints = joints
        self._stamped = stamp == "now"
        self._message = JointTrajectory(joint_names=list(joints))
        self._points: list[JointTrajectoryPoint] = []

    def fill(
        self, trajectory: Trajectory, on_arrival_ns: int | None = None, now_ns: int | None = None
    ) -> JointTrajectory:
        """The message for this controller's share of the motion; valid until the next call.

        Its first point is at time_from_start 0: the motion begins on what is commanded already, so a
        controller joins it in the middle when the message arrives. A motion shorter than KEEP_S holds its end
        until then, because a controller refuses a trajectory that has ended, and a stop is short.

        on_arrival_ns: the present; the motion begins when the message arrives, whatever the controller's
        clock says, and the first point is approached from the controller's state. now_ns: the present, from
        which a motion that begins later is approached.
        """
        share = self._kept(trajectory.select(self._joints))
        start_ns = share.start_ns if now_ns is None else min(share.start_ns, now_ns)
        start_ns = start_ns if on_arrival_ns is None else on_arrival_ns
        while len(self._points) < len(share):
            self._points.append(JointTrajectoryPoint())
        for i, point in enumerate(self._points[: len(share)]):
            point.positions = array("d", share.positions[i].tobytes())
            point.velocities = array("d", b"" if share.velocities is None else share.velocities[i].tobytes())
            convert.set_stamp(point.time_from_start, int(share.times_ns[i]) - start_ns)
        self._message.points = self._points[: len(share)]
        convert.set_stamp(
            self._message.header.stamp, start_ns if self._stamped and on_arrival_ns is None else 0
        )
        return self._message

    def _kept(self, share: Trajectory) -> Trajectory:
        until_ns = share.start_ns + round(KEEP_S * 1e9)
        velocities = share.velocities
        if share.end_ns >= until_ns or (velocities is not None and velocities[-1].any()):
            return share
        return Trajectory(
            share.joints,
            np.append(share.times_ns, until_ns),
            np.concatenate([share.positions, share.positions[-1:]]),
            None if velocities is None else np.concatenate([velocities, velocities[-1:]]),
        )
