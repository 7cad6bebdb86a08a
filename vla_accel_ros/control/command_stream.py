"""A trajectory as a stream of positions or velocities, for a controller that executes each command at once.

A forward_command_controller does not interpolate, limit or time out, so all of that is here. Each tick gives
the commanded path at its own time, exactly, as long as ticks are in time and each path continues the previous
one; the path itself is within limits. Otherwise (a late tick, a path that begins elsewhere, a clock that was
set) the joints are led back to the path within limits, by steps no larger than a punctual tick could make.
After a pause in which the robot stopped, they start from rest. A clock that is never set measures the time
between two ticks. Simulated time may go on in steps that are longer than a period; such a tick is not late. A
path that ends in motion is braked after its end. Nothing is commanded before the first trajectory; its end is
commanded until the next one comes.

MoveIt Servo takes velocities and integrates them from the robot's present position. What is lost on the way
(a late message, a slowdown near a singularity) would stay lost, so velocities alone drift off the path. A
correction therefore pulls the measured joints to the commanded ones: proportional to the distance, and at
most half of full speed. The sum changes within the acceleration limits, whatever the correction.

A sample says where the joints were at its stamp, or up to DELAY_S before, and the commands since then are yet
to show. So it is compared with where the velocities had led to by then. What a delay explains is no distance,
and a joint whose samples stand still although it should move is not pulled. Samples may be wrong in any other
way: the velocities therefore never lead out of the range, counted from where the joints last stood.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from itertools import islice

import numpy as np

from vla_accel_ros.control.following.joint_faults import DELAY_S
from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.limits.limiter import step_towards
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint

# After a longer pause between two ticks, the robot has stopped at the last commanded position.
STOOD_S = 0.1
# A path that continues the previous one differs from it by rounding only.
_ROUNDING = 1e-6
# Steps of simulated time of which the shortest counts: a lost /clock makes a longer one.
_STEPS = 8
# Two clocks that are read one after the other may differ by this much.
_SET_NS = 500_000
_FRESH_NS = 200_000_000
_PAST_S = 0.3
_PULL = 0.5
_DELAY_NS = round(DELAY_S * 1e9)
_WAY_NS = _FRESH_NS + _DELAY_NS
# A joint stands still while its samples differ by no more than this share of its range, and should not when
# it was commanded to move so many times further.
_STILL_OF_RANGE, _STANDING = 0.002, 5.0
_STAND_NS = 200_000_000


class Ticks:
    """How long after another a tick is late: after two periods or, in simulated time, after two steps of
    /clock if they are longer."""

    def __init__(self, period_s: float) -> None:
        self._period_s, self._clock_ns = period_s, 0
        self._steps_ns = deque[int](maxlen=_STEPS)
        self.longest_s = 2.0 * period_s

    def at(self, now_ns: int) -> None:
        """Take the simulated time of a tick; often it is that of the tick before."""
        step_ns, self._clock_ns = now_ns - self._clock_ns, now_ns
        if step_ns > 0:
            self._steps_ns.append(step_ns)
        if len(self._steps_ns) == _STEPS:
            self.longest_s = max(2.0 * self._period_s, min(2e-9 * min(self._steps_ns), STOOD_S))


class CommandStream:
    """The positions to command to some joints at a rate. Time is given. Use it from one thread at a time.

    limits: of these joints. period_s: between two ticks; see Ticks.
    steady_ns, in some methods, is the present by a clock that is never set; None if now_ns comes from such a
    clock, or is simulated time, which the motion follows.

    Attributes for diagnostics: `counts` (late: late ticks; joined: trajectories that did not continue the
    previous one).
    """

    def __init__(self, joints: tuple[str, ...], limits: JointLimits, period_s: float) -> None:
        if len(limits.lower) != len(joints):
            raise ValueError(
                f"there are limits for {len(limits.lower)} joints, not {len(joints)}: give one per joint"
            )
        self.joints, self.counts, self._refusal = tuple(joints), Counter[str](), ""
        self._limits, self._ticks = limits, Ticks(period_s)
        self._past = deque[TrajectoryPoint](maxlen=math.ceil(_PAST_S / period_s) + 1)
        self.forget()

    @property
    def longest_s(self) -> float:
        """How long after another a tick is late."""
        return self._ticks.longest_s

    def forget(self) -> None:
        """Command nothing until the next trajectory, and start from its first state."""
        self._past.clear()
        self._path: Trajectory | None = None
        self._state: TrajectoryPoint | None = None
        self._steady_ns: int | None = None
        self._on_path = np.zeros(len(self.joints), bool)

    def follow(self, trajectory: Trajectory, now_ns: int, here: np.ndarray | None = None) -> None:
        """Follow this trajectory, over these joints and maybe others, in place of the previous one.

        here: measured position of the joints, float64 [D]. The first trajectory begins there. A joint that is
        measured outside its range cannot be commanded there; it is led from there to the trajectory.
        """
        path = _ended(trajectory.select(self.joints), self._limits)
        position, velocity = path.sample(now_ns)
        if self._state is None or self._path is None:
            self._on_path[:] = True
            if here is not None:
                out = np.where(position >= self._limits.upper, here > position, False)
                out |= np.where(position <= self._limits.lower, here < position, False)
                position, self._on_path = np.where(out, here, position), ~out
            self._state = TrajectoryPoint(now_ns, position, velocity)
        else:
            old_position, old_velocity = self._path.sample(now_ns)
            goes_on = (np.abs(position - old_position) <= _ROUNDING) & (
                np.abs(velocity - old_velocity) <= _ROUNDING
            )
            self.counts["joined"] += not goes_on.all()
            self._on_path &= goes_on
        self._path = path

    def stop(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Brake from the last command, because the path's times have lost their meaning, or it takes too
        long."""
        if self._state is None:
            return
        if steady_ns is not None and self._steady_ns is not None:
            self._brake(now_ns, self._passed_ns(now_ns, steady_ns))
        else:  # a greater difference is that of a clock which was set
            passed_ns = now_ns - self._state.stamp_ns
            self._brake(now_ns, passed_ns if 0 <= passed_ns * 1e-9 <= self.longest_s else 0)

    def tick(self, now_ns: int, steady_ns: int | None = None) -> TrajectoryPoint | None:
        """Returns the state to command now; None before the first trajectory."""
        if steady_ns is None:
            self._ticks.at(now_ns)
        if self._state is None or self._path is None:
            return None
        passed_ns = self._passed_ns(now_ns, steady_ns)
        if (self._state.stamp_ns + passed_ns - now_ns) * 1e-9 > self.longest_s:
            self._brake(now_ns, passed_ns)  # the clock was set back since the last tick
        state, path, elapsed_s = self._state, self._path, passed_ns * 1e-9
        if elapsed_s <= 0.0:  # the same instant again, or a clock that was set back a little
            return state
        self._steady_ns = steady_ns
        is_late = elapsed_s > self.longest_s
        self.counts["late"] += is_late
        if is_late or abs(state.stamp_ns + passed_ns - now_ns) > _SET_NS:
            # a path that ended before both times is at rest: nothing to be late for
            self._on_path &= path.end_ns <= min(state.stamp_ns, now_ns)
        position, velocity = path.sample(now_ns)
        if not self._on_path.all():
            step_s = min(elapsed_s, self.longest_s)
            moving = np.zeros_like(position)
            if elapsed_s <= STOOD_S and state.velocity is not None:
                moving = state.velocity
            led = self._towards(state.position, moving, position, velocity, step_s)
            position = np.where(self._on_path, position, led[0])
            velocity = np.where(self._on_path, velocity, led[1])
            self._on_path |= led[2]
        self._state = TrajectoryPoint(now_ns, position, velocity)
        self._past.append(self._state)
        return self._state

    def poll_refusal(self) -> str:
        """See Output.poll_refusal."""
        reason, self._refusal = self._refusal, ""
        return reason

    def _towards(
        self, p: np.ndarray, v: np.ndarray, goal_p: np.ndarray, goal_v: np.ndarray, step_s: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """step_towards, all joints in step if they move a hand."""
        led = step_towards(p, v, goal_p, goal_v, step_s, self._limits)
        guard = self._limits.guard
        if guard is None:
            return led
        self._on_path[:] = False
        try:
            slowed = guard.step((p, v), *led[:2], step_s)
        except ValueError as refusal:
            self._refusal = str(refusal)
            state = TrajectoryPoint(0, p, v)
            position, velocity = brake(self.joints, state, self._limits).sample(round(step_s * 1e9))
            return position, velocity, self._on_path
        return led if slowed is None else (*slowed, self._on_path)

    def commanded(self, t_ns: int) -> np.ndarray | None:
        """The last command at or before a time, float64 [D]. After a late tick this differs from the path.
        None before the first command, and for times long ago."""
        positions = (state.position for state in reversed(self._past) if state.stamp_ns <= t_ns)
        return next(positions, None)

    def _passed_ns(self, now_ns: int, steady_ns: int | None) -> int:
        """Time since the last tick. Without a steady clock, a clock set far back counts as one tick."""
        assert self._state is not None
        if steady_ns is not None and self._steady_ns is not None:
            return steady_ns - self._steady_ns
        passed_ns = now_ns - self._state.stamp_ns
        return passed_ns if passed_ns * -1e-9 <= self.longest_s else round(self.longest_s / 2 * 1e9)

    def _brake(self, now_ns: int, passed_ns: int) -> None:
        """Brake as if the last tick had been passed_ns ago."""
        assert self._state is not None
        last_ns = now_ns - min(passed_ns, round(self.longest_s * 1e9))
        self._state = TrajectoryPoint(last_ns, self._state.position, self._state.velocity)
        self._path = brake(self.joints, self._state, self._limits)
        self._on_path[:] = True

    def reference(self, t_ns: int) -> np.ndarray:
        """Position of the path at a time, float64 [D], once there is one."""
        assert self._path is not None
        return self._path.sample(t_ns)[0]

    def at_rest(self, now_ns: int) -> bool:
        """Whether no joint moves any more; also before the first trajectory."""
        return self._path is None or bool(self._on_path.all() and now_ns >= self._path.end_ns)


class JogStream:
    """The velocities to command to some joints at a rate. Time is given. Use it from one thread at a time.

    limits: of these joints. period_s: between two ticks. gain: of the pull to the path [1/s]; 0 lets it
    drift.

    Attributes for diagnostics: `counts` (bounded: ticks at which a joint was kept from leaving its range);
    `standing`, bool [D], joints whose samples stand still although they should move.
    """

    def __init__(self, joints: tuple[str, ...], limits: JointLimits, period_s: float, gain: float) -> None:
        self.path, self.counts = CommandStream(joints, limits, period_s), Counter[str]()
        self._limits, self._gain = limits, gain
        self._still = _STILL_OF_RANGE * limits.span
        self.forget()

    def forget(self) -> None:
        """Command nothing until the next trajectory."""
        self.path.forget()
        self._velocity = np.zeros(len(self.path.joints))
        self._reached: np.ndarray | None = None  # where the commanded velocities lead to by now
        self._tick_ns: int | None = None
        self._restart(0)

    def _restart(self, now_ns: int) -> None:
        """Forget the samples, and where the velocities led to before."""
        self._way = deque[tuple[int, np.ndarray]]()  # what _reached was, by time
        self._sample: tuple[np.ndarray, np.ndarray] | None = None
        self._taken: np.ndarray | None = None  # stamps of the sample that was compared last
        # Least and greatest distance of the joints from _reached.
        self._off = np.zeros((2, len(self.path.joints)))
        # Where samples stand, since which stamps, and from where to where the velocities have led since then.
        self._spot: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None
        self.standing = np.zeros(len(self.path.joints), bool)
        self._moved_ns, self._pulling = now_ns, True

    def measured(self, position: np.ndarray | None, stamps_ns: int | np.ndarray) -> None:
        """Take measured joints, float64 [D], None if they are not believed, and the stamp of each, int64 [D],
        or of all. The pull ends when the oldest of the newest is 0.2 s old."""
        if position is None or not len(position):
            self._sample = None
        else:
            self._sample = position, np.broadcast_to(stamps_ns, position.shape)

    def follow(self, trajectory: Trajectory, now_ns: int) -> None:
        """Follow this trajectory, over these joints and maybe others, in place of the previous one. Joints
        that have stood since `rest` are where they are measured."""
        self.path.follow(trajectory, now_ns)
        sample = self._sample if self._is_fresh(now_ns) else None
        if self._reached is None:
            self._reached = self.path.reference(now_ns) if sample is None else sample[0].copy()
        elif sample is not None and not self._pulling and self._stand(int(sample[1].min())):
            self._restart(self._moved_ns)
            self._sample, self._reached = sample, sample[0].copy()
        self._pulling = True

    def stop(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Brake from the last command, because the path's times have lost their meaning; end the pull."""
        self._restart(now_ns)
        self._pulling = False
        self.path.stop(now_ns, steady_ns)
        if steady_ns is None:
            self._tick_ns = now_ns

    def rest(self) -> None:
        """End the pull until the next trajectory: the joints come to rest when the present one does."""
        self._pulling = False

    def tick(self, now_ns: int, steady_ns: int | None = None) -> np.ndarray | None:
        """Velocities, float64 [D], to command now; None before the first trajectory. steady_ns: see
        CommandStream."""
        state = self.path.tick(now_ns, steady_ns)
        if state is None or state.velocity is None or self._reached is None:
            return None
        tick_ns = now_ns if steady_ns is None else steady_ns
        passed_s = self.path.longest_s if self._tick_ns is None else (tick_ns - self._tick_ns) * 1e-9
        self._tick_ns = tick_ns
        self._reached = self._reached + self._velocity * min(max(passed_s, 0.0), STOOD_S)
        self._way.append((now_ns, self._reached))
        while len(self._way) > 1 and self._way[1][0] <= now_ns - _WAY_NS:
            self._way.popleft()
        self._compare(now_ns)
        if passed_s > STOOD_S:
            self._velocity = np.zeros_like(state.velocity)
        velocity = self._inside(state.velocity + self._pull(state.position, now_ns))
        step_s = min(max(passed_s, 0.0), self.path.longest_s)
        change = self._limits.acceleration * step_s
        velocity = np.clip(velocity, self._velocity - change, self._velocity + change)
        if self._limits.guard is not None:
            position = self._nearest(state.position)
            velocity = self._limits.guard.slowed_step(position, self._velocity, velocity, step_s, velocity)
        self._velocity = velocity
        if self._velocity.any():
            self._moved_ns = now_ns
        return self._velocity

    def commanded(self, t_ns: int) -> np.ndarray | None:
        """The position that the commanded velocities lead to at a time; see CommandStream.commanded."""
        return self.path.commanded(t_ns)

    def at_rest(self, now_ns: int) -> bool:
        """Whether no joint moves any more; also before the first trajectory."""
        return self.path.at_rest(now_ns) and not self._velocity.any()

    def _stand(self, stamp_ns: int) -> bool:
        """Whether by then the joints have been commanded and measured to stand for 0.2 s."""
        if self._spot is None or self.standing.any():
            return False
        return stamp_ns - max(self._moved_ns, int(self._spot[1].max())) >= _STAND_NS

    def _is_fresh(self, now_ns: int) -> bool:
        return self._sample is not None and now_ns - int(self._sample[1].min()) <= _FRESH_NS

    def _compare(self, now_ns: int) -> None:
        """Compare a new sample with where the velocities led to until its stamp."""
        if self._sample is None or not self._is_fresh(now_ns):
            self._off[:] = 0.0
            return
        position, stamps = self._sample
        if self._taken is not None and (stamps == self._taken).all():
            return
        self._taken = stamps
        # Where the joints may be by their stamps, and where they have been commanded to be by then.
        first, lowest, highest, last = self._shown(stamps)
        off = np.stack([position - highest, position - lowest])
        new = (position, stamps, last, last)
        spot, since_ns, lowest, highest = self._spot or new
        # however late a sample shows it, the joint has been at `first` since its spot
        due = np.where(stamps - _DELAY_NS >= since_ns, first, lowest)
        stays = np.abs(position - spot) <= self._still
        standing = (spot, since_ns, np.minimum(lowest, due), np.maximum(highest, due))
        spot, since_ns, lowest, highest = (np.where(stays, a, b) for a, b in zip(standing, new))
        self._spot, self.standing = (
            (spot, since_ns, lowest, highest),
            highest - lowest > _STANDING * self._still,
        )
        self._off = np.where(self.standing, 0.0, off)

    def _shown(self, stamps: np.ndarray) -> np.ndarray:
        """Where the velocities had led to within the delay before the stamp of each joint: first, least,
        greatest, last, float64 [4, D]."""
        times, shown = [t_ns for t_ns, _ in self._way], np.empty((4, len(stamps)))
        for stamp_ns in np.unique(stamps).tolist():
            begin = max(bisect_right(times, stamp_ns - _DELAY_NS) - 1, 0)
            end = max(bisect_left(times, stamp_ns), begin) + 1
            way = np.array([reached for _, reached in islice(self._way, begin, end)])
            its = stamps == stamp_ns
            shown[:, its] = np.stack([way[0], way.min(axis=0), way.max(axis=0), way[-1]])[:, its]
        return shown

    def _pull(self, commanded: np.ndarray, now_ns: int) -> np.ndarray:
        if not self._pulling or not self._is_fresh(now_ns):
            return np.zeros_like(commanded)
        distance = commanded - self._nearest(commanded)
        fastest = _PULL * self._limits.velocity
        return np.where(self.standing, 0.0, np.clip(self._gain * distance, -fastest, fastest))

    def _nearest(self, commanded: np.ndarray) -> np.ndarray:
        """Where the joints may be that is nearest to a position, float64 [D] each."""
        assert self._reached is not None
        return np.clip(commanded, *(self._reached + self._off))

    def _inside(self, velocity: np.ndarray) -> np.ndarray:
        """The velocity within its limit, and such that the joints can still brake within their range: those
        that move as commanded, and those that are measured further out."""
        assert self._reached is not None
        limits, ahead_s = self._limits, self.path.longest_s
        outer = np.stack(
            [self._reached + np.minimum(self._off[1], 0.0), self._reached + np.maximum(self._off[0], 0.0)]
        )
        room = np.maximum([outer[0] - limits.lower, limits.upper - outer[1]], 0.0)
        step = limits.acceleration * ahead_s
        down, up = np.minimum(np.sqrt(step**2 + 2.0 * limits.acceleration * room) - step, limits.velocity)
        self.counts["bounded"] += bool(
            (velocity < -down - _ROUNDING).any() or (velocity > up + _ROUNDING).any()
        )
        return np.clip(velocity, -down, up)


def _ended(path: Trajectory, limits: JointLimits) -> Trajectory:
    """The path; if it ends in motion, the shortest stop follows it."""
    if path.velocities is None or not path.velocities[-1].any():
        return path
    end = TrajectoryPoint(path.end_ns, path.positions[-1], path.velocities[-1])
    return path.then(brake(path.joints, end, limits))
