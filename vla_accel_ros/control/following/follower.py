"""What the trajectory node decides: which trajectory goes out, and when the robot must stop.

Composes the trajectory buffer and the safety state machine with the measured joints. While it runs, each
chunk becomes a trajectory; when an input is late it sends one stop and then nothing until everything is
fresh again. Motion goes on from where it was commanded to be. Measured joints that disagree are never taken
for a new start while it moves: a leap (joint_jumps.py) or a following error is a fault, the robot brakes
along the commanded path and is held until somebody resumes. Where joints are elsewhere after a hold, after a
fault and at the beginning, it waits until they stand and then *joins*: one slow segment to where they are,
within limits wherever the controller's setpoint is, before any chunk is followed. Chunks that make no sense
are refused and are not fresh; chunks of before a leap are void. Cameras are watched by what inference tells
of them; by the stamps of chunks where it tells nothing (a producer of chunks that is not ours).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.following.following_error import FollowingError, usual
from vla_accel_ros.control.following.joint_jumps import LeapWatch
from vla_accel_ros.control.following.plausibility import nonsense
from vla_accel_ros.control.following.watchdog import CHUNK, INFERENCE, Change, Motion, Safety
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.engine.loop import LoopStats
from vla_accel_ros.types import Chunk

JOINT_STATES = "joint_states"
INFERENCE_S = 0.6
"""Inference that has told nothing for this long is late."""
_MOVED_OF_RANGE = 0.05
_PARKED_NS = 50_000_000
_AGES = 512
_STILL_OF_RANGE = 0.01
_STAND_NS = 200_000_000
# Of what joints may be off while they follow: what they are off as they stand.
_SAG = 0.2
_RESTART_NS = 200_000_000
MOVING = "the joints are moving, and not by this node"
BEGINNING = "beginning anew from where the joints are"
JOINING = "going to where the joints are"


class ChunkFollower:
    """Turns chunks and joint states into trajectories to send. One thread at a time; time is given.

    cameras: names under which the watchdog watches the images; a chunk's stamp is the age of its oldest
    image. max_age_s: an older image behind a trajectory is a miss. twist: takes the first six columns of each
    chunk, and the buffer those after them; all are the buffer's when None. following: of the buffer's joints;
    what is usual when None. Joints that it does not watch may be asked to go from end to end at once.

    Attributes for diagnostics: `counts` of what was not sent, beside the buffer's own; `faults`, sentences of
    what `resume` takes back.
    """

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        safety: Safety,
        cameras: tuple[str, ...],
        max_age_s: float,
        twist: TwistBuffer | None = None,
        following: FollowingError | None = None,
    ) -> None:
        self.buffer, self.safety, self._twist = buffer, safety, twist
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, None] = {}
        limits = buffer.limits
        self._range, self._usual = limits.upper - limits.lower, usual(limits.velocity)
        self._following = following or FollowingError.of(limits)
        self._flips = np.isinf(self._following.rad)
        self._leaps = LeapWatch(limits)
        self._cameras, self._max_age_s = cameras, max_age_s
        self._ages: deque[tuple[int, float]] = deque(maxlen=_AGES)  # (sent at, age of the image [s])
        self._sent = self._misses = 0
        self.forget()

    def forget(self) -> None:
        """Start over from the next joint state: at activation, and when the clock has jumped."""
        self._measured: np.ndarray | None = None
        self._parked: np.ndarray | None = None
        self._elsewhere = np.zeros(len(self._range), bool)  # joints that are to be joined whatever they say
        self._stayed = _MOVED_OF_RANGE
        self._felt_ns = 0
        self._leaps.forget()
        self._following.forget()
        self._valid_from_ns: int | None = None
        self._rest_ns = self._joined_ns = self._others_until_ns = 0
        # Where controllers come to rest by what they were sent before; NaN where that is not known.
        self._setpoint = np.full(len(self._range), np.nan)
        self._setpoint_if: np.ndarray | None = None  # only while the joints are measured here
        self._ready = self._begun = self._joined = False
        self._spot: tuple[np.ndarray, int, int] | None = None  # where the joints stand; since: stamp, present
        self._heard_ns = 0  # when the newest joints came
        self._stepped_ns = 0
        self._waiting: Chunk | None = None
        self._version = self._version_ns = 0
        self._newest_ns: int | None = None  # stamp of the newest chunk

    def begin_after(self, last: Trajectory) -> None:
        """Controllers execute this, of all joints or some: begin when it has ended, from there."""
        self._others_until_ns, self._setpoint_if = max(self._others_until_ns, last.end_ns), None
        for name, position in zip(last.joints, last.positions[-1]):
            if name in self.buffer.joints:
                self._setpoint[self.buffer.joints.index(name)] = position

    def begin_at(self, setpoint: np.ndarray) -> None:
        """Controllers rest here, float64 [D], NaN where that is not known."""
        self._setpoint[:] = setpoint

    @property
    def setpoint(self) -> np.ndarray:
        """Where controllers rest or come to rest by what they were sent, float64 [D]; NaN where that is not
        known.
        """
        if self._begun:
            return self.buffer.reference(self._rest_ns)[0]
        if self._setpoint_if is None or self._measured is None:
            return self._setpoint.copy()
        moved = np.abs(self._measured - self._setpoint_if) > _STILL_OF_RANGE * self._range
        return np.where(moved, np.nan, self._setpoint)

    def begin_anew(self, now_ns: int) -> None:
        """Start over from the next joint state, by chunks that are observed from now on: others may have
        moved the robot, with our leave.
        """
        setpoint, measured = self.setpoint, self._measured
        self.forget()
        self._valid_from_ns = now_ns
        if measured is not None:
            self._setpoint[:], self._setpoint_if = setpoint, measured

    def felt(self, position: np.ndarray, stamp_ns: int, now_ns: int) -> str:
        """Take measured joints, float64 [D]; the sentence of a fault that they show, else empty.

        Those of a time to come are late and nothing else: they were under way when the clock was set back,
        and what begins with them would begin then.
        """
        self.safety.watchdog.seen(JOINT_STATES, stamp_ns)
        if self.safety.watchdog.ahead(JOINT_STATES, now_ns):
            return ""
        self._heard_ns = now_ns
        if self._spot is None or (np.abs(position - self._spot[0]) > _STILL_OF_RANGE * self._range).any():
            self._spot = (position, stamp_ns, now_ns)
        if self._measured is None:
            self._settle(position, stamp_ns)
            return ""
        if stamp_ns == self._felt_ns:
            return ""  # the same sample again
        self._felt_ns = stamp_ns
        was_lasting = self._leaps.lasting
        leap = self._leaps.take(position, stamp_ns)
        if not self._begun or self.faults:  # nothing is commanded from here: wherever they stand then
            if self._leaps.lasting:
                self._settle(position, stamp_ns)
            self._measured = position
            return ""
        if leap is not None:
            self.counts["leaps"] += 1
            self._leaps.begin(position, stamp_ns)
            self._measured = position
            name = self.buffer.joints[leap.joint]
            return self._fault(
                f"{name} jumped by {leap.by:+.2f} rad: look at its encoder or driver; ~/resume goes on from "
                "where the joints stand",
                leap.joint,
                stamp_ns,
            )
        if self._leaps.lasting:
            return ""
        if was_lasting:
            self.counts["glitches"] += 1
            self._valid_from_ns = stamp_ns
        self._measured = position
        return self._compare(position, stamp_ns)

    def told(
        self,
        stamps_ns: Mapping[str, int],
        now_ns: int,
        problems: Mapping[str, str] | None = None,
        waiting_for: str = "",
        slow: str = "",
    ) -> None:
        """Take what inference tells of its inputs: the newest stamp of each stream, what is wrong with which,
        why it makes no chunks, or makes them too slowly. From now on it is watched itself."""
        watchdog = self.safety.watchdog
        if not watchdog.watches(INFERENCE):
            watchdog.watch(INFERENCE, INFERENCE_S)
        watchdog.seen(INFERENCE, now_ns)
        for name in self._cameras:
            if name in stamps_ns:
                watchdog.seen(name, stamps_ns[name])
            if problems and problems.get(name):
                watchdog.note(name, problems[name])
        if waiting_for:
            watchdog.note(CHUNK, f"inference waits: {waiting_for}")
        elif slow and not watchdog.noted(CHUNK):  # a refusal says more
            watchdog.note(CHUNK, slow)

    def refused(self, why: str) -> None:
        """A chunk was refused: it is not fresh, and the next stop says why."""
        self.counts["refused"] += 1
        self.safety.watchdog.note(CHUNK, "chunks are refused", f": {why}")

    def follow(
        self, chunk: Chunk, now_ns: int, clock_ns: Callable[[], int] | None = None
    ) -> Trajectory | None:
        """The trajectory to send for a chunk in ROS units; None when it is not to move the robot.

        clock_ns: see TrajectoryBuffer.update. Raises ValueError for a chunk that is wrong or makes no sense.
        """
        try:
            self._check(chunk, now_ns)
        except ValueError as refusal:
            self.refused(str(refusal))
            raise
        void = self._valid_from_ns is not None and chunk.stamp_ns < self._valid_from_ns
        self.counts["before_leap"] += void
        slow, trajectory = self.buffer.counts["slow"], None
        if void or self._leaps.lasting:
            self._waiting = None
        elif self.safety.state is Motion.RUNNING and self._begun:
            trajectory = self._move(chunk, now_ns, clock_ns)
        else:
            self._waiting = chunk
        # Only now: a refused chunk must not keep the robot moving.
        if self.buffer.counts["slow"] == slow:
            self._fresh(chunk)
        return trajectory

    @property
    def joints_stand(self) -> bool:
        """Whether the measured joints have stood for a moment."""
        if self._spot is None:
            return False
        # By their stamps, which may be wrong, and by when they came, which may be all at once.
        _, stamp_ns, came_ns = self._spot
        return min(self._felt_ns - stamp_ns, self._heard_ns - came_ns) >= _STAND_NS

    def step(self, now_ns: int) -> tuple[Change | None, Trajectory | None]:
        """Check the ages; a change of what is allowed, and what to send, if anything."""
        self._stepped_ns = now_ns
        join = self._join(now_ns)
        still = self._twist is None or self._twist.at_rest(now_ns)
        change = self.safety.step(now_ns, at_rest=still and now_ns >= self._rest_ns)
        if any(late.name == JOINT_STATES for late in self.safety.watchdog.late(now_ns)):
            self._stayed = _STILL_OF_RANGE  # nobody saw what became of them meanwhile
        if change is None:
            return None, join
        if change.after is Motion.STOPPING:
            return change, self.stop(now_ns)
        if change.after is Motion.HOLDING:
            # Of joints that fell silent before they were to be at rest nobody knows where they stopped.
            seen = self._felt_ns >= self._rest_ns - _PARKED_NS
            self._parked, self._stayed = self._measured if seen else None, _MOVED_OF_RANGE
            self._joined = False
            self._following.forget()
            return change, join
        waiting, self._waiting = self._waiting, None
        return change, None if waiting is None else self._move(waiting, now_ns)

    def joins(self, now_ns: int) -> bool:
        """Whether it is on the way to where the joints are."""
        return now_ns < self._joined_ns

    def approach_ns(self) -> int:
        """How long a join takes to where the joints are measured, from where they were commanded to be, at
        least as far off as is usual."""
        away = self._usual
        if self._measured is not None:
            away = np.fmax(away, np.abs(self._measured - self.setpoint) + _SAG * self._usual)
        return self.buffer.rest_to_rest_ns(away)

    def resume(self) -> None:
        """Take the faults back: go on from where the joints stand."""
        for fault in self.faults:
            self.safety.resume(fault)
        self.faults.clear()

    def stop(self, now_ns: int) -> Trajectory | None:
        """The stop to send now; None when nothing was ever commanded, or it is at rest already or comes to
        rest by itself soon. The hand stops by itself."""
        self._waiting = None
        if self._twist is not None:
            self._twist.stop()
        if not self._ready or now_ns >= self._rest_ns or now_ns < self._joined_ns:
            return None
        trajectory = self.buffer.stop(now_ns)
        self._rest_ns = trajectory.end_ns
        return trajectory

    def stop_in_new_time(self, now_ns: int, was_ns: int = 0) -> Trajectory | None:
        """The stop to send after the clock has jumped, before starting over. None when the joints were
        commanded to be at rest; the hand is not looked after.

        was_ns: the present in the time before, of which at least the last step is believed: a node that was
        not scheduled meanwhile has controllers that went on.
        """
        was_ns = max(self._stepped_ns, was_ns)
        if not self._begun or was_ns >= self._rest_ns:
            return None
        if was_ns < self._joined_ns:  # on the way, by whatever path: to the same place, from now on
            position, _ = self.buffer.reference(was_ns)
            return self.buffer.go_to(position, self._usual, now_ns)
        return self.buffer.stop(now_ns, was_ns)

    def stats(self, now_ns: int) -> LoopStats:
        """Ages from image stamp to trajectory, as a loop's: p50_s and p99_s over the last 512.

        measured_hz: trajectories in the last second. runs: all of them. misses: those older than max_age_s.
        """
        ages = [age_s for _, age_s in self._ages] or [0.0]
        p50, p99 = np.quantile(ages, (0.5, 0.99))
        recent = sum(sent_ns > now_ns - 1_000_000_000 for sent_ns, _ in self._ages)
        return LoopStats(
            name="image_to_trajectory",
            target_hz=0.0,
            measured_hz=float(recent),
            p50_s=float(p50),
            p99_s=float(p99),
            runs=self._sent,
            idle=0,
            misses=self._misses,
        )

    def _check(self, chunk: Chunk, now_ns: int) -> None:
        """Raises ValueError for a chunk that is wrong, makes no sense, or is older than one before it claims.

        Versions begin anew with a process: a lower one is believed when no higher one has come for a moment.
        """
        joints = chunk if self._twist is None else self._joints_of(chunk)
        self.buffer.check(joints, now_ns)
        if self._twist is not None:
            self._twist.check(chunk)
        why = nonsense(joints.actions, chunk.step_dt_s, self.buffer.joints, self.buffer.limits, self._flips)
        if why:
            raise ValueError(f"chunk {chunk.request_id}: {why}")
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

    def _fresh(self, chunk: Chunk) -> None:
        if self._is_newest(chunk):
            self._newest_ns, watchdog = chunk.stamp_ns, self.safety.watchdog
            for name in (CHUNK, *(() if watchdog.watches(INFERENCE) else self._cameras)):
                watchdog.seen(name, chunk.stamp_ns)

    def _move(
        self, chunk: Chunk, now_ns: int, clock_ns: Callable[[], int] | None = None
    ) -> Trajectory | None:
        """The trajectory of a chunk that may move the robot."""
        if self._twist is None:
            trajectory = self.buffer.update(chunk, now_ns, clock_ns)
            moves = trajectory is not None
        else:
            trajectory = self.buffer.update(self._joints_of(chunk), now_ns, clock_ns)
            moves = self._twist.update(chunk, now_ns) or trajectory is not None
        if moves:
            self._sent += 1
            age_s = (now_ns - chunk.stamp_ns) * 1e-9
            self._ages.append((now_ns, age_s))
            self._misses += age_s > self._max_age_s
        if trajectory is not None:
            self._rest_ns = trajectory.end_ns
        return trajectory

    def _joints_of(self, chunk: Chunk) -> Chunk:
        return replace(chunk, actions=np.asarray(chunk.actions)[:, 6:])

    def _compare(self, position: np.ndarray, stamp_ns: int) -> str:
        """The sentence of a following error, else empty. A robot that is held may be moved by others."""
        if self.safety.state is Motion.HOLDING or not self._begun:
            self._following.forget()
            return ""
        commanded, _ = self.buffer.reference(stamp_ns)
        joint = self._following.take(commanded, position, stamp_ns)
        if joint is None:
            return ""
        self.counts["following_errors"] += 1
        self._following.forget()
        return self._fault(
            f"{self.buffer.joints[joint]} does not follow: commanded {commanded[joint]:.2f}, measured "
            f"{position[joint]:.2f} rad: is its drive on and its way clear? ~/resume goes on from where the "
            "joints stand",
            joint,
            stamp_ns,
        )

    def _fault(self, sentence: str, joint: int, stamp_ns: int) -> str:
        self.faults[sentence] = None
        self.safety.hold(sentence)
        self._elsewhere[joint] = True
        self._valid_from_ns = stamp_ns
        return sentence

    def _settle(self, position: np.ndarray, stamp_ns: int) -> None:
        """Begin with these joints; where something was commanded before, only look at them."""
        self._leaps.begin(position, stamp_ns)
        self._measured, self._felt_ns = position, stamp_ns
        if not self._begun:
            self.buffer.reset(position)
            # What was sent before is executed until a stop, or the next trajectory, comes in its place.
            self._rest_ns, self._ready = max(self._rest_ns, stamp_ns), True

    def _join(self, now_ns: int) -> Trajectory | None:
        """Before it goes on: a way to where it goes on from, which is where the joints are if that is not
        where they were left.

        Wherever a controller's setpoint is, where it was commanded to be or reset to the measured joints (by
        drives that were off and on), it gets there from rest to rest within limits. Nothing of a chunk is
        followed before.
        """
        for reason in (BEGINNING, MOVING):
            self.safety.resume(reason)
        if now_ns < self._joined_ns:
            self.safety.pause = JOINING
            return None
        self.safety.pause = ""
        if now_ns < self._others_until_ns:
            self.safety.hold(MOVING)
            return None
        if self.safety.state is not Motion.HOLDING or not self._ready or self._measured is None:
            if not self._begun:
                self.safety.hold(BEGINNING)
            return None
        moved = self._moved(self._measured)
        if self._joined and not moved.any():
            return None
        self.safety.pause = JOINING
        if any(late.name == JOINT_STATES for late in self.safety.watchdog.late(now_ns)):
            return None
        if self._leaps.lasting or (moved.any() and not self.joints_stand):
            self.safety.hold(MOVING)
            return None
        if not self.safety.clear(now_ns):
            return None
        commanded, _ = self.buffer.reference(self._rest_ns)
        limits = self.buffer.limits
        goal = np.clip(np.where(moved, self._measured, commanded), limits.lower, limits.upper)
        away = np.maximum(np.abs(goal - commanded), np.abs(goal - self._measured))
        if not self._begun:
            away = np.fmax(away, np.abs(goal - self.setpoint))
        away += np.minimum(_SAG * self._usual, away / 10.0)
        join = self.buffer.go_to(goal, np.where(moved, np.maximum(away, self._usual), away), now_ns)
        self.counts["joins"] += bool(moved.any())
        self._rest_ns = self._joined_ns = join.end_ns
        self._begun = self._joined = True
        self._setpoint[:] = np.nan
        self._parked, self._stayed = (
            np.where(moved, self._measured, self._parked_or(self._measured)),
            _MOVED_OF_RANGE,
        )
        self._elsewhere[:] = False
        return join if len(goal) else None

    def _parked_or(self, measured: np.ndarray) -> np.ndarray:
        return measured if self._parked is None else self._parked

    def _moved(self, measured: np.ndarray) -> np.ndarray:
        """Which joints are not where they were left, bool [D]: all at the beginning, and when nobody saw
        where they came to rest.

        What counts is the difference to the measured position when the hold began: a gripper around a block
        never is where it is commanded to be, and must not be opened for that. When joints were silent while
        the hold lasted, less counts as moved.
        """
        if not self._begun or self._parked is None:
            return np.ones(len(self._range), bool)
        return self._elsewhere | (np.abs(measured - self._parked) > self._stayed * self._range)
