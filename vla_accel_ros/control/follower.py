"""What the trajectory node decides: which trajectory goes out, and when the robot must stop.

Composes the trajectory buffer and the safety state machine with the measured joints. While it runs, each
chunk becomes a trajectory; when an input is late it sends one stop and then nothing until everything is
fresh again. The commanded path, not the measured one, is what motion continues from, unless the robot was
moved by others: measured joints that leap further than any motor could drive them, and stay there, mean
another start (a simulator's reset, a homed encoder); a single wrong sample does not. Chunks that were
observed before a leap are void. At the beginning nothing is known of what the controllers still execute (of a
process before this one, or of the time before a clock jump): it waits until the joints stand.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.buffer import TrajectoryBuffer
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.control.twist import TwistBuffer
from vla_accel_ros.control.watchdog import Change, Motion, Safety
from vla_accel_ros.engine.loop import LoopStats
from vla_accel_ros.engine.types import Chunk

_LEAP_OF_RANGE = 0.02
_LEAP_SAMPLES = 5
_MOVED_OF_RANGE = 0.05
_PARKED_NS = 50_000_000
_AGES = 512
_STILL_OF_RANGE = 0.01
_STAND_NS = 200_000_000
MOVING = "the joints are moving, and not by this node"


class ChunkFollower:
    """Turns chunks and joint states into trajectories to send. One thread at a time; time is given.

    cameras: names under which the watchdog watches the images; a chunk's stamp is the age of its oldest
    image.

    max_age_s: an older image behind a trajectory is a miss. twist: takes the first six columns of each chunk,
    and the buffer those after them; all are the buffer's when None.

    Attributes for diagnostics: `counts` of what was not sent, beside the buffer's own.
    """

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        safety: Safety,
        cameras: tuple[str, ...],
        max_age_s: float,
        twist: TwistBuffer | None = None,
    ) -> None:
        self.buffer, self.safety, self._twist = buffer, safety, twist
        self.counts: Counter[str] = Counter()
        limits = buffer.limits
        self._range, self._speed = limits.upper - limits.lower, limits.velocity
        self._cameras, self._max_age_s = cameras, max_age_s
        self._ages: deque[tuple[int, float]] = deque(maxlen=_AGES)  # (sent at, age of the image [s])
        self._sent = self._misses = 0
        self.forget()

    def forget(self) -> None:
        """Start over from the next joint state: at activation, and when the clock has jumped."""
        self._measured: np.ndarray | None = None
        self._parked: np.ndarray | None = None
        self._stayed = _MOVED_OF_RANGE
        self._felt_ns = 0
        self._leaping = 0
        self._valid_from_ns: int | None = None
        self._rest_ns = 0
        self._ready = self._begun = False
        self._spot: tuple[np.ndarray, int] | None = None  # (where the joints stand, since when)
        self._stepped_ns = 0

    def begin_anew(self, now_ns: int) -> None:
        """Start over from the next joint state, by chunks that are observed from now on: others have moved
        the robot, with our leave.
        """
        self.forget()
        self._valid_from_ns = now_ns

    def felt(self, position: np.ndarray, stamp_ns: int, now_ns: int) -> bool:
        """Take measured joints, float64 [D]; True when they say that the robot was moved by others.

        Those of a time to come are late and nothing else: they were under way when the clock was set back,
        and what begins with them would begin then.
        """
        self.safety.watchdog.seen("joint_states", stamp_ns)
        if self.safety.watchdog.ahead("joint_states", now_ns):
            return False
        if self._spot is None or (np.abs(position - self._spot[0]) > _STILL_OF_RANGE * self._range).any():
            self._spot = (position, stamp_ns)
        if self._measured is None:
            self._settle(position, stamp_ns)
            return False
        if stamp_ns == self._felt_ns:
            return False  # the same sample again
        elapsed_s = max((stamp_ns - self._felt_ns) * 1e-9, 1e-3)
        self._felt_ns = stamp_ns
        reachable = 2.0 * self._speed * elapsed_s + _LEAP_OF_RANGE * self._range
        if (np.abs(position - self._measured) <= reachable).all():
            self._measured, self._leaping = position, 0
            return False
        self._leaping += 1
        if self._leaping < _LEAP_SAMPLES:
            return False
        self.counts["leaps"] += 1
        self._valid_from_ns = stamp_ns
        self._settle(position, stamp_ns)
        return True

    def follow(self, chunk: Chunk, now_ns: int) -> Trajectory | None:
        """The trajectory to send for a chunk in ROS units; None when it is not to move the robot.

        Raises ValueError for a chunk that is wrong; see TrajectoryBuffer.update.
        """
        void = self._valid_from_ns is not None and chunk.stamp_ns < self._valid_from_ns
        self.counts["before_leap"] += void
        trajectory, moves = None, False
        if self.safety.state is Motion.RUNNING and self._ready and not (self._leaping or void):
            trajectory, moves = self._take(chunk, now_ns)
        # Only now: a refused chunk must not keep the robot moving.
        for name in ("chunk", *self._cameras):
            self.safety.watchdog.seen(name, chunk.stamp_ns)
        if not moves:
            return None
        self._sent, self._begun = self._sent + 1, True
        age_s = (now_ns - chunk.stamp_ns) * 1e-9
        self._ages.append((now_ns, age_s))
        self._misses += age_s > self._max_age_s
        if trajectory is not None:
            self._rest_ns = trajectory.end_ns
        return trajectory

    @property
    def joints_stand(self) -> bool:
        """Whether the measured joints have stood for a moment."""
        return self._spot is not None and self._felt_ns - self._spot[1] >= _STAND_NS

    def step(self, now_ns: int) -> tuple[Change | None, Trajectory | None]:
        """Check the ages; a change of what is allowed, and the stop to send when there is one."""
        self._stepped_ns = now_ns
        if self._stands():
            self.safety.resume(MOVING)
        else:
            self.safety.hold(MOVING)
        still = self._twist is None or self._twist.at_rest(now_ns)
        change = self.safety.step(now_ns, at_rest=still and now_ns >= self._rest_ns)
        if any(late.name == "joint_states" for late in self.safety.watchdog.late(now_ns)):
            self._stayed = _STILL_OF_RANGE  # nobody saw what became of them meanwhile
        if change is None:
            return None, None
        if change.after is Motion.STOPPING:
            return change, self.stop(now_ns)
        if change.after is Motion.HOLDING:
            # Of joints that fell silent before they were to be at rest nobody knows where they stopped.
            seen = self._felt_ns >= self._rest_ns - _PARKED_NS
            self._parked, self._stayed = self._measured if seen else None, _MOVED_OF_RANGE
        if change.after is Motion.RUNNING:
            self._resume()
        return change, None

    def stop(self, now_ns: int) -> Trajectory | None:
        """The stop to send now; None when nothing was ever commanded or it is at rest already. The hand stops
        by itself."""
        if self._twist is not None:
            self._twist.stop()
        if not self._ready or now_ns >= self._rest_ns:
            return None
        trajectory = self.buffer.stop(now_ns)
        self._rest_ns = trajectory.end_ns
        return trajectory

    def stop_in_new_time(self, now_ns: int) -> Trajectory | None:
        """The stop to send after the clock has jumped, before starting over: it brakes from where the joints
        were commanded to be at the last step. None when they were at rest; the hand is not looked after."""
        was_ns = self._stepped_ns
        if not self._ready or was_ns >= self._rest_ns:
            return None
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

    def _take(self, chunk: Chunk, now_ns: int) -> tuple[Trajectory | None, bool]:
        """The trajectory of a chunk, and whether it moves anything."""
        if self._twist is None:
            trajectory = self.buffer.update(chunk, now_ns)
            return trajectory, trajectory is not None
        joints = replace(chunk, actions=np.asarray(chunk.actions)[:, 6:])
        trajectory = self.buffer.update(joints, now_ns)
        return trajectory, self._twist.update(chunk, now_ns) or trajectory is not None

    def _settle(self, position: np.ndarray, stamp_ns: int) -> None:
        self.buffer.reset(position)
        self._measured, self._felt_ns, self._leaping = position, stamp_ns, 0
        # What was sent before is executed until a stop, or the next trajectory, comes in its place.
        self._rest_ns, self._ready = max(self._rest_ns, stamp_ns), True

    def _stands(self) -> bool:
        """Whether it may begin: the joints have stood for a moment, or are moved by this."""
        return self._begun or self._spot is None or self.joints_stand

    def _resume(self) -> None:
        """Go on from the commanded position, and from the measured one in joints that moved while held.

        At the beginning, and when joints were silent as the hold began, from the measured one; when they were
        silent while it lasted, less counts as moved.
        What counts is the difference to the measured position when the hold began: a gripper around a block
        never is where it is commanded to be, and must not be opened for that.
        """
        if self._measured is None:
            return
        if not self._begun or self._parked is None:
            self.buffer.reset(self._measured)
            return
        moved = np.abs(self._measured - self._parked) > self._stayed * self._range
        if moved.any():
            self.counts["moved_while_held"] += 1
            commanded, _ = self.buffer.reference(self._rest_ns)
            self.buffer.reset(np.where(moved, self._measured, commanded))
