"""What an arm does: everything that the trajectory node decides, without ROS, threads or a clock of its own.

In come chunks, measured joints, reports of inference, states of controllers, facts of the graph, orders and
ticks; out go commands (by the channels of control/outputs), answers, lines for the log and reports. The node
(nodes/trajectory) converts messages and calls; the adversary and the fuzzers drive this same object.

The rules: a chunk is followed while every input is fresh and nothing holds the robot (following/). What is
decided reaches a controller without a step, however late its message leaves (outputs/, hand_over.py). A hold
lasts until it is taken back (holds.py). Whatever else moves the robot (homing.py, lending.py) begins and ends
with a robot at rest (robot.py). A contact is answered before anything else (force/). When the clock is set,
the robot brakes as its controllers do by now, and begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from vla_accel_ros.control.chunking.source import ChunkSource, Received, Slot
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import (
    CHUNK,
    HOMING,
    INFERENCE,
    JOINT_STATES,
    OPERATOR,
    Change,
    MotionState,
)
from vla_accel_ros.control.force.reflexes import Reflexes
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.holds import RESET
from vla_accel_ros.control.homing import INACTIVE, Action, Homing
from vla_accel_ros.control.lending import Lending, Manager
from vla_accel_ros.control.orders import Order, Steps, come_to_rest, kept
from vla_accel_ros.control.publishers import Causes, Graph, Publishers
from vla_accel_ros.control.robot import Robot

CHUNKS = "action_chunk"
AGAIN_NS = 10_000_000_000
"""A line about what comes again and again is logged once in this time."""
# Reported in steps, rounded up: an exact figure would change all the time.
_LEAD_STEP_S = 0.01


class Report(NamedTuple):
    """What the motion does with chunks: published on changes, not at a rate, because a chunk computed after a
    change was published must not agree with motion that was never executed.

    beginning: how often it began anew. state: running, stopping, holding or released. lead_s: how much of the
    old motion a new chunk keeps. causes: what the reasons are about, without their numbers.
    """

    beginning: int
    state: str
    lead_s: float
    causes: tuple[str, ...]
    reasons: tuple[str, ...] = ()


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
        self.reports = list[Report]()
        self.source = ChunkSource(self, self._clock, robot.log, slot, listens)
        self.homing, self.lending = Homing(robot, actions), Lending(robot, manager)
        topics = [controller.topic for controller in contract.controllers]
        self.publishers = Publishers(
            robot.holds, self._clock, name, contract.joint_states.topic, CHUNKS, topics
        )
        self.reflexes, self._taking_over = None, None
        if (guard := self._outputs.guard) is not None:
            self.reflexes = Reflexes(robot, guard)
            self._taking_over = TakingOver(guard, robot.holds, self._outputs.lock, self._outputs.react)
        self._orders = list[Order]()
        self._logged_ns = dict[str, int]()
        self._reported: Report | None = None
        self._begin()

    # Inputs

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
                chunk = received()
            except ValueError as refusal:
                follower.refused(str(refusal))
                raise
            with self._following(chunk.stamp_ns):
                now_ns = self._clock.now_ns()
                self._outputs.send(follower.follow(chunk, now_ns, self._clock.now_ns), now_ns)
        except ValueError as refusal:
            self.refuse("chunk", refusal)
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
            self._joints_refused = str(refusal)
            self.refuse("joint_states", refusal)
            return None
        self._joints_refused = ""
        fault = robot.compare() if new and not robot.joints.missing else ""
        if fault and self.holds.lent:
            robot.follower.resume()  # others move it; its position is found when it comes back
        elif fault:
            unheard = (self._causes.unheard(name) for name in robot.joints.joints if fault.startswith(name))
            self.holds.fault(fault, [about for abouts in unheard for about in abouts])
            return self.tick()
        return None

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

    def refuse(self, kind: str, refusal: ValueError) -> None:
        """Log that a message of this kind is refused."""
        self._log_sometimes(kind, "error", f"{kind} refused: {refusal}")

    def look(self, graph: Graph) -> None:
        """Look at the publishers in the graph, and for why inputs are late; a few times a second."""
        self.publishers.look(graph, self.source.writer)
        watchdog = self.robot.follower.safety.watchdog
        lates, slow = watchdog.late(self._clock.now_ns()), self._causes.slow()
        noted = {unnumbered(stream.note) for stream in lates}
        for stream in lates:
            if stream.name == JOINT_STATES:
                self._causes.look_for_joints()
            elif stream.name == INFERENCE or (
                stream.name == CHUNK and not stream.note and not watchdog.reported
            ):
                watchdog.note(stream.name, self._causes.chunks())
            elif stream.age_s is not None and not stream.note and slow and unnumbered(slow) not in noted:
                noted.add(unnumbered(slow))
                watchdog.note(stream.name, slow)

    # Time

    def tick(self) -> Change | None:
        """Decide what goes on; at the watchdog's rate. Returns the change of what is allowed, if any."""
        self.source.follow_newest()
        self._adopt()
        follower = self.robot.follower
        follower.look()
        self.holds.hindered({**self._causes.hindrances, **self._outputs.hindrances})
        now_ns = self._clock.now_ns()
        change, path = follower.step(now_ns)
        self._outputs.send(path, now_ns)
        if self._clock.was_set():
            return None  # believe nothing before `jump`
        self._watch_force()
        self._note_silence()
        follower.adapt()
        if trouble := self._outputs.trouble:
            self._log_sometimes("slow", "warning", trouble)
        self.homing.poll()
        self._rest(change)
        self._report()
        self.advance()
        return change

    def advance(self) -> None:
        """Let the orders go on that wait for nothing more."""
        for order in list(self._orders):
            order.step()
        self._orders = [order for order in self._orders if order.answer is None]

    def jump(self) -> None:
        """ROS time was set (Clock.jumped_ns)."""
        if self._taking_over is not None:
            self._taking_over.adopt(self._clock.now_ns() - self._clock.jumped_ns)
        self.robot.begin_in_new_time()
        self._begin_anew()
        self.homing.cancel("ROS time has jumped", jumped=True)

    def activate(self) -> None:
        """Begin to act."""
        self._begin()
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
        if self._taking_over is not None:
            self._taking_over.end_retreat(now_ns)
        self._outputs.send(self.robot.follower.stop(now_ns), now_ns)
        self._tell("released", ("the trajectory node is not active",))
        yield 0.0  # the clock may have been set before the stop left
        yield from self._outputs.close()
        self.advance()

    # Orders

    def order(self, name: str) -> Order:
        """Begin what a service of this name asks for: hold, resume, home, release, reclaim or reset."""
        steps = {
            "hold": self._hold,
            "resume": self._resume,
            "home": self.homing.order,
            "release": self._release,
            "reclaim": self.lending.reclaim,
            "reset": self._reset,
        }
        order = Order(steps[name]())
        if order.answer is None:
            self._orders.append(order)
        return order

    def tare(self) -> tuple[bool, str]:
        """Measure the bias of the force sensors again, while the arm stands still."""
        guard = self._outputs.guard
        if guard is None or not any(watch.sensor.tared for watch in guard.watches):
            return False, "no sensor of the contract has a bias to tare"
        if not self.robot.active:
            return False, INACTIVE
        if self.robot.follower.safety.state is not MotionState.HOLDING:
            return False, "the arm moves: call ~/hold first; the bias is measured at rest"
        with self._outputs.lock:
            guard.begin_tare()
        return True, "taring; motion continues when there is a bias (see /diagnostics)"

    def _hold(self) -> Steps:
        """Stop, and stay stopped until ~/resume."""
        self.holds.hold()
        self.homing.cancel(OPERATOR)
        unwritten = yield from kept(self.robot)
        return True, f"stopping; ~/resume goes on{unwritten}"

    def _resume(self) -> Steps:
        """Take back every hold that a person may."""
        self.holds.resume_all()
        self.robot.follower.resume()
        if self._taking_over is not None:
            self._taking_over.forgive()
        yield from kept(self.robot)
        inputs = [str(inputs) for inputs in self.robot.follower.safety.watchdog.late(self._clock.now_ns())]
        reasons = "; ".join(self.holds.holds)
        words = f"going on when fresh: {'; '.join(inputs)}" if inputs else "going on"
        return True, f"still held: {reasons}" if reasons else words

    def _release(self) -> Steps:
        """Hand the controllers over to others."""
        self.homing.cancel("the controllers are released to others")
        return (yield from self.lending.release())

    def _reset(self) -> Steps:
        """Begin anew from where the joints were put, as a simulator does it."""
        if not self.robot.active:
            return True, "the trajectory node is not active"
        self.homing.cancel(RESET)
        if not (yield from come_to_rest(self.robot, RESET)):
            return True, "the trajectory node is no longer active"
        if self._taking_over is not None:
            self._taking_over.begin(self.robot.follower)
        self.robot.go_on(RESET)
        return True, "beginning anew from where the joints are"

    # Below the rules

    def _begin(self) -> None:
        self.robot.begin()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.source.begin()
        self._joints_refused, self._rests = "", False
        if self._taking_over is not None:
            self._taking_over.begin(self.robot.follower)

    def _adopt(self) -> None:
        """Take over the reactions to contacts; before anything is decided about motion."""
        if self._taking_over is not None:
            self._taking_over.adopt(self._clock.now_ns())

    def _watch_force(self) -> None:
        """Hold and release the robot according to the sensors; after the follower's step."""
        if self._taking_over is None or self.reflexes is None:
            return
        holds, failed = self.holds, self.reflexes.failed
        if failed and failed not in holds.holds:
            holds.fault(failed)
            self.homing.cancel(failed)
        reason = self._taking_over.watch(self._clock.now_ns())
        if reason and HOMING in holds.holds and reason not in holds.holds:
            holds.fault(reason)
            self.homing.cancel(reason)

    def _note_silence(self) -> None:
        """Note why the joints or chunks are late, and which of their topics were silent."""
        watchdog, states = self.robot.follower.safety.watchdog, self.robot.contract.joint_states
        now_ns = self._clock.now_ns()
        for stream in watchdog.late(now_ns):
            if stream.name == JOINT_STATES:
                self.publishers.silent(states.topic)
                problem = self.robot.joints.problem(now_ns, states.max_age_s)
                if note := self._joints_refused or problem or self._causes.silence:
                    watchdog.note(JOINT_STATES, note)
            elif stream.name == CHUNK:
                self.publishers.silent(CHUNKS)
                if not stream.note and not self.source.listens and self.source.problem:
                    watchdog.note(CHUNK, self.source.problem)

    def _rest(self, change: Change | None) -> None:
        """Let the outputs rest when the robot does, and is held."""
        follower = self.robot.follower
        holding = follower.safety.state is MotionState.HOLDING
        joins = follower.joining.lasts(self._clock.now_ns())
        rests = holding and not joins and bool(self.holds.holds)
        if (change is not None and change.after is MotionState.HOLDING) or (rests and not self._rests):
            self._outputs.rest()
        self._rests = rests

    def _report(self) -> None:
        safety = self.robot.follower.safety
        lent = self.holds.lent and safety.state is MotionState.HOLDING
        self._tell("released" if lent else safety.state.value, safety.reasons)

    def _tell(self, state: str, reasons: tuple[str, ...]) -> None:
        kept_s = self.robot.follower.buffer.kept_s
        lead_s = math.ceil(kept_s / _LEAD_STEP_S - 1e-6) * _LEAD_STEP_S
        report = Report(self.robot.beginning, state, lead_s, tuple(map(unnumbered, reasons)))
        if report != self._reported:
            self._reported = report
            self.reports.append(report._replace(reasons=reasons))

    def _log_sometimes(self, kind: str, level: str, sentence: str) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._logged_ns.get(kind, -AGAIN_NS) + AGAIN_NS:
            self._logged_ns[kind] = now_ns
            self.robot.log.append((level, sentence))
