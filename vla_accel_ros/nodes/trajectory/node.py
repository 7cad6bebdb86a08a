"""The lifecycle node between chunks and controllers: action_chunk and joint_states in, commands out.

Each chunk is joined to the commanded motion, limited, split by controller and sent. A timer checks the ages
of cameras (as inference reports them on `inputs`), joints and chunk against the contract. Beyond a limit the
arm stops smoothly and is held, and continues by itself when everything is fresh. Joints that leap or do not
follow, and another publisher beside this node, stop it until a person resumes. ~/hold and ~/resume do the
same by hand, ~/release and ~/reclaim lend the robot to others, ~/home moves it there and keeps it there;
~/reset says that the joints were put elsewhere, as a simulator does; it is answered once the motion has ended
and begins anew. Holds survive a restart in the node's
state file, and after a crash the node comes up held. A node that is deactivated or ended stops the arm first.
The age from image stamp to published trajectory is LoopStats "image_to_trajectory" on loop_stats: p50_s and
p99_s over the last 512 trajectories, runs counts them, misses those older than the chunk's age limit.
`motion` reports what happens to chunks, so that inference guides only chunks that are executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from vla_accel_msgs.msg import ActionChunk, Inputs, LoopStats
from vla_accel_msgs.msg import Motion as MotionMessage
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.controller_check import Sender
from vla_accel_ros.contract.graph_check import chunks, forces, outputs, states
from vla_accel_ros.control import on_arrival
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import (
    CHUNK,
    INFERENCE,
    JOINT_STATES,
    Change,
    MotionState,
    Safety,
    Watchdog,
)
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.state_file import StateFile
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.controllers.parameters import ControllerCheck
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, Reporter, status
from vla_accel_ros.nodes.graph import GraphCheck
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.params.trajectory import TRAJECTORY
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.nodes.throttled import AGAIN_S, Reasons, Throttled
from vla_accel_ros.nodes.trajectory.causes import Causes
from vla_accel_ros.nodes.trajectory.chunk_source import ChunkSource
from vla_accel_ros.nodes.trajectory.force import ForceLoop
from vla_accel_ros.nodes.trajectory.hold import OPERATOR, RELEASED, RESET, Hold
from vla_accel_ros.nodes.trajectory.home import Home
from vla_accel_ros.nodes.trajectory.moves import Tolerances
from vla_accel_ros.nodes.trajectory.publishers import LOOKS_HZ, Publishers
from vla_accel_ros.nodes.trajectory.release import Release, say
from vla_accel_ros.nodes.trajectory.reports import MotionTopic, controller_lines, motion_line, state_line
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.types import Chunk


class TrajectoryNode(ManagedNode):
    """The node trajectory; see the module docstring and nodes/params/trajectory.py."""

    def __init__(self) -> None:
        super().__init__("trajectory", TRAJECTORY)
        self._contract: Contract | None = None
        state = StateFile(self.get_fully_qualified_name(), self.context.get_domain_id())
        self._hold = Hold(self, state)
        self._refused = {kind: Throttled(self, AGAIN_S) for kind in ("chunk", "inputs", "joint_states")}
        self._reasons = Reasons(self)
        self._reporter = Reporter(self, self._statuses)

    def configure(self) -> None:
        self._hold.restore(value(self, "after_restart") == "go_on", self.get_logger().warning)
        contract = Contract.load(value(self, "contract") or demo_contract())
        if value(self, "stamp") == "zero":
            contract = contract.eased("joint_trajectory", on_arrival.SPEED, on_arrival.ACCELERATION)
        self._contract = contract
        self._reporter.hardware_id = contract.robot
        motion = self.output(MotionMessage, "motion", qos.LATCHED)
        self._motion = MotionTopic(motion, value(self, "mode"))
        self._stats = self.output(LoopStats, "loop_stats", qos.REPORT)
        self._outputs = Outputs(self, contract)
        self._source = ChunkSource(self, contract, self._take, self._on_lost_slot)
        self._source.poll_before_commands(self._outputs)
        self._force = ForceLoop(self._hold, self._outputs, contract)
        self.on_release(self._force.close)
        self._begin(contract)
        manager = value(self, "controller_manager")
        hold, sender = partial(self._hold.hold, passing=True), Sender.of(contract, value(self, "stamp"))
        self._check = ControllerCheck(self, contract.controllers, sender, manager, hold)
        self.on_release(self._check.close)
        self._configure_moves(contract, manager)
        if self._source.listens:
            self.listen(ActionChunk, "action_chunk", self._source.came, qos.COMMAND)
        self.listen(JointState, contract.joint_states.topic, self._on_joints, qos.SENSOR)
        self.listen(Inputs, "inputs", self._on_inputs, qos.REPORT)
        self.serve(Trigger, "~/hold", self._on_hold)
        self.serve(Trigger, "~/reset", self._on_reset)
        self.serve(Trigger, "~/resume", self._on_resume)
        self.every(1.0 / value(self, "watchdog_hz"), self._watch)
        joints, commanded = states(contract), outputs(contract)
        stopping = [joints.about, *(output.about for output in commanded)]
        self._graph = GraphCheck(
            self,
            [joints, *forces(contract), *commanded],
            [chunks(ours=False)],
            contract.joint_states.topic,
            stopping,
        )
        self._graph.refuse_wrong()
        self._causes = Causes(self, contract, self._graph)
        commands = [controller.topic for controller in contract.controllers]
        self._neighbours = Publishers(
            self._hold, contract.joint_states.topic, "action_chunk", commands, lambda: self._source.writer
        )
        self.every(1.0 / LOOKS_HZ, self._look)
        self.every(1.0, self._report)

    def _configure_moves(self, contract: Contract, manager: str) -> None:
        theirs = tuple(name.strip() for name in value(self, "release_to").split(",") if name.strip())
        self._release = Release(self._hold, contract, value(self, "release_by"), theirs, manager)
        tolerances = Tolerances(*(value(self, f"move_{name}") for name in ("path", "goal", "time_s")))
        self._home = Home(self._hold, contract, self._outputs.adapters, value(self, "move_speed"), tolerances)
        self.on_release(self._home.close)
        self.serve(Trigger, "~/release", self._on_release)
        self.serve(Trigger, "~/reclaim", self._release.reclaim)
        self.serve(Trigger, "~/home", self._home.home)
        if contract.force is not None:
            self._force.cancel_move = self._home.cancel
            self.serve(Trigger, "~/tare", self._force.tare)

    def activate(self) -> None:
        assert self._contract is not None
        self._hold.resume_passing()
        if value(self, "check_controllers"):
            self._check.refuse_wrong()
        self._begin(self._contract)
        self._neighbours.begin()
        self._causes.look(self._hold.released)
        self._outputs.begin()
        if RELEASED not in self._hold.holds:
            self._outputs.open()

    def deactivate(self) -> None:
        self._home.cancel("the trajectory node was deactivated")
        self._hold.abandon()
        self._force.stop()
        now_ns = self.now_ns()
        self._outputs.send(self._follower.stop(now_ns), now_ns)
        self._motion.tell("released", ("the trajectory node is not active",), self.now_ns())
        self._outputs.close()

    def release(self) -> None:
        self._contract = None

    def finish(self) -> None:
        self._hold.finish()

    def clock_jumped(self) -> None:
        if self._contract is not None:
            self._force.adopt(self.jumped_ns)
            braking = self._follower.stop_in_new_time(self.now_ns(), self.now_ns() - self.jumped_ns)
            setpoint, counted = self._follower.joining.setpoint, self._joints.counted
            self._begin(self._contract)
            self._counts = bool(np.isfinite(counted).all())
            self._joints.count_from(counted)
            self._follower.joining.begin_at(setpoint)
            for stop in self._outputs.stop(braking):
                self._follower.joining.begin_after(stop)
                self._hold.braking(stop.end_ns)
            self._home.cancel("ROS time has jumped", jumped=True)

    def _begin(self, contract: Contract) -> None:
        """Start without knowledge of the motion, and command nothing."""
        self._source.begin()
        self._motion.begin()
        joints = contract.action_joints
        buffer = TrajectoryBuffer(
            tuple(joint.name for joint in joints),
            JointLimits.of(joints),
            value(self, "mode"),
            blend_s=value(self, "blend_s"),
            lead_s=self._outputs.lead_s(),
            execution_horizon=value(self, "execution_horizon") or None,
            max_age_s=contract.chunk.max_age_s,
        )
        safety = Safety(Watchdog(contract.max_ages_s))
        following = FollowingError(
            *np.array([(f.rad, f.s) for f in (j.following for j in joints)]).reshape(-1, 2).T
        )
        self._follower = ChunkFollower(
            buffer, safety, contract.chunk.max_age_s, self._outputs.twist, following
        )
        columns = self._columns = [contract.joint_names.index(name) for name in buffer.joints]
        self._follower.executed = lambda t_ns: self._outputs.commanded(t_ns)[columns]
        self._limits = JointLimits.of(contract.joints)
        turning = [joint.name for joint in contract.joints if joint.continuous]
        self._joints = JointHistory(contract.joint_names, continuous=turning)
        self._joints_age_ns = round(contract.joint_states.max_age_s * 1e9)
        self._joints_refused = ""
        self._counts = self._rests = False
        self._hold.over(self._follower, self._joints, self._outputs, self._motion)
        self._force.begin(self._follower)

    def _take(self, received: Callable[[], Chunk]) -> bool:
        """Follow a chunk; False if it is refused."""
        self._force.adopt()
        try:
            try:
                chunk = received()
            except ValueError as refusal:
                self._follower.refused(str(refusal))
                raise
            with self.timeline.following(chunk.stamp_ns):
                now_ns = self.now_ns()
                self._outputs.send(self._follower.follow(chunk, now_ns, self.now_ns), now_ns)
        except ValueError as refusal:
            self._refused["chunk"].error(f"chunk refused: {refusal}")
            return False
        return True

    def _on_lost_slot(self, why: str) -> None:
        self._follower.safety.watchdog.note("chunk", why)

    def _on_inputs(self, message: Inputs) -> None:
        if self.active:
            try:
                told = convert.inputs_from_message(message)
            except ValueError as refusal:
                self._refused["inputs"].error(f"inputs refused: {refusal}")
                return
            self._follower.safety.watchdog.told(
                told.stamps_ns, self.now_ns(), told.problems, told.waiting_for, told.slow
            )

    def _on_joints(self, message: JointState) -> None:
        if not self.active:
            return
        try:
            stamp_ns = convert.stamp_ns(message.header.stamp)
            new = self._joints.add(message.name, message.position, stamp_ns, self.now_ns())
        except ValueError as refusal:
            self._joints_refused = str(refusal)
            self._refused["joint_states"].error(f"joint_states refused: {refusal}")
            return
        self._joints_refused = ""
        if not new or self._joints.missing:
            return
        self._count_turns()
        newest, stamps_ns, now_ns = self._joints.newest(), self._joints.stamps_ns, self.now_ns()
        oldest_ns, newest_ns = int(stamps_ns.min()), int(stamps_ns.max())
        # one joint that is stamped ahead hides that it is late
        stamp_ns = newest_ns if newest_ns - now_ns > self._joints_age_ns else oldest_ns
        columns = self._columns
        fault = self._follower.measured(newest[columns], stamp_ns, now_ns, stamps_ns[columns])
        self._outputs.measured(newest, stamps_ns, self._follower.believes(stamp_ns))
        if fault and self._hold.lent:
            self._follower.resume()  # others move it; its position is found when it comes back
        elif fault:
            unheard = (self._causes.unheard(name) for name in self._joints.joints if fault.startswith(name))
            self._hold.fault(fault, [about for abouts in unheard for about in abouts])
            self._watch()

    def _count_turns(self) -> None:
        """Count continuous joints on from what is commanded; at the beginning, in a turn within their
        range."""
        if not self._limits.continuous.any():
            return
        if not self._counts:
            self._counts = True
            self._joints.count_from(self._limits.inside(self._joints.newest()))
        elif self._follower.joining.begun and not self._hold.lent:
            commanded = np.full(len(self._joints.joints), np.nan)
            commanded[self._columns], _ = self._follower.buffer.reference(self.now_ns())
            self._joints.count_from(commanded)

    def _look(self) -> None:
        """Look at the graph, and for why inputs are late."""
        assert self._contract is not None
        self._neighbours.look()
        self._causes.look(self._hold.released)
        watchdog = self._follower.safety.watchdog
        lates, slow = watchdog.late(self.now_ns()), self._causes.slow()
        told = {unnumbered(late.note) for late in lates}
        for late in lates:
            if late.name == JOINT_STATES:
                self._causes.look_for_joints()
            elif late.name == INFERENCE or (late.name == CHUNK and not late.note and not watchdog.reported):
                watchdog.note(late.name, self._causes.chunks())
            elif late.age_s is not None and not late.note and slow and unnumbered(slow) not in told:
                told.add(unnumbered(slow))
                watchdog.note(late.name, slow)

    def _watch(self) -> None:
        self._source.follow_newest()
        self._force.adopt()
        self._follower.joining.told(self._outputs.reference()[self._columns])
        self._follower.joining.rests(self._outputs.rests_ns())
        self._follower.joining.waits = self._outputs.waits
        self._hold.hindered(self._causes.hindrances | self._outputs.hindrances)
        now_ns = self.now_ns()
        change, path = self._follower.step(now_ns)
        self._outputs.send(path, now_ns)
        if self.clock_was_set():
            return  # the clock was set meanwhile: believe nothing before `clock_jumped`
        self._force.watch()
        self._note_silence()
        self._follower.buffer.lead_s = self._outputs.lead_s()
        self._follower.awaits_arrival = self._outputs.awaits_arrival
        if change is not None:
            self._tell(change)
        self._hold.poll()
        self._home.poll()
        safety = self._follower.safety
        joins = self._follower.joining.lasts(self.now_ns())
        rests = safety.state is MotionState.HOLDING and not joins and bool(self._hold.holds)
        if rests and not self._rests:
            self._outputs.rest()
        self._rests = rests
        lent = self._hold.lent and safety.state is MotionState.HOLDING
        self._motion.keep(self._follower.buffer.kept_s)
        state = "released" if lent else safety.state.value
        self._motion.tell(state, safety.reasons, self.now_ns())
        self._reasons.log("not moving", dict(zip(safety.causes, safety.reasons, strict=True)))

    def _note_silence(self) -> None:
        """Note why the joints or chunks are late, and which of their topics were silent."""
        assert self._contract is not None
        watchdog, states = self._follower.safety.watchdog, self._contract.joint_states
        for late in watchdog.late(self.now_ns()):
            if late.name == "joint_states":
                self._neighbours.silent(states.topic)
                problem = self._joints.problem(self.now_ns(), states.max_age_s)
                if note := self._joints_refused or problem or self._causes.silence:
                    watchdog.note("joint_states", note)
            elif late.name == "chunk":
                self._neighbours.silent("action_chunk")
                if not late.note and not self._source.listens and self._source.problem:
                    watchdog.note("chunk", self._source.problem)

    def _tell(self, change: Change) -> None:
        if change.after is MotionState.STOPPING:
            safety = self._follower.safety
            self._reasons.log("stopping", dict(zip(safety.causes, safety.reasons, strict=True)), at_once=True)
        elif change.after is MotionState.RUNNING:
            self.get_logger().info("running")
        else:
            self._outputs.rest()
            self.get_logger().info("holding")

    async def _on_hold(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._hold.hold()
        self._home.cancel(OPERATOR)
        return say(response, True, f"stopping; ~/resume goes on{await self._hold.kept()}")

    async def _on_resume(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._hold.resume_all()
        self._force.forgive()
        await self._hold.kept()
        late = [str(late) for late in self._follower.safety.watchdog.late(self.now_ns())]
        held = "; ".join(self._hold.holds)
        words = f"going on when fresh: {'; '.join(late)}" if late else "going on"
        return say(response, True, f"still held: {held}" if held else words)

    async def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if not self.active:
            return say(response, True, "the trajectory node is not active")
        self._home.cancel(RESET)
        if not await self._hold.come_to_rest(RESET):
            return say(response, True, "the trajectory node is no longer active")
        self._force.begin(self._follower)
        self._hold.go_on(RESET)
        return say(response, True, "beginning anew from where the joints are")

    async def _on_release(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._home.cancel("the controllers are released to others")
        return await self._release.release(request, response)

    def _report(self) -> None:
        self._graph.poll()
        if value(self, "check_controllers"):
            self._check.poll()
        now_ns = self.now_ns()
        self._stats.publish(convert.loop_stats(self._follower.stats(now_ns), now_ns))

    def _statuses(self) -> Sequence[DiagnosticStatus]:
        if self._contract is None:
            return [status("motion", ERROR if self.trouble else OK, self.trouble or "not configured")]
        if not self.active:
            return [status("motion", ERROR if self.trouble else OK, self.trouble or "not active")]
        faults = [*self._hold.faults, *self._neighbours.beside]
        motion = motion_line(self._follower, self._contract, faults, self.now_ns())
        return [
            motion,
            *controller_lines(self._check),
            *self._source.statuses(),
            *self._outputs.statuses(),
            *self._force.statuses(),
            self._graph.status(),
            state_line(self._hold.forgets),
        ]


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros trajectory`."""
    return run(TrajectoryNode, args)
