"""What the trajectory node decides: which trajectory goes out, and when the robot must stop.

It combines the trajectory buffer, the safety state machine and the measured joints. While running, each chunk
becomes a trajectory. When an input is late, one stop is sent, and then nothing until all inputs are fresh
again. Motion continues from the commanded position. A measured position that disagrees never becomes a new
start while the robot moves: a leap or a following error (joint_faults.py) is a fault, on which the robot
brakes along the commanded path and is held until someone resumes. At the beginning, after a fault, and after
a hold in which the joints moved, they are joined before any chunk is followed (joining.py). Implausible
chunks are refused and do not count as fresh; chunks observed before a leap are void. Cameras are watched by
what inference reports; if it reports nothing (a foreign producer of chunks), by the stamps of chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.plausibility import nonsense
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.following.image_ages import ImageAges
from vla_accel_ros.control.following.joining import Joining
from vla_accel_ros.control.following.joint_faults import FollowingError, LeapWatch
from vla_accel_ros.control.following.watchdog import CHUNK, JOINT_STATES, Change, MotionState, Safety
from vla_accel_ros.control.outputs.outputs import Outputs
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.streaming.loop import LoopStats
from vla_accel_ros.types import Chunk

_RESTART_NS = 200_000_000
_DOUBT_NS = 1_000_000_000


class ChunkFollower:
    """Turns chunks and joint states into trajectories to send. Time is given. Use it from one thread at a
    time.

    max_age_s: a trajectory whose image is older counts as a miss.
    twists: take their columns of each chunk, the first or the last, and the buffer takes the others.
    following: limits of the buffer's joints; None for the usual ones. A joint that it does not watch may be
        asked to go from end to end at once.
    controllers: measured joints are compared with what these are commanded; None for the decided motion.

    Attributes: `joining`, where motion continues from; `awaits_arrival`: the newest chunk waits until what
    was sent before has arrived. For diagnostics: `counts` of what was not sent, beside the buffer's own;
    `faults`, the sentences that `resume` clears.
    """

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        safety: Safety,
        max_age_s: float,
        twists: Sequence[TwistBuffer] = (),
        following: FollowingError | None = None,
        controllers: Outputs | None = None,
    ) -> None:
        self.buffer, self.safety, self._twists = buffer, safety, twists
        starts, ends = [t.columns.start or 0 for t in twists], [t.columns.stop or 0 for t in twists]
        self._joint_columns = slice(sum(ends), min(starts, default=0) or None)
        self._controllers = controllers
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, None] = {}
        self.joining = Joining(buffer, safety, self.counts)
        self._following = following or FollowingError.of(buffer.limits)
        self.awaits_arrival = False
        self._flips = np.isinf(self._following.rad)
        self._leaps = LeapWatch(buffer.limits)
        self._ages = ImageAges(max_age_s)
        self.forget()

    def forget(self) -> None:
        """Start over from the next joint state: at activation, and when the clock has jumped."""
        self.joining.forget()
        self._begin(None)

    def _begin(self, valid_from_ns: int | None) -> None:
        self._leaps.forget()
        self._following.forget()
        self._valid_from_ns = valid_from_ns
        self._stepped_ns = self._yields_until_ns = 0
        self._waiting: Chunk | None = None
        self._version = self._version_ns = 0
        self._newest_ns: int | None = None  # stamp of the newest chunk
        self._stamps_ns = np.zeros(len(self.buffer.joints), np.int64)  # of the newest measured joints

    def begin_anew(self, now_ns: int) -> None:
        """Start over from the next joint state, with chunks that are observed from now on: others may have
        moved the robot, with our permission."""
        self.joining.begin_anew()
        self._begin(now_ns)

    def measured(
        self, position: np.ndarray, stamp_ns: int, now_ns: int, stamps_ns: np.ndarray | None = None
    ) -> str:
        """Take measured joints, float64 [D]; stamp_ns: of the oldest joint of the robot; stamps_ns: of each
        of these, int64 [D], None if all are of stamp_ns. Returns the sentence of a fault that they show, else
        empty.

        Continuous joints are counted on from what is commanded, whatever turn their driver reports. Joints
        with a stamp in the future only count as late: they were sent before the clock was set back, and
        anything that begins with them would begin at that future time.
        """
        self.safety.watchdog.seen(JOINT_STATES, stamp_ns)
        if self.safety.watchdog.ahead(JOINT_STATES, now_ns):
            return ""
        stamps = np.full(len(position), stamp_ns) if stamps_ns is None else stamps_ns
        newest_ns = int(stamps.max(initial=stamp_ns))
        joining = self.joining
        position = self._counted(position, stamp_ns)
        joining.came(position, stamp_ns, now_ns)
        if joining.measured is None:
            self._settle(position, stamp_ns, stamps)
            return ""
        if stamp_ns == joining.stamp_ns and (stamps == self._stamps_ns).all():
            return ""  # the same samples again
        joining.stamp_ns, self._stamps_ns = stamp_ns, stamps
        was_lasting = self._leaps.lasting
        leap = self._leaps.take(position, stamps)
        if not joining.begun or self.faults:  # nothing is commanded: start from wherever they are later
            if self._leaps.lasting:
                self._settle(position, stamp_ns, stamps)
            joining.measured = position
            return ""
        if leap is not None:
            self.counts["leaps"] += 1
            self._leaps.begin(position, stamps)
            joining.measured = position
            name = self.buffer.joints[leap.joint]
            return self._fault(
                f"{name} jumped by {leap.by:+.2f} rad: look at its encoder or driver; ~/resume goes on from "
                "where the joints stand",
                leap.joint,
                newest_ns,
            )
        if self._leaps.lasting:
            return ""
        if was_lasting:
            self.counts["glitches"] += 1
            self._valid_from_ns = newest_ns
        joining.measured = position
        return self._compare(position, stamps)

    def _counted(self, position: np.ndarray, stamp_ns: int) -> np.ndarray:
        """Measured joints, those that turn without end in the turn of what is commanded or measured."""
        limits, last = self.buffer.limits, self.joining.measured
        if self.joining.begun and limits.continuous.any():
            last = self.buffer.reference(stamp_ns)[0]
        return position if last is None else limits.near(position, last)

    def believes(self, stamp_ns: int) -> bool:
        """Whether the joints of this stamp, the newest that were measured, are where the robot is."""
        return self.joining.stamp_ns == stamp_ns and not self._leaps.lasting and not self.faults

    @property
    def contradiction(self) -> str:
        """A sentence if a joint was measured at two places within a second, else empty: nobody knows where it
        is."""
        last, newest_ns = self._leaps.last, self.joining.stamp_ns
        if last is None or newest_ns - last[1] >= _DOUBT_NS:
            return ""
        leap, name = last[0], self.buffer.joints[last[0].joint]
        return (
            f"{name} is measured at two places within a second, {leap.by:+.2f} rad apart: look at its "
            "encoder, and for a second publisher of joint states"
        )

    def refused(self, why: str) -> None:
        """A chunk was refused: it does not count as fresh, and the next stop gives this reason."""
        self.counts["refused"] += 1
        self.safety.watchdog.note(CHUNK, "chunks are refused", f": {why}")

    def follow(
        self, chunk: Chunk, now_ns: int, clock_ns: Callable[[], int] | None = None
    ) -> Trajectory | None:
        """Returns the trajectory to send for a chunk in ROS units; None if the chunk does not move the robot.

        clock_ns: see TrajectoryBuffer.update. Raises ValueError for a chunk that is invalid or implausible.
        """
        try:
            self._check(chunk, now_ns)
        except ValueError as refusal:
            self.refused(str(refusal))
            raise
        void = self._is_void(chunk)
        self.counts["before_leap"] += void
        slow, trajectory = self.buffer.counts["slow"], None
        if void or self._leaps.lasting or self.safety.watchdog.human:
            self._waiting = None
        elif self.runs:
            self._waiting = None
            try:
                trajectory = self._move(chunk, now_ns, clock_ns)
            except ValueError as refusal:  # it would lead a hand beyond its limits
                self.refused(str(refusal))
                raise
        else:
            self._waiting = chunk
        # Only here: a refused chunk must not keep the robot moving.
        if self.buffer.counts["slow"] == slow and self._is_newest(chunk):
            self._newest_ns = chunk.stamp_ns
            self.safety.watchdog.seen_chunk(chunk.stamp_ns, now_ns)
        return trajectory

    def steer(
        self, positions: np.ndarray, step_ns: int, until_ns: int, now_ns: int, twist: np.ndarray | None
    ) -> Trajectory:
        """Returns the trajectory to send for what a person commands; see TrajectoryBuffer.steer. twist: of a
        hand that twists move, float64 [6]; None without one."""
        if twist is not None:
            self._twists[0].steer(twist, now_ns, until_ns)
        trajectory = self.buffer.steer(positions, step_ns, until_ns, now_ns)
        self.joining.rest_ns = trajectory.end_ns
        return trajectory

    def hand_to(self, human: tuple[str, ...], now_ns: int) -> None:
        """A person commands the arm from now on by these inputs or, if there are none, chunks do that are
        observed from now on."""
        self.safety.watchdog.human, self._waiting = human, None
        if human:
            self._stop_twists()
        self._valid_from_ns = max(now_ns, self._valid_from_ns or now_ns)

    def look(self, now_ns: int) -> str:
        """Take what the controllers report; called before `step`. Returns the sentence of a fault that they
        show, else empty."""
        if self._controllers is not None:
            self.joining.told(self._controllers.reference())
            self.joining.rests(self._controllers.rests_ns())
            self.joining.waits = self._controllers.waits
            if reason := self._controllers.poll_refusal():
                self.joining.mistrust(slice(None))
                words = (
                    f"on the way to where it is commanded, {reason}; ~/resume goes on from where it stands"
                )
                return self._fault(words, slice(None), now_ns) if self.runs else ""
        return ""

    def adapt(self) -> None:
        """Adapt to how long messages take; called when what `step` returned has been sent."""
        if self._controllers is not None:
            self.buffer.lead_s = self._controllers.lead_s()
            self.awaits_arrival = self._controllers.awaits_arrival

    def step(self, now_ns: int) -> tuple[Change | None, Trajectory | None]:
        """Check the ages. Returns the change of what is allowed, if any, and the trajectory to send, if
        any."""
        self._stepped_ns = now_ns
        join = self.joining.step(now_ns, self._leaps.lasting)
        still = all(twist.at_rest(now_ns) for twist in self._twists)
        change = self.safety.step(now_ns, at_rest=still and now_ns >= self.joining.rest_ns)
        if self.safety.watchdog.is_late(JOINT_STATES, now_ns):
            self.joining.unwatched()
        if change is None:
            return None, self._move_waiting(now_ns) if join is None else join
        if change.after is MotionState.STOPPING:
            return change, self.stop(now_ns)
        if change.after is MotionState.HOLDING:
            self.joining.leave()
            self._following.forget()
            return change, join
        return change, self._move_waiting(now_ns)

    def resume(self) -> None:
        """Clear the faults: continue from where the joints are."""
        for fault in self.faults:
            self.safety.resume(fault)
        self.faults.clear()

    def stop(self, now_ns: int) -> Trajectory | None:
        """Returns the stop to send now. None if nothing was ever commanded, or the joints are at rest or soon
        come to rest by themselves. A hand and a base stop by themselves."""
        self._waiting = None
        self._stop_twists()
        joining = self.joining
        if not joining.ready or now_ns >= joining.rest_ns or joining.lasts(now_ns):
            return None
        # the reaction to a contact already ends at rest, and knows better where
        if now_ns < self._yields_until_ns:
            return None
        trajectory = self.buffer.stop(now_ns)
        joining.rest_ns = trajectory.end_ns
        return trajectory

    def _stop_twists(self) -> None:
        for twist in self._twists:
            twist.stop()

    def yields(self, path: Trajectory, now_ns: int, commit_ns: int) -> None:
        """This path was sent because of a contact (control/force): motion continues from its end, with chunks
        that are observed from now on."""
        self._waiting = None
        self.buffer.adopt(path, now_ns, commit_ns)
        self.joining.rest_ns = self._yields_until_ns = path.end_ns
        self._valid_from_ns = now_ns

    def stop_in_new_time(self, now_ns: int, was_ns: int = 0) -> Trajectory | None:
        """Returns the stop to send after the clock has jumped, before starting over. None if the joints were
        commanded to be at rest. It does not stop the hand.

        was_ns: the present in the old time. It is at least the time of the last step: controllers went on
        while this node was not scheduled.
        """
        was_ns = max(self._stepped_ns, was_ns)
        if not self.joining.begun or was_ns >= self.joining.rest_ns:
            return None
        if self.joining.lasts(was_ns):  # a join, by whatever path: go to the same place from now on
            position, _ = self.buffer.reference(was_ns)
            return self.buffer.go_to(position, self.joining.usual, now_ns)
        return self.buffer.stop(now_ns, was_ns)

    def stats(self, now_ns: int) -> LoopStats:
        """Ages from image stamp to trajectory; see ImageAges."""
        return self._ages.stats(now_ns)

    def _check(self, chunk: Chunk, now_ns: int) -> None:
        """Raises ValueError for a chunk that is invalid, implausible, or of a lower version than one before.

        Versions start again with a new process, so a lower one is accepted after 0.2 s without a higher one.
        """
        joints = self._joints_of(chunk)
        self.buffer.check(joints, now_ns)
        for twist in self._twists:
            twist.check(chunk)
        actions = self.buffer.counted(joints)
        refusal = nonsense(actions, chunk.step_dt_s, self.buffer.joints, self.buffer.limits, self._flips)
        if refusal:
            raise ValueError(f"chunk {chunk.request_id}: {refusal}")
        if self.joining.begun:
            reference, _ = self.buffer.reference(now_ns)
            self.buffer.guard.check_positions(self.buffer.joints, np.vstack([reference, actions]))
        if not self._is_newest(chunk):
            return
        if chunk.kv_version < self._version and 0 <= now_ns - self._version_ns < _RESTART_NS:
            raise ValueError(
                f"chunk {chunk.request_id} has version {chunk.kv_version}, after {self._version}: is there a "
                "second publisher of chunks?"
            )
        self._version, self._version_ns = chunk.kv_version, now_ns

    def _is_newest(self, chunk: Chunk) -> bool:
        return self._newest_ns is None or chunk.stamp_ns >= self._newest_ns

    def _move(
        self, chunk: Chunk, now_ns: int, clock_ns: Callable[[], int] | None = None
    ) -> Trajectory | None:
        """The trajectory for a chunk that may move the robot."""
        trajectory = self.buffer.update(self._joints_of(chunk), now_ns, clock_ns)
        if any([trajectory is not None, *(twist.update(chunk, now_ns) for twist in self._twists)]):
            self._ages.sent(chunk.stamp_ns, now_ns)
        if trajectory is not None:
            self.joining.rest_ns = trajectory.end_ns
        return trajectory

    def _is_void(self, chunk: Chunk) -> bool:
        return self._valid_from_ns is not None and chunk.stamp_ns < self._valid_from_ns

    @property
    def runs(self) -> bool:
        """Whether what is decided now moves the robot."""
        return self.safety.state is MotionState.RUNNING and self.joining.begun and not self.awaits_arrival

    def _move_waiting(self, now_ns: int) -> Trajectory | None:
        """The trajectory for the chunk that has waited, if it need not any longer."""
        if self._waiting is None or not self.runs:
            return None
        waiting, self._waiting = self._waiting, None
        if self._is_void(waiting) or self._leaps.lasting:
            return None
        try:
            return self._move(waiting, now_ns)
        except ValueError as refusal:  # the clock was set back a little since the chunk came
            self.refused(str(refusal))
            return None

    def _joints_of(self, chunk: Chunk) -> Chunk:
        if not self._twists:
            return chunk
        return replace(chunk, actions=np.asarray(chunk.actions)[..., self._joint_columns])

    def _compare(self, position: np.ndarray, stamps: np.ndarray) -> str:
        """Returns the sentence of a following error, else empty. Others may move a robot that is held."""
        if self.safety.state is MotionState.HOLDING or not self.joining.begun:
            self._following.forget()
            return ""
        commanded = np.empty_like(position)
        for stamp_ns in np.unique(stamps).tolist():
            its = stamps == stamp_ns
            commanded[its] = self._commanded(stamp_ns)[its]
        joint = self._following.take(commanded, position, stamps)
        if joint is None:
            return ""
        self.counts["following_errors"] += 1
        name = self.buffer.joints[joint]
        words = self._following.sentence(joint, name, commanded[joint], position[joint])
        self._following.forget()
        return self._fault(f"{words} ~/resume goes on from where the joints stand", joint, int(stamps.max()))

    def _commanded(self, t_ns: int) -> np.ndarray:
        """What the controllers were commanded at a time, float64 [D]."""
        commanded, _ = self.buffer.reference(t_ns)
        if self._controllers is None:
            return commanded
        executed = self._controllers.commanded(t_ns)
        return np.where(np.isfinite(executed), executed, commanded)

    def _fault(self, sentence: str, joint: int | slice, stamp_ns: int) -> str:
        self.faults[sentence] = None
        self.safety.hold(sentence)
        self.joining.mistrust(joint)
        self._valid_from_ns = stamp_ns
        return sentence

    def _settle(self, position: np.ndarray, stamp_ns: int, stamps: np.ndarray) -> None:
        self._stamps_ns = stamps
        self._leaps.begin(position, stamps)
        self.joining.settle(position, stamp_ns)
