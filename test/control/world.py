"""What is around a Motion, in simulated time: clocks, channels that publish to a callable, a disk, a graph.

Nothing here decides about motion. `Process` is one process of the trajectory node: it calls its Motion as
nodes/trajectory/node.py does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import ChunkTiming, Controller, Joint, Stream, Twist
from vla_accel_ros.control.chunking.source import Slot
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.clock_watch import ClockWatch
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.kinematics.guard import guarded
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.motion import Motion
from vla_accel_ros.control.orders.homing import Action
from vla_accel_ros.control.orders.order import Order
from vla_accel_ros.control.outputs.base import BaseOutput
from vla_accel_ros.control.outputs.delivery import Delivery
from vla_accel_ros.control.outputs.gripper import GripperOutput
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.outputs.positions import PositionOutput
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.outputs.servo import JointVelocityOutput, PoseOutput, TwistOutput
from vla_accel_ros.control.outputs.trajectory import TrajectoryOutput
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.state_file import Restored
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.extensions import BASES
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.types import Chunk

S = 1_000_000_000


class Clock:
    """ROS time and steady time, each given by a callable; a jump is noticed as ManagedNode notices it."""

    def __init__(
        self, now_ns: Callable[[], int], steady_ns: Callable[[], int] | None = None, simulated: bool = False
    ) -> None:
        self.now_ns, self.monotonic_ns, self.simulated = now_ns, steady_ns or now_ns, simulated
        self.jumped_ns = 0
        self.watch(True)

    def watch(self, watched: bool) -> None:
        """Notice jumps from now on, or none."""
        watched = watched and not self.simulated
        self._watch = ClockWatch(self.now_ns, self.monotonic_ns) if watched else None

    def was_set(self) -> bool:
        return self._watch is not None and self._watch.was_set()

    def jumps(self) -> bool:
        """Whether ROS time was set since the last call."""
        jump_ns = 0 if self._watch is None else self._watch.jump_ns()
        self.jumped_ns = jump_ns or self.jumped_ns
        return jump_ns != 0


class TrajectoryLine:
    """The channel of one joint_trajectory_controller. publish: gets the path, ROS time of its beginning, and
    whether it is stamped. held_up: called between a decision and its message."""

    def __init__(
        self,
        publish: Callable[[Trajectory, int, bool], object],
        held_up: Callable[[], object] = lambda: None,
        state: Callable[[], ReportedState | None] | None = None,
        is_acknowledged: Callable[[], bool] = lambda: True,
        heard: bool = True,
    ) -> None:
        self._publish, self._held_up, self.reports = publish, held_up, state is not None
        self.newest = state or (lambda: None)
        self.is_acknowledged, self.heard = is_acknowledged, heard

    def write(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self._message = path, start_ns, stamped
        self._held_up()

    def publish(self) -> None:
        self._publish(*self._message)

    def is_heard(self) -> bool:
        return self.heard

    def close(self) -> None:
        pass


class StreamLine:
    """The channel of a controller that is commanded at a rate, or of Servo; pauses: what it was asked."""

    def __init__(self, publish: Callable[[np.ndarray], object]) -> None:
        self._publish, self.paused = publish, True

    def open(self) -> list[str]:
        self.paused = True
        return []

    def publish(self, command: np.ndarray, now_ns: int) -> None:
        self._publish(command)

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def close(self, pause: bool = True) -> None:
        self.paused = pause


class Disk:
    """What survives a process."""

    path = "a file"

    def __init__(self) -> None:
        self._content = Restored()

    def restore(self) -> Restored:
        return self._content

    def keep(self, fields: Mapping[str, Any], clean: bool = False) -> Future[str]:
        self._content = Restored(json.loads(json.dumps(dict(fields))), clean)
        written: Future[str] = Future()
        written.set_result("")
        return written

    def finish(self, fields: Mapping[str, Any]) -> Future[str]:
        return self.keep(fields, clean=True)


@dataclass
class Graph:
    """What the graph shows."""

    hindrances: Mapping[str, Sequence[str]] = field(default_factory=dict)
    silence: str = ""

    def unheard(self, joint: str) -> Collection[str]:
        return ()

    def look_for_joints(self) -> None:
        pass

    def slow(self) -> str:
        return ""

    def chunks(self) -> str:
        return ""


class Manager:
    """A controller manager that does as it is asked, unless it has a `refusal`, or is late. sure: of the last
    request."""

    controllers = ("ours",)

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.refusal, self.late, self.sure = "", False, True

    def switch(self, activate: Sequence[str], deactivate: Sequence[str], sure: bool = True) -> str:
        self.asked.append((tuple(activate), tuple(deactivate)))
        self.sure = sure
        if self.late:
            raise TimeoutError("it has not answered")
        return self.refusal


@dataclass(frozen=True)
class Parameters:
    """Those of the trajectory node that a restart may change. stamped: whether trajectories say when they
    begin."""

    options: Options = field(default_factory=Options)
    lead_s: float = 0.03
    lead_max_s: float = 0.15
    stamped: bool = True


def make_contract(kind: str, joints: Sequence[Joint], **more: Any) -> Contract:
    """A contract of controllers of this kind. more: rate_hz; groups: the joints of each controller that takes
    trajectories; fields of Contract."""
    names = tuple(joint.name for joint in joints)
    rate_hz, groups = more.pop("rate_hz", 100.0), more.pop("groups", None) or (names,)
    controllers: tuple[Controller, ...] = tuple(
        Controller(f"c{k}/joint_trajectory", group, action=more.get("actions", {}).get(group, ""))
        for k, group in enumerate(groups)
    )
    more.pop("actions", None)
    if kind == "forward_command":
        controllers = (Controller("arm/commands", names, kind, rate_hz=rate_hz),)
    elif kind == "servo_joint":
        controllers = (Controller("servo/joint_commands", names, kind, rate_hz=rate_hz),)
    elif kind == "servo_twist":
        controllers += (Controller("servo/twist_commands", (), kind, rate_hz=rate_hz, frame="base"),)
    given: dict[str, Any] = {
        "robot": "arm",
        "cameras": (),
        "max_skew_s": 0.1,
        "joint_states": Stream("joint_states", 100.0, 0.3),
        "joints": tuple(joints),
        "controllers": controllers,
        "chunk": ChunkTiming(1 / 30, 0.8),
        "actions": "twist" if kind == "servo_twist" else "joints",
        "twist": Twist("second", 0.5, 1.0) if kind == "servo_twist" else None,
    }
    return Contract(**(given | more))


def make_joints(names: Sequence[str], limits: JointLimits) -> list[Joint]:
    """The joints of these limits."""
    rows = zip(names, limits.lower, limits.upper, limits.velocity, limits.acceleration, limits.continuous)
    return [
        Joint(
            name,
            float(low),
            float(high),
            float(speed),
            float(change),
            "absolute",
            continuous=bool(continuous),
        )
        for name, low, high, speed, change, continuous in rows
    ]


class Process:
    """One process of the trajectory node, active from its beginning on.

    line: makes the channel of a controller. Attributes: `motion`; `answers`, those of orders, newest last.
    """

    def __init__(
        self,
        contract: Contract,
        parameters: Parameters,
        clock: Clock,
        line: Callable[[Controller], Any],
        disk: Disk | None = None,
        go_on: bool = False,
        actions: Mapping[str, Action] | None = None,
        graph: Graph | None = None,
        lock: AbstractContextManager[object] | None = None,
        slot: Slot | None = None,
        listens: bool = True,
    ) -> None:
        self.clock, self._orders = clock, dict[str, Order]()
        self.answers: dict[str, tuple[bool, str]] = {}
        options = parameters.options
        holds = Holds(Disk() if disk is None else disk)
        holds.restore(go_on)
        twists = options.make_twists(contract)
        sent = [
            self._output(contract, parameters, c, line(c), twists.get(c.topic)) for c in contract.commanded
        ]
        outputs = Outputs.of(contract, sent, clock, parameters.lead_s, [*twists.values()], lock)
        turning = [joint.name for joint in contract.joints if joint.continuous]
        history = partial(JointHistory, contract.joint_names, continuous=turning)
        robot = Robot(contract, options, outputs, holds, clock, history, [*twists.values()])
        self.graph, self.manager = graph or Graph(), Manager()
        self.motion = Motion(robot, "/trajectory", self.graph, self.manager, actions or {}, slot, listens)
        self.active = False
        self.activate()

    def activate(self) -> None:
        """It is activated, for the first time or again."""
        self.clock.watch(True)
        self.motion.holds.resume_passing()
        self.motion.activate()
        self.active = True

    def deactivate(self) -> Iterator[float]:
        """It is deactivated; yields the seconds for which it waits."""
        self._look_at_clock()
        self.active = False
        for pause_s in self.motion.deactivate():
            yield pause_s
            self._look_at_clock()
        self.clock.watch(False)
        self.collect()

    def _output(
        self, contract: Contract, parameters: Parameters, controller: Controller, line: Any, twist: Any
    ) -> Output:
        limits = guarded(contract, controller.joints)
        if controller.kind == "forward_command":
            return PositionOutput(controller, limits, line, self.clock)
        if controller.kind == "servo_joint":
            return JointVelocityOutput(controller, limits, 2.0, line, self.clock)
        if controller.kind == "gripper_command":
            return GripperOutput(controller, limits, line, self.clock)
        if controller.kind == "servo_twist":
            return TwistOutput(controller, twist, line, self.clock)
        if controller.kind == "servo_pose":
            return PoseOutput(controller, twist, line, self.clock)
        if controller.kind in BASES:
            return BaseOutput(controller, twist, line, self.clock)
        delivery = Delivery(parameters.lead_s, parameters.lead_max_s)
        return TrajectoryOutput(controller, limits, delivery, line, self.clock, parameters.stamped)

    def call(self, give: Callable[..., object], *arguments: object) -> None:
        """One callback of the node."""
        self._look_at_clock()
        give(*arguments)
        self.collect()

    def joints(self, names: Sequence[str], position: np.ndarray, stamp_ns: int) -> None:
        """A joint state has come."""
        self.call(self.motion.measure, names, position, stamp_ns)

    def chunk(self, chunk: Chunk) -> None:
        """A chunk has come."""
        self.call(self.motion.receive, lambda: chunk, (chunk.stamp_ns, chunk.request_id))

    def command(self, names: Sequence[str], numbers: Any, stamp_ns: int) -> None:
        """A person's command has come."""
        self.call(self.motion.command, names, numbers, stamp_ns)

    def press(self, buttons: Sequence[int], stamp_ns: int) -> None:
        """The buttons are reported."""
        self.call(self.motion.press, buttons, stamp_ns)

    def poll(self) -> None:
        """The timer that looks at the slot of chunks."""
        if self.active:
            self.call(self.motion.source.poll)

    def watch(self) -> None:
        """The watchdog's timer."""
        if self.active:
            self.call(self.motion.tick)

    def tick(self) -> None:
        """The timers of all streams."""
        if not self.active:
            return
        self._look_at_clock()
        for output in self.robot.outputs.streams:
            output.tick(self.clock.now_ns())

    def order(self, name: str, call: str = "") -> None:
        """Call a service, such as ~/hold; it is answered in time. call: what to name this call."""
        self._look_at_clock()
        self._orders[call or name] = self.motion.operator.order(name)
        self.collect()

    def _look_at_clock(self) -> None:
        if self.clock.jumps():
            self.motion.jump()

    def collect(self) -> None:
        """Take the answers that have come."""
        for name, order in list(self._orders.items()):
            if order.answer is not None:
                self.answers[name] = order.answer
                del self._orders[name]

    @property
    def robot(self) -> Robot:
        return self.motion.robot

    @property
    def holds(self) -> Mapping[str, Sequence[str]]:
        return self.motion.holds.holds
