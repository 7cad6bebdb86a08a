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
"""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np

from vla_accel_ros.control.limits.joint_limits import JointLimits, brake
from vla_accel_ros.control.limits.limiter import step_towards
from vla_accel_ros.control.trajectory import MotionState, Trajectory

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
        self.joints, self.counts = tuple(joints), Counter[str]()
        self._limits, self._ticks = limits, Ticks(period_s)
        self._past = deque[MotionState](maxlen=math.ceil(_PAST_S / period_s) + 1)
        self.forget()

    @property
    def longest_s(self) -> float:
        """How long after another a tick is late."""
        return self._ticks.longest_s

    def forget(self) -> None:
        """Command nothing until the next trajectory, and start from its first state."""
        self._past.clear()
        self._path: Trajectory | None = None
        self._state: MotionState | None = None
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
            self._state = MotionState(now_ns, position, velocity)
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

    def tick(self, now_ns: int, steady_ns: int | None = None) -> MotionState | None:
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
        late = elapsed_s > self.longest_s
        self.counts["late"] += late
        if late or abs(state.stamp_ns + passed_ns - now_ns) > _SET_NS:
            # a path that ended before both times is at rest: nothing to be late for
            self._on_path &= path.end_ns <= min(state.stamp_ns, now_ns)
        position, velocity = path.sample(now_ns)
        if not self._on_path.all():
            step_s = min(elapsed_s, self.longest_s)
            moving = np.zeros_like(position)
            if elapsed_s <= STOOD_S and state.velocity is not None:
                moving = state.velocity
            led = step_towards(state.position, moving, position, velocity, step_s, self._limits)
            position = np.where(self._on_path, position, led[0])
            velocity = np.where(self._on_path, velocity, led[1])
            self._on_path |= led[2]
        self._state = MotionState(now_ns, position, velocity)
        self._past.append(self._state)
        return self._state

    def commanded(self, t_ns: int) -> np.ndarray | None:
        """The last command at or before a time, float64 [D]. After a late tick this differs from the path.
        None before the first command, and for times long ago."""
        found = (state.position for state in reversed(self._past) if state.stamp_ns <= t_ns)
        return next(found, None)

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
        self._state = MotionState(last_ns, self._state.position, self._state.velocity)
        self._path = brake(self.joints, self._state, self._limits)
        self._on_path[:] = True

    def at_rest(self, now_ns: int) -> bool:
        """Whether no joint moves any more; also before the first trajectory."""
        return self._path is None or bool(self._on_path.all() and now_ns >= self._path.end_ns)


class JogStream:
    """The velocities to command to some joints at a rate. Time is given. Use it from one thread at a time.

    limits: of these joints. period_s: between two ticks. gain: of the pull to the path [1/s]; 0 lets it
    drift.
    """

    def __init__(self, joints: tuple[str, ...], limits: JointLimits, period_s: float, gain: float) -> None:
        self.path = CommandStream(joints, limits, period_s)
        self._limits, self._gain = limits, gain
        self._measured: tuple[np.ndarray, int] | None = None
        self.forget()

    def forget(self) -> None:
        """Command nothing until the next trajectory."""
        self.path.forget()
        self._velocity = np.zeros(len(self.path.joints))
        self._tick_ns: int | None = None
        self._pulling = True

    def measured(self, position: np.ndarray, now_ns: int) -> None:
        """Take measured joints, float64 [D]. The pull ends when nothing newer comes for 0.2 s."""
        self._measured = (position, now_ns)

    def follow(self, trajectory: Trajectory, now_ns: int) -> None:
        """Follow this trajectory, over these joints and maybe others, in place of the previous one."""
        self.path.follow(trajectory, now_ns)
        self._pulling = True

    def stop(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Brake from the last command, because the path's times have lost their meaning; end the pull."""
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
        if state is None or state.velocity is None:
            return None
        tick_ns = now_ns if steady_ns is None else steady_ns
        passed_s = self.path.longest_s if self._tick_ns is None else (tick_ns - self._tick_ns) * 1e-9
        self._tick_ns = tick_ns
        if passed_s > STOOD_S:
            self._velocity = np.zeros_like(state.velocity)
        wanted = state.velocity + self._pull(state.position, now_ns)
        change = self._limits.acceleration * min(max(passed_s, 0.0), self.path.longest_s)
        velocity = np.clip(wanted, -self._limits.velocity, self._limits.velocity)
        self._velocity = np.clip(velocity, self._velocity - change, self._velocity + change)
        return self._velocity

    def commanded(self, t_ns: int) -> np.ndarray | None:
        """The position that the commanded velocities lead to at a time; see CommandStream.commanded."""
        return self.path.commanded(t_ns)

    def at_rest(self, now_ns: int) -> bool:
        """Whether no joint moves any more; also before the first trajectory."""
        return self.path.at_rest(now_ns) and not self._velocity.any()

    def _pull(self, commanded: np.ndarray, now_ns: int) -> np.ndarray:
        if not self._pulling or self._measured is None or now_ns - self._measured[1] > _FRESH_NS:
            return np.zeros_like(commanded)
        most = _PULL * self._limits.velocity
        return np.clip(self._gain * (commanded - self._measured[0]), -most, most)


def _ended(path: Trajectory, limits: JointLimits) -> Trajectory:
    """The path; if it ends in motion, the shortest stop follows it."""
    if path.velocities is None or not path.velocities[-1].any():
        return path
    end = MotionState(path.end_ns, path.positions[-1], path.velocities[-1])
    return path.then(brake(path.joints, end, limits))
