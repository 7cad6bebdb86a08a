"""What an arm does: everything that the trajectory node decides, without ROS, threads or a clock of its own.

In come chunks, measured joints, reports of inference, states of controllers, facts of the graph, orders and
ticks; out go commands (by the channels of control/outputs), answers, lines for the log and reports. The node
(nodes/trajectory) converts messages and calls; the adversary and the fuzzers drive this same object.

The rules: a chunk is followed while every input is fresh and nothing holds the robot (following/). What is
decided reaches a controller without a step, however late its message leaves (outputs/, hand_over.py). A hold
lasts until it is taken back (holds.py). Whatever else moves the robot (homing.py, lending.py) begins and ends
with a robot at rest (robot.py). A person may command it in place of the policy (teleop/). A contact is
answered before anything else (force/). When the clock is set, the robot brakes as its controllers do by now,
and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vla_accel_ros.control.chunking.source import ChunkSource, Received, Slot
from vla_accel_ros.control.following.watchdog import CHUNK, Change, MotionState
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.lateness import Lateness
from vla_accel_ros.control.orders.homing import Action, Homing
from vla_accel_ros.control.orders.lending import Lending, Manager
from vla_accel_ros.control.orders.operator import Operator
from vla_accel_ros.control.orders.runs import Runs
from vla_accel_ros.control.publishers import CHUNKS, Causes, Graph, Publishers
from vla_accel_ros.control.report import Reports
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.teleop.takeover import Takeover


class Motion:
    """The motion of a robot, from the configuration of its node to the cleanup.

    name: full name of the node. actions: of the controllers that have one, by topic. slot: of chunks in
    shared memory, None if only messages are followed; listens: whether messages may be followed. following: a
    context in which a chunk of an image becomes motion, by its stamp. Attribute `reports`: those that are not
    published yet; lines for the log are in Robot.log.
    """

    def __init__(
        self,
        robot: Robot,
        name: str,
        causes: Causes,
        manager: Manager,
        actions: Mapping[str, Action],
        slot: Slot | None = None,
        listens: bool = True,
        following: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.robot, self.holds, self._causes, self._following = robot, robot.holds, causes, following
        self._outputs, self._clock, contract = robot.outputs, robot.clock, robot.contract
        self.reports = Reports(robot)
        self.source = ChunkSource(self, self._clock, robot.log, slot, listens)
        self.homing, self.lending = Homing(robot, actions), Lending(robot, manager)
        topics = [controller.topic for controller in contract.commanded]
        self.publishers = Publishers(
            robot.holds, self._clock, name, contract.joint_states.topic, CHUNKS, topics
        )
        self._lateness = Lateness(robot, causes, self.publishers, self.source)
        guard = self._outputs.guard
        self.force = None if guard is None else TakingOver(robot, guard, self.homing)
        self.robot.begin()
        self.takeover = Takeover(robot, contract.teleop)
        self.runs = Runs(robot, robot.options.run_timeout_s, robot.options.run_stall_s)
        self.operator = Operator(robot, self.homing, self.lending, self.takeover, self.runs, self.force)
        self._begin_anew()

    def receive(self, received: Received, number: tuple[int, int]) -> None:
        """A message with a chunk has come. number: its stamp and request."""
        if self.robot.active:
            self.source.receive(received, number)

    def take(self, received: Received) -> bool:
        """Follow a chunk, or refuse it if decoding raises ValueError; returns whether it was followed."""
        self._adopt()
        follower = self.robot.follower
        try:
            try:
                chunk = self.robot.targets(received())
            except ValueError as refusal:
                follower.refused(str(refusal))
                raise
            with self._following(chunk.stamp_ns):
                now_ns = self._clock.now_ns()
                self._outputs.send(follower.follow(chunk, now_ns, self._clock.now_ns), now_ns)
        except ValueError as refusal:
            self.robot.refuse("chunk", refusal)
            return False
        return True

    def lose_slot(self, why: str) -> None:
        """The slot in use has ended."""
        self.robot.follower.safety.watchdog.note(CHUNK, why)

    def measure(self, names: Sequence[str], positions: Any, stamp_ns: int) -> Change | None:
        """A joint state has come. Returns the change of what is allowed, if it shows a fault."""
        robot = self.robot
        if not robot.active:
            return None
        try:
            new = robot.joints.add(names, positions, stamp_ns, self._clock.now_ns())
        except ValueError as refusal:
            self._lateness.refused = str(refusal)
            robot.refuse("joint_states", refusal)
            return None
        self._lateness.refused = ""
        fault = robot.compare() if new and not robot.joints.missing else ""
        if fault and self.holds.lent:
            robot.follower.resume()  # others move it; its position is found when it comes back
        elif fault:
            unheard = (self._causes.unheard(name) for name in robot.joints.joints if fault.startswith(name))
            self.holds.fault(fault, [about for abouts in unheard for about in abouts])
            return self.tick()
        return None

    def command(self, names: Sequence[str], numbers: Any, stamp_ns: int) -> None:
        """A person's command has come: positions or velocities of joints, as the contract says."""
        if self.robot.active:
            self._adopt()
            self.takeover.command(names, numbers, stamp_ns)

    def press(self, buttons: Sequence[int], stamp_ns: int) -> None:
        """The buttons are reported, of which one may be a deadman's."""
        if self.robot.active:
            self.takeover.press(buttons, stamp_ns)

    def hear(
        self,
        stamps_ns: Mapping[str, int],
        problems: Mapping[str, str] | None = None,
        waiting_for: str = "",
        slow: str = "",
    ) -> None:
        """Inference reports its inputs; see Watchdog.told."""
        if self.robot.active:
            watchdog = self.robot.follower.safety.watchdog
            watchdog.told(stamps_ns, self._clock.now_ns(), problems, waiting_for, slow)

    def look(self, graph: Graph) -> None:
        """Look at the publishers in the graph, and for why inputs are late; a few times a second."""
        self.publishers.look(graph, self.source.writer)
        self._lateness.look()

    def tick(self) -> Change | None:
        """Decide what goes on; at the watchdog's rate. Returns the change of what is allowed, if any."""
        self.source.follow_newest()
        self._adopt()
        follower = self.robot.follower
        if fault := follower.look(self._clock.now_ns()):
            self.holds.fault(fault)
        self.holds.hindered({**self._causes.hindrances, **self._outputs.hindrances})
        now_ns = self._clock.now_ns()
        change, path = follower.step(now_ns)
        self._outputs.send(path, now_ns)
        if self._clock.was_set():
            return None  # believe nothing before `jump`
        if self.force is not None:
            self.force.watch()
        self._lateness.note()
        self.takeover.look()
        follower.adapt()
        if trouble := self._outputs.trouble:
            self.robot.warn_sometimes("slow", trouble)
        self.homing.poll()
        self._rest(change)
        self.reports.look(self.takeover.state)
        self.runs.advance()
        self.operator.advance()
        return change

    def jump(self) -> None:
        """ROS time was set (Clock.jumped_ns)."""
        if self.force is not None:
            self.force.adopt(self._clock.now_ns() - self._clock.jumped_ns)
        self.robot.begin_in_new_time()
        self._begin_anew()
        self.homing.cancel("ROS time has jumped", jumped=True)

    def activate(self) -> None:
        """Begin to act."""
        self.robot.begin()
        self._begin_anew()
        self.publishers.begin()
        self._outputs.begin()
        if not self.holds.released:
            self.robot.open()
        self.robot.active = True

    def deactivate(self) -> Iterator[float]:
        """Come to rest, and leave the controllers alone. Yields the seconds to wait before it goes on;
        meanwhile `jump` is still called."""
        self.robot.active = False
        self.homing.cancel("the trajectory node was deactivated")
        now_ns = self._clock.now_ns()
        if self.force is not None:
            self.force.end_retreat(now_ns)
        self._outputs.send(self.robot.follower.stop(now_ns), now_ns)
        self.reports.tell("released", ("the trajectory node is not active",))
        self.runs.advance()
        yield 0.0  # the clock may have been set before the stop left
        yield from self._outputs.close()
        self.operator.advance()

    def _begin_anew(self) -> None:
        self.source.begin()
        self.takeover.begin()
        self._lateness.refused, self._rests = "", False
        if self.force is not None:
            self.force.begin()

    def _adopt(self) -> None:
        """Take over the reactions to contacts; before anything is decided about motion."""
        if self.force is not None:
            self.force.adopt(self._clock.now_ns())

    def _rest(self, change: Change | None) -> None:
        """Let the outputs rest when the robot does, and is held."""
        follower = self.robot.follower
        holding = follower.safety.state is MotionState.HOLDING
        joins = follower.joining.lasts(self._clock.now_ns())
        rests = holding and not joins and bool(self.holds.holds)
        if (change is not None and change.after is MotionState.HOLDING) or (rests and not self._rests):
            self._outputs.rest()
        self._rests = rests
