"""The robot of a motion: its contract, its measured joints, and whether it is at rest.

Everything else that moves the robot (a move home, MoveIt), and an operator's hold, begins with a robot at
rest that gets no commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.contract import Contract, Joints, Options
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.joining import MOVING
from vla_accel_ros.control.following.joint_faults import FollowingError
from vla_accel_ros.control.following.watchdog import JOINT_STATES, MotionState, Safety, Watchdog
from vla_accel_ros.control.holds import Holds
from vla_accel_ros.control.kinematics.guard import guarded
from vla_accel_ros.control.kinematics.led import LedHand
from vla_accel_ros.control.kinematics.rows import Rows
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.outputs.output import Clock
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.types import Chunk

SETTLE_S = 2.0
AGAIN_NS = 10_000_000_000
"""A line about what comes again and again is logged once in this time."""


class Robot:
    """The robot from the configuration of its node to the cleanup.

    history: makes an empty history of the measured joints. twists: the buffers of velocities of a hand and a
    base.

    Attributes: `active`; `follower`, what the present motion decides; `beginning`, how often motion began
    anew; `joints`, as measured; `columns`, those of the joints that chunks move; `log`, lines that are not
    logged yet, each with its level.
    """

    def __init__(
        self,
        contract: Contract,
        options: Options,
        outputs: Outputs,
        holds: Holds,
        clock: Clock,
        history: Callable[[], Joints],
        twists: Sequence[TwistBuffer] = (),
    ) -> None:
        self.contract, self.options, self.outputs = contract, options, outputs
        self.holds, self.clock, self._history, self._twists = holds, clock, history, twists
        self.active, self.beginning, self.log = False, 0, list[tuple[str, str]]()
        self._logged_ns = dict[str, int]()
        self.limits = JointLimits.of(contract.joints)
        self.columns = [contract.joint_names.index(joint.name) for joint in contract.action_joints]
        self._joints_age_ns = round(contract.joint_states.max_age_s * 1e9)
        layout, limits = contract.layout, JointLimits.of(contract.action_joints)
        self._tempo = options.make_tempo(contract)
        whole = options.mode == "block" or self._tempo is not None
        tips = [twist.tip for twist in twists if twist.tip is not None]
        self._led = LedHand(*layout.led, tips[0]) if layout is not None and layout.led else None
        self._rows = None if layout is None else Rows(layout, limits, whole, self._led)

    def begin(self) -> None:
        """Start without knowledge of the motion, and command nothing.

        The motion of an active robot begins because the clock has jumped: the controllers may still brake.
        """
        self.beginning += 1
        joints, options = self.contract.action_joints, self.options
        max_age_s, names = self.contract.chunk.max_age_s, tuple(joint.name for joint in joints)
        buffer = TrajectoryBuffer(
            names,
            guarded(self.contract, names),
            options.mode,
            blend_s=options.blend_s,
            lead_s=self.outputs.lead_s(),
            execution_horizon=options.execution_horizon or None,
            max_age_s=max_age_s,
            tempo=self._tempo,
        )
        following = FollowingError(
            *np.array([(f.rad, f.s) for f in (j.following for j in joints)]).reshape(-1, 2).T
        )
        safety = Safety(Watchdog(self.contract.max_ages_s))
        self.follower = ChunkFollower(buffer, safety, max_age_s, self._twists, following, self.outputs)
        self.joints, self._counts = self._history(), False
        self.holds.apply(safety)
        self._brakes_until_ns = self._settles_until_ns = 0
        if not self.active:
            self.settle()  # controllers may still execute what an earlier process sent
        else:
            limits = buffer.limits
            longest_s = float((limits.velocity / limits.acceleration).max(initial=0.0))
            self._brakes_until_ns = self.clock.now_ns() + round(longest_s * 1e9)

    def begin_in_new_time(self) -> None:
        """The clock was set: brake as the controllers do by now, and begin anew."""
        clock, old, counted = self.clock, self.follower, self.joints.counted
        braking = old.stop_in_new_time(clock.now_ns(), clock.now_ns() - clock.jumped_ns)
        setpoint = old.joining.setpoint
        self.begin()
        self._counts = bool(np.isfinite(counted).all())
        self.joints.count_from(counted)
        self.follower.joining.begin_at(setpoint)
        for stop in self.outputs.stop(braking):
            self.follower.joining.begin_after(stop)
            self.braking(stop.end_ns)

    def targets(self, chunk: Chunk) -> Chunk:
        """A chunk as targets of joints; see Rows. Raises ValueError if it has none, or a joint is not known
        yet."""
        if self._rows is None:
            return chunk
        if self.joints.newest_ns is None:
            raise ValueError(
                "a chunk came before the joints were measured, so nothing is known to start from"
            )
        observed = self.joints.at(chunk.stamp_ns)
        measured = observed[self.columns]
        measured = self.follower.buffer.limits.near(measured, self.joints.newest()[self.columns])
        commanded = measured
        if self.follower.joining.begun:
            commanded, _ = self.follower.buffer.reference(chunk.stamp_ns)
        targets = self._rows.targets(chunk, self.clock.now_ns(), measured, commanded, observed)
        if self._rows.cut:
            self.warn_sometimes("reach", f"chunk {chunk.request_id} is cut: {self._rows.cut}")
        return targets

    def instruct(self, task: str) -> None:
        """Another instruction was given, which may have a speed of its own."""
        if self._tempo is not None and task.strip() and task != self._tempo.task:
            self._tempo.task = task
            self.log.append(("info", f"speed {self._tempo} for {task!r}"))

    def open(self) -> None:
        """Prepare the controllers."""
        for failure in self.outputs.open():
            self.warn(failure)

    def warn(self, sentence: str) -> None:
        """Have this logged."""
        self.log.append(("warning", sentence))

    def refuse(self, kind: str, refusal: ValueError) -> None:
        """Have it logged that a message of this kind is refused."""
        self.warn_sometimes(kind, f"{kind} refused: {refusal}", "error")

    def warn_sometimes(self, kind: str, sentence: str, level: str = "warning") -> None:
        """Have this logged, unless something of its kind was within AGAIN_NS."""
        now_ns = self.clock.monotonic_ns()
        if now_ns >= self._logged_ns.get(kind, -AGAIN_NS) + AGAIN_NS:
            self._logged_ns[kind] = now_ns
            self.log.append((level, sentence))

    def compare(self) -> str:
        """Compare the newest joints with what is commanded. Returns the sentence of a fault that they show,
        else empty."""
        self._count_turns()
        newest, stamps_ns, now_ns = self.joints.newest(), self.joints.stamps_ns, self.clock.now_ns()
        oldest_ns, newest_ns = int(stamps_ns.min()), int(stamps_ns.max())
        # one joint that is stamped ahead hides that it is late
        stamp_ns = newest_ns if newest_ns - now_ns > self._joints_age_ns else oldest_ns
        columns, follower = self.columns, self.follower
        if self._led is not None:
            with self.outputs.lock:
                self._led.measured(newest, now_ns)
        fault = follower.measured(newest[columns], stamp_ns, now_ns, stamps_ns[columns])
        believed = follower.believes(stamp_ns)
        self.outputs.measured(newest, stamps_ns, believed)
        if self._tempo is not None and believed and follower.joining.begun:
            self._tempo.measure(newest[columns], *follower.buffer.reference(stamp_ns))
        return fault

    def _count_turns(self) -> None:
        """Count continuous joints on from what is commanded; at the beginning, in a turn within their
        range."""
        if not self.limits.continuous.any():
            return
        if not self._counts:
            self._counts = True
            self.joints.count_from(self.limits.inside(self.joints.newest()))
        elif self.follower.joining.begun and not self.holds.lent:
            commanded = np.full(len(self.joints.joints), np.nan)
            commanded[self.columns], _ = self.follower.buffer.reference(self.clock.now_ns())
            self.joints.count_from(commanded)

    @property
    def kept_ns(self) -> int:
        """How long the sent motion must go on unchanged, since a new message arrives that late."""
        return round(self.follower.buffer.kept_s * 1e9)

    @property
    def measured(self) -> dict[str, float] | None:
        """The newest joints by name; None while one is unknown."""
        if self.joints.newest_ns is None:
            return None
        return dict(zip(self.joints.joints, self.joints.newest().tolist()))

    @property
    def measured_ns(self) -> dict[str, int]:
        """The stamp of the newest state of each joint, by name; empty while one is unknown."""
        if self.joints.newest_ns is None:
            return {}
        return dict(zip(self.joints.joints, self.joints.stamps_ns.tolist()))

    @property
    def approach_ns(self) -> int:
        """Longest time that a controller needs to the measured position, from wherever it holds the
        joints."""
        return self.follower.joining.approach_ns

    @property
    def doubtful(self) -> str:
        """A sentence if a joint is measured where it cannot be, or at two places at once, else empty."""
        return self.follower.joining.outside or self.follower.contradiction

    @property
    def moving(self) -> str:
        """A sentence if the joints of a robot that gets no commands move, else empty. Joints that are late
        cannot tell."""
        return "" if self.follower.joining.at_rest or self.late(JOINT_STATES) else MOVING

    def late(self, name: str) -> str:
        """A sentence if this input is late, else empty."""
        inputs = self.follower.safety.watchdog.late(self.clock.now_ns())
        return next((str(stream) for stream in inputs if stream.name == name), "")

    def at_rest(self) -> bool:
        """Whether a held robot is at rest, braking included."""
        now_ns, joining = self.clock.now_ns(), self.follower.joining
        until_ns = max(self._brakes_until_ns, self.outputs.rests_ns())
        if self.follower.safety.state is not MotionState.HOLDING or now_ns < until_ns:
            return False
        if joining.lasts(now_ns) or self.outputs.waits:
            return False
        return now_ns >= self._settles_until_ns or joining.at_rest

    def braking(self, end_ns: int) -> None:
        """Stops were sent to the controllers; the robot is not at rest before they end."""
        self._brakes_until_ns = max(self._brakes_until_ns, end_ns)

    def settle(self) -> None:
        """A controller was told to stop in its own way; the robot is not at rest before its joints are, for
        at most SETTLE_S."""
        self._settles_until_ns = self.clock.now_ns() + round(SETTLE_S * 1e9)

    def go_on(self, reason: str, sent: Iterable[Trajectory] | None = None) -> None:
        """Take a reason back when the robot is at rest; motion starts anew from the measured position, with
        chunks that are observed from now on. sent: what controllers were told to do by this node meanwhile;
        None if others drove them."""
        self.follower.begin_anew(self.clock.now_ns())
        for last in sent or ():
            self.follower.joining.begin_after(last)
        if sent is not None:  # the last command is known
            self.outputs.rest()
        else:
            self.outputs.begin()
        self.beginning += 1
        self.holds.resume(reason)
