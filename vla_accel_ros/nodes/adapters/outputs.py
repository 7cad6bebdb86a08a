"""All controllers of a robot together: what the trajectory node sends to.

Each adapter that sends at a fixed rate has a timer. When the node is deactivated or ends, timers no longer
fire, and a robot that is commanded at a rate would stop abruptly. So `close` sends the last stop to its end,
to all controllers in step, before it returns. With a force sensor a separate thread makes the ticks and may
send something else at any time (nodes/trajectory/force.py). Then every call of an adapter is made under one
lock, and the guard must agree to what the node sends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract, Controller
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.force.guard import ForceGuard, Reaction
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.extensions import controller_kind, load
from vla_accel_ros.nodes.adapters.adapter import Adapter, Setup, by_name
from vla_accel_ros.nodes.adapters.locked import LockedAdapter
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.throttled import Throttled
from vla_accel_ros.timeline import Flows

# What still moves then is far behind its path, and brakes where it is.
_BEHIND_S = 0.6
# After LONGEST_S (nodes/running/shutdown.py) a process that was asked to end is killed.
_LONGEST_STOP_S = 3.5


class Outputs:
    """The adapters of a contract's controllers. Lives from configure to cleanup of its node.

    twist: the buffer of hand velocities, None if no servo_twist controller moves the hand. lock: of all
    adapters, used if `guard` is not None. fastest_hz: the highest rate at which a controller is commanded, 0
    if none is. before_commands: called before each command at that rate, in the node's executor.
    """

    def __init__(self, node: ManagedNode, contract: Contract) -> None:
        self._node, self._names = node, contract.joint_names
        self._least_s, self._flows = value(node, "lead_s"), dict[Adapter, Flows]()
        self._slow = Throttled(node, 10.0)
        self.twist = _twist(node, contract)
        self.lock, self.guard = threading.RLock(), make_guard(contract, self.twist)
        self.adapters = [
            _adapter(node, contract, controller, self.twist) for controller in contract.controllers
        ]
        if self.guard is not None:
            self.adapters = [LockedAdapter(adapter, self.lock) for adapter in self.adapters]
        streams = [adapter for adapter in self.adapters if adapter.controller.rate_hz]
        fastest = max(streams, key=lambda adapter: adapter.controller.rate_hz, default=None)
        self.fastest_hz = 0.0 if fastest is None else fastest.controller.rate_hz
        self.before_commands: Callable[[], None] = _nothing
        if self.guard is not None and fastest is not None:
            node.every(1.0 / self.fastest_hz, lambda: self.before_commands())
        elif self.guard is None:
            for adapter in streams:
                tick = self._first_tick if adapter is fastest else self._tick
                node.every(1.0 / adapter.controller.rate_hz, partial(tick, adapter))

    def send(self, trajectory: Trajectory | None, decided_ns: int) -> None:
        """Follow this trajectory, which was decided at decided_ns, from now on; None changes nothing."""
        if trajectory is None:
            return
        with self.lock:
            if self.guard is not None and not self.guard.follow(trajectory):
                return  # decided before a contact stopped the arm
            flows = self._node.timeline.flows
            self._flows = {adapter: flows for adapter in self.adapters if adapter.controller.rate_hz}
            for adapter in self.adapters:
                adapter.send(trajectory, decided_ns)

    def react(self, reaction: Reaction) -> None:
        """Follow this reaction to a contact from now on."""
        with self.lock:
            now_ns = self._node.now_ns()
            for adapter in self.adapters:
                streamed = adapter.controller.rate_hz > 0.0
                adapter.send(reaction.streamed if streamed else reaction.sent, now_ns)

    def measured(self, positions: np.ndarray, stamps_ns: np.ndarray, believed: bool) -> None:
        """Take measured joints, float64 [D] in the contract's order, and their stamps, int64 [D]; see
        Adapter.measured."""
        named, stamps = by_name(self._names, positions), dict(zip(self._names, stamps_ns.tolist()))
        for adapter in self.adapters:
            adapter.measured(named, stamps, believed)

    def reference(self) -> np.ndarray:
        """The setpoint that controllers report, float64 [D] in the contract's order, NaN where they report
        nothing."""
        now_ns = self._node.now_ns()
        return self._named(adapter.reference(now_ns) for adapter in self.adapters)

    def commanded(self, t_ns: int) -> np.ndarray:
        """Commanded positions at a time, by the trajectories sent before, float64 [D] in the contract's
        order, NaN where that equals the decided motion."""
        return self._named(adapter.commanded(t_ns) for adapter in self.adapters)

    def rests_ns(self) -> int:
        """When the last controller comes to rest, if trajectories were sent later than they were decided,
        else 0."""
        return max((adapter.rests_ns() for adapter in self.adapters), default=0)

    def at_rest(self) -> bool:
        """Whether all streams of commands have come to their end."""
        now_ns = self._node.now_ns()
        return all(adapter.at_rest(now_ns) for adapter in self.adapters)

    def begin(self) -> None:
        """Send nothing until the next trajectory."""
        for adapter in self.adapters:
            adapter.begin()

    def stop(self, braking: Trajectory | None) -> list[Trajectory]:
        """Come to rest, because the clock has jumped. braking: see Adapter.stop. Returns what the controllers
        execute until they rest: first `braking`, then the different ones, which override it."""
        now_ns = self._node.now_ns()
        stops = [braking, *(adapter.stop(braking, now_ns) for adapter in self.adapters)]
        return [stop for stop in stops if stop is not None]

    def open(self) -> None:
        """Prepare the controllers; logs a warning for each thing that failed."""
        for adapter in self.adapters:
            for sentence in adapter.open():
                self._node.get_logger().warning(f"{adapter.controller.topic}: {sentence}")

    def lead_s(self) -> float:
        """How long to keep the old motion, until the slowest controller has the new one. Logs a warning if a
        delivery takes longer than allowed."""
        now_ns = self._node.now_ns()
        lead_s = max([self._least_s, *(adapter.lead_s(now_ns) for adapter in self.adapters)])
        slow = [f"{a.controller.topic}: {a.trouble}" for a in self.adapters if a.trouble]
        if slow:
            self._slow.warning("; ".join(slow))
        return lead_s

    @property
    def waits(self) -> bool:
        """Whether a controller is about to report its setpoint; no motion begins before."""
        return any(adapter.waits for adapter in self.adapters)

    @property
    def awaits_arrival(self) -> bool:
        """Whether chunks should wait for a moment, until what was sent has arrived."""
        return any(adapter.awaits_arrival for adapter in self.adapters)

    @property
    def hindrances(self) -> dict[str, Sequence[str]]:
        """Why controllers would not execute trajectories as they are meant -> what that follows from
        (Safety.hold): nobody listens to the controller's topic."""
        return {
            adapter.hindrance: (f"controllers[{i}].topic",)
            for i, adapter in enumerate(self.adapters)
            if adapter.hindrance
        }

    def rest(self) -> None:
        """The robot is at rest, and held."""
        for adapter in self.adapters:
            adapter.rest()

    def close(self) -> None:
        """Send the last stop to its end, and leave the controllers alone."""
        self.rest()
        now_ns, began_ns = self._node.now_ns(), time.monotonic_ns()
        streams = [adapter for adapter in self.adapters if adapter.controller.rate_hz]
        period_s = 1.0 / max((adapter.controller.rate_hz for adapter in streams), default=1.0)
        passed_ns, brakes = 0, False
        while passed_ns < _LONGEST_STOP_S * 1e9 and not all(a.at_rest(now_ns + passed_ns) for a in streams):
            # A steady clock: /clock is not received in this loop, and ROS time may stand still.
            passed_ns = time.monotonic_ns() - began_ns
            if passed_ns >= _BEHIND_S * 1e9 and not brakes:
                brakes = True
                for adapter in streams:
                    adapter.stop(None, now_ns + passed_ns)
            for adapter in streams:
                adapter.tick(now_ns + passed_ns)
            time.sleep(period_s)
        for adapter in self.adapters:
            adapter.close()

    def statuses(self) -> list[DiagnosticStatus]:
        """A line of diagnostics for each controller that has values."""
        lines = []
        for adapter in self.adapters:
            if values := adapter.values():
                level, what = (WARN, adapter.trouble) if adapter.trouble else (OK, adapter.controller.kind)
                lines.append(status(f"{adapter.controller.topic} stream", level, what, values))
        return lines

    def _named(self, told: Iterable[Mapping[str, float]]) -> np.ndarray:
        positions = dict[str, float]()
        for of_one in told:
            positions.update(of_one)
        return np.array([positions.get(name, np.nan) for name in self._names])

    def _first_tick(self, adapter: Adapter) -> None:
        self.before_commands()
        self._tick(adapter)

    def _tick(self, adapter: Adapter) -> None:
        timeline = self._node.timeline
        # the first command of a trajectory ends its frame's flow
        timeline.flows = self._flows.pop(adapter, ())
        adapter.tick(self._node.now_ns())
        timeline.flows = ()


