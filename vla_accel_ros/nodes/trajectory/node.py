"""The lifecycle node between chunks and controllers: action_chunk and joint_states in, commands out.

Each chunk is joined to the commanded motion, limited, split by controller and sent. A timer checks the ages
of cameras (as inference reports them on `inputs`), joints and chunk against the contract. Beyond a limit the
arm stops smoothly and is held, and continues by itself when everything is fresh. Joints that leap or do not
follow, and another publisher beside this node, stop it until a person resumes. ~/hold and ~/resume do the
same by hand, ~/release and ~/reclaim lend the robot to others, ~/home moves it there and keeps it there;
~/take_over and ~/give_back, or a button, let a person command it by a leader arm in place of the chunks;
~/reset says that the joints were put elsewhere, as a simulator does; it is answered once the motion has ended
and begins anew. The action run_policy has the policy act on an instruction (runs.py). Holds survive a restart
in the node's state file, and after a crash the node comes up held. A node that is deactivated or ended stops
the arm first.
The age from image stamp to published trajectory is LoopStats "image_to_trajectory" on loop_stats: p50_s and
p99_s over the last 512 trajectories, runs counts them, misses those older than the chunk's age limit.
`motion` reports what happens to chunks, so that inference guides only chunks that are executed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.task import Future
from sensor_msgs.msg import JointState, Joy
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import ActionChunk, Inputs, LoopStats
from vla_accel_msgs.msg import Motion as MotionMessage
from vla_accel_ros.contract.checks import graph_check
from vla_accel_ros.contract.checks.controller_check import Sender
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.contract import Options
from vla_accel_ros.control.following.watchdog import Change, MotionState
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.motion import Motion
from vla_accel_ros.control.orders.order import Order
from vla_accel_ros.control.outputs import on_arrival
from vla_accel_ros.control.outputs.output import Output
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.publishers import CHUNKS, LOOKS_HZ
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.state_file import StateFile
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.adapter import NodeClock, make_output
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.chunk_topic import slot_name
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.declare import record, value
from vla_accel_ros.nodes.graph import GraphCheck
from vla_accel_ros.nodes.interfaces import interface
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.trajectory import TRAJECTORY
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.throttled import Reasons
from vla_accel_ros.nodes.trajectory.causes import Causes
from vla_accel_ros.nodes.trajectory.force import ForceLoop
from vla_accel_ros.nodes.trajectory.manager import ControllerManager
from vla_accel_ros.nodes.trajectory.moves import JointMove, Tolerances
from vla_accel_ros.nodes.trajectory.reports import (
    chunk_lines,
    controller_lines,
    motion_line,
    motion_message,
    output_lines,
    state_line,
)
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.timeline import Flows

if TYPE_CHECKING:
    from vla_accel_ros.nodes.trajectory.runs import RunServer

TRAJECTORIES_HZ = 60.0
"""Highest rate of whole trajectories to a controller, for chunks from the slot."""
_AT_ONCE_S = 0.003


class TrajectoryNode(ManagedNode):
    """The node trajectory; see the module docstring and nodes/params/trajectory.py."""

    def __init__(self) -> None:
        super().__init__("trajectory", TRAJECTORY, "motion")
        self._holds = Holds(StateFile(self.get_fully_qualified_name(), self.context.get_domain_id()))
        self._answering: list[Future] = []
        self._flows = dict[Output, Flows]()
        self._reasons = Reasons(self)

    def configure(self) -> None:
        for line in self._holds.restore(value(self, "after_restart") == "go_on"):
            self.get_logger().warning(line)
        contract = Contract.load(value(self, "contract") or demo_contract())
        if value(self, "stamp") == "zero":
            contract = contract.eased("joint_trajectory", on_arrival.SPEED, on_arrival.ACCELERATION)
        self.reporter.hardware_id = contract.robot
        self._publisher = self.output(MotionMessage, "motion", qos.LATCHED)
        self._stats = self.output(LoopStats, "loop_stats", qos.REPORT)
        self._graph = self._check_graph(contract)
        self._causes = Causes(self, contract, self._graph)
        motion = self._motion = self._make_motion(contract)
        self._time_commands(motion)
        self._force = ForceLoop(self, motion, () if contract.force is None else contract.force.sensors)
        self.on_release(self._force.close)
        hold, sender = partial(self._holds.hold, passing=True), Sender.of(contract, value(self, "stamp"))
        manager = value(self, "controller_manager")
        self._check = ControllerCheck(self, contract.controllers, sender, manager, hold)
        self.on_release(self._check.close)
        if motion.source.listens:
            self.listen(ActionChunk, CHUNKS, self._on_chunk, qos.COMMAND)
        self.listen(JointState, contract.joint_states.topic, self._on_joints, qos.SENSOR)
        self.listen(Inputs, "inputs", self._on_inputs, qos.REPORT)
        for topic in graph_check.person(contract):
            kind = interface(topic.type, topic.about)
            self.listen(kind, topic.topic, self._on_joy if kind is Joy else self._on_command, qos.SENSOR)
        for name in ("hold", "reset", "resume", "release", "reclaim", "home", "take_over", "give_back"):
            self._serve(name)
        self._runs = self._serve_runs(motion)
        if contract.force is not None:
            self.serve(Trigger, "~/tare", self._on_tare)
        self.every(1.0 / value(self, "watchdog_hz"), self._watch)
        self._graph.refuse_wrong()
        self.every(1.0 / LOOKS_HZ, self._look)
        self.every(1.0, self._report)

    def _serve_runs(self, motion: Motion) -> RunServer | None:
        """The action run_policy; None if vla_accel_msgs was built before it had that."""
        try:
            from vla_accel_ros.nodes.trajectory.runs import RunServer
        except ImportError as error:
            self.get_logger().warning(f"no run_policy: {error}: build vla_accel_msgs again")
            return None
        return RunServer(self, motion.runs)

    def _check_graph(self, contract: Contract) -> GraphCheck:
        joints, commanded = graph_check.states(contract), graph_check.outputs(contract)
        stopping = [joints.about, *(topics.about for topics in commanded)]
        topics = [joints, *graph_check.forces(contract), *graph_check.person(contract), *commanded]
        return GraphCheck(
            self, topics, [graph_check.chunks(ours=False)], contract.joint_states.topic, stopping
        )

    def _make_motion(self, contract: Contract) -> Motion:
        options = record(self, Options)
        twists, clock = options.make_twists(contract), NodeClock(self)
        sent = [make_output(self, contract, c, twists.get(c.topic)) for c in contract.commanded]
        turning = [joint.name for joint in contract.joints if joint.continuous]
        history = partial(JointHistory, contract.joint_names, continuous=turning)
        outputs = Outputs.of(
            contract, sent, clock, value(self, "lead_s"), [*twists.values()], threading.RLock()
        )
        robot = Robot(contract, options, outputs, self._holds, clock, history, [*twists.values()])
        manager = ControllerManager(self, contract, value(self, "controller_manager"), options.switches)
        tolerances = Tolerances(*(value(self, f"move_{name}") for name in ("path", "goal", "time_s")))
        actions = {
            controller.topic: JointMove(self, controller.action, tolerances, ended=self._on_outcome)
            for controller in contract.controllers
            if controller.action and not controller.rate_hz and set(controller.joints) <= set(contract.home)
        }
        source, rates = (
            value(self, "chunks_from"),
            [controller.rate_hz for controller in contract.controllers],
        )
        source = "topic" if source == "auto" and not all(rates) else source
        slot = None if source == "topic" else self._open_slot(contract, rates)
        motion = Motion(
            robot,
            self.get_fully_qualified_name(),
            self._causes,
            manager,
            actions,
            slot,
            source != "slot",
            self.following,
        )
        self.on_release(partial(self._close_motion, motion, list(actions.values())))
        return motion

    def _open_slot(self, contract: Contract, rates: Sequence[float]) -> ChunkSlot:
        """The slot of chunks. A controller that gets whole trajectories gets at most TRAJECTORIES_HZ of them,
        and one motion is decided for all."""
        slot = ChunkSlot(
            slot_name(self),
            contract.action_names,
            max(TRAJECTORIES_HZ, *rates),
            0.0 if all(rates) else TRAJECTORIES_HZ,
            track=f"topic {self.resolve_topic_name(CHUNKS)}",
        )
        self.on_release(slot.close)
        return slot

    def _time_commands(self, motion: Motion) -> None:
        """Make the timers of controllers that are commanded at a fixed rate; with a force sensor its thread
        makes the ticks. The slot is polled before each command of the fastest controller."""
        streams = motion.robot.outputs.streams
        of_joints = (output for output in streams if output.controller.joints)
        fastest = max(of_joints, key=lambda output: output.controller.rate_hz, default=None)
        poll_hz = TRAJECTORIES_HZ if fastest is None else fastest.controller.rate_hz
        if motion.force is not None or fastest is None:
            self.every(1.0 / poll_hz, self._poll)
        if motion.force is not None:
            return
        for output in streams:
            tick = partial(self._tick, output, output is fastest)
            self.every(1.0 / output.controller.rate_hz, tick)

    def activate(self) -> None:
        self._holds.resume_passing()
        if value(self, "check_controllers"):
            self._check.refuse_wrong()
        self._causes.look(self._holds.released)
        self._motion.activate()
        self._drain()

    def deactivate(self) -> None:
        for pause_s in self._motion.deactivate():
            self._drain()
            time.sleep(pause_s)
            self.look_at_clock()
        self._drain()

    def finish(self) -> None:
        self._holds.finish()

    def clock_jumped(self) -> None:
        self._motion.jump()
        self._drain()

    @contextmanager
    def following(self, stamp_ns: int) -> Iterator[None]:
        """A chunk of this image becomes motion: the first command of each stream after it ends its flow."""
        sent, of_frame = self._motion.robot.outputs, self.timeline.following(stamp_ns)
        count = sent.sent
        with of_frame:
            yield
            if sent.sent != count:
                self._flows = dict.fromkeys(sent.streams, self.timeline.flows)

    def _tick(self, output: Output, polls: bool) -> None:
        if polls:
            self._poll()
        self.timeline.flows = self._flows.pop(output, ())
        output.tick(self.now_ns())
        self.timeline.flows = ()

    def _poll(self) -> None:
        self._motion.source.poll()
        self._drain()

    def _on_chunk(self, message: ActionChunk) -> None:
        motion = self._motion
        names = motion.robot.contract.action_names
        number = (convert.stamp_ns(message.header.stamp), message.request_id)
        motion.receive(partial(convert.chunk_from_message, message, names), number)
        self._drain()

    def _on_inputs(self, message: Inputs) -> None:
        if self.active:
            try:
                report = convert.inputs_from_message(message)
            except ValueError as refusal:
                self._motion.robot.refuse("inputs", refusal)
            else:
                self._motion.hear(report.stamps_ns, report.problems, report.waiting_for, report.slow)
            self._drain()

    def _on_joints(self, message: JointState) -> None:
        stamp_ns = convert.stamp_ns(message.header.stamp)
        change = self._motion.measure(message.name, message.position, stamp_ns)
        self._drain(change)

    def _on_command(self, message: Any) -> None:
        """A person's command has come."""
        names, numbers = convert.command_from_message(message)
        self._motion.command(names, numbers, convert.stamp_ns(message.header.stamp))
        self._drain()

    def _on_joy(self, message: Joy) -> None:
        self._motion.press(message.buttons, convert.stamp_ns(message.header.stamp))
        self._drain()

    def _look(self) -> None:
        self._causes.look(self._holds.released)
        self._motion.look(self._causes.publishers())
        self._drain()

    def _watch(self) -> None:
        change = self._motion.tick()
        if self.clock_was_set():
            return  # `clock_jumped` comes
        self._drain(change)
        safety = self._motion.robot.follower.safety
        self._reasons.log("not moving", dict(zip(safety.causes, safety.reasons, strict=True)))

    def _on_outcome(self) -> None:
        """The action of a controller has ended."""
        if self.configured:
            self._motion.homing.take_outcomes()

    def _drain(self, change: Change | None = None) -> None:
        """Publish and log what the motion has to say, and answer."""
        motion = self._motion
        for report in motion.reports:
            self._publisher.publish(motion_message(report, value(self, "mode"), self.now_ns()))
        motion.reports.clear()
        if self._runs is not None:
            self._runs.drain()
        log, lines = self.get_logger(), list(motion.robot.log)
        motion.robot.log.clear()
        for level, line in lines:
            getattr(log, level)(line)
        if change is not None:
            self._log(change)
        self._wake()

    def _log(self, change: Change) -> None:
        if change.after is MotionState.STOPPING:
            safety = self._motion.robot.follower.safety
            self._reasons.log("stopping", dict(zip(safety.causes, safety.reasons, strict=True)), at_once=True)
        elif change.after is MotionState.RUNNING:
            self.get_logger().info("running")
        else:
            self.get_logger().info("holding")

    def _wake(self) -> None:
        """Let those that wait for an answer look again; also called by the thread that has written a file."""
        waiting, self._answering = self._answering, []
        for future in waiting:
            future.set_result(None)

    def _serve(self, name: str) -> None:
        """Serve an order of the motion."""

        async def answer(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            order = self._motion.operator.order(name)
            await self._answered(order)
            assert order.answer is not None
            return _filled(response, *order.answer)

        self.serve(Trigger, f"~/{name}", answer)

    async def _answered(self, order: Order) -> None:
        """Return when an order has its answer."""
        motion = self._motion
        while self.configured and motion is self._motion:
            while order.answer is None and order.writes and (written := self._holds.written) is not None:
                # usually at once, without another turn of the executor
                with suppress(TimeoutError):
                    written.result(_AT_ONCE_S)
                if not written.done():
                    break
                order.step()
            self._drain()
            if order.answer is not None:
                return
            wait: Future = Future()
            self._answering.append(wait)
            if order.writes and self._holds.written is not None:
                self._holds.written.add_done_callback(self._on_written)
            await wait
            if not self.active:  # nothing else lets it go on
                order.step()

    def _on_written(self, _: object) -> None:
        """Runs in the thread that has written the file."""
        self._wake()
        if self.executor is not None:
            self.executor.wake()

    def _on_tare(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        assert self._motion.force is not None
        return _filled(response, *self._motion.force.tare())

    def _close_motion(self, motion: Motion, actions: Sequence[JointMove]) -> None:
        motion.homing.cancel("the trajectory node was cleaned up")
        motion.operator.advance()
        for action in actions:
            action.close()

    def _report(self) -> None:
        self._graph.poll()
        if value(self, "check_controllers"):
            self._check.poll()
        now_ns = self.now_ns()
        self._stats.publish(convert.loop_stats(self._motion.robot.follower.stats(now_ns), now_ns))

    def statuses(self) -> Sequence[DiagnosticStatus]:
        motion = self._motion
        faults = [*self._holds.faults, *motion.publishers.beside]
        return [
            motion_line(motion.robot, faults, motion.takeover.state, self.now_ns()),
            *controller_lines(self._check),
            *chunk_lines(motion.source),
            *output_lines(motion.robot.outputs),
            *self._force.statuses(),
            self._graph.status(),
            state_line(self._holds.forgets),
        ]


def _filled(response: Trigger.Response, success: bool, message: str) -> Trigger.Response:
    response.success, response.message = success, brief(message)
    return response


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros trajectory`."""
    return run(TrajectoryNode, args)