def _nothing() -> None:
    pass


def make_guard(contract: Contract, twist: TwistBuffer | None) -> ForceGuard | None:
    """The guard of a contract's arm; None without a force sensor. twist: of the hand, if twists move it."""
    if contract.force is None:
        return None
    joints = contract.action_joints
    names = tuple(joint.name for joint in joints)
    told = {name for one in contract.controllers if one.rate_hz for name in one.joints}
    streamed = np.array([name in told for name in names], dtype=bool)
    return ForceGuard(contract.force, names, JointLimits.of(joints), streamed, twist)


def _twist(node: ManagedNode, contract: Contract) -> TwistBuffer | None:
    if contract.twist is None:
        return None
    (rate_hz,) = (c.rate_hz for c in contract.controllers if c.kind == "servo_twist")
    return TwistBuffer(
        contract.twist.per,
        contract.twist.linear,
        contract.twist.angular,
        1.0 / rate_hz,
        value(node, "mode"),
        value(node, "execution_horizon") or None,
        None if contract.force is None else contract.force.retreat.hand,
    )


def _adapter(
    node: ManagedNode, contract: Contract, controller: Controller, twist: TwistBuffer | None
) -> Adapter:
    joints = {joint.name: joint for joint in contract.joints}
    limits = JointLimits.of(joints[name] for name in controller.joints)
    kind: type[Adapter] = load(controller_kind(controller.kind).adapter)
    return kind.make(Setup(node, controller, limits, twist))
