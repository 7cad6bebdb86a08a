"""A trajectory as a stream of velocities, for a controller that takes no positions.

MoveIt Servo integrates the velocities of JointJog from where the robot is, so what is lost on the way (a late
message, a slowdown near a singularity) would stay lost: velocities alone drift off the path. The measured
joints are therefore pulled to the commanded ones, in proportion to the distance, by no more than half of full
speed. What comes out changes within the acceleration limits, whatever is pulled.
"""

from __future__ import annotations

import numpy as np

from vla_accel_ros.control.command_stream import STOOD_S, CommandStream
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory

_FRESH_NS = 200_000_000
_PULL = 0.5


class JogStream:
    """The velocities to command to some joints at a rate. Time is given; one thread at a time.

    limits: of these joints. period_s: between two ticks. gain: of the pull [1/s]; 0 drifts.
    """

    def __init__(self, joints: tuple[str, ...], limits: JointLimits, period_s: float, gain: float) -> None:
        self.path = CommandStream(joints, limits, period_s)
        self._limits, self._longest_s, self._gain = limits, 2.0 * period_s, gain
        self._measured: tuple[np.ndarray, int] | None = None
        self.forget()

    def forget(self) -> None:
        """Command nothing until the next trajectory."""
        self.path.forget()
        self._velocity = np.zeros(len(self.path.joints))
        self._tick_ns: int | None = None
        self._pulling = True

    def felt(self, position: np.ndarray, now_ns: int) -> None:
        """Measured joints, float64 [D]; not pulled by when nothing newer comes for 0.2 s."""
        self._measured = (position, now_ns)

    def follow(self, trajectory: Trajectory, now_ns: int) -> None:
        """Take a trajectory over these joints, and maybe others, in place of the last."""
        self.path.follow(trajectory, now_ns)
        self._pulling = True

    def stop(self, now_ns: int, steady_ns: int | None = None) -> None:
        """Brake from what was commanded last, because the path's times mean nothing now; pull no more."""
        self._pulling = False
        self.path.stop(now_ns, steady_ns)
        if steady_ns is None:
            self._tick_ns = now_ns

    def rest(self) -> None:
        """Pull no more: come to rest where the trajectory does, until the next one."""
        self._pulling = False

    def tick(self, now_ns: int, steady_ns: int | None = None) -> np.ndarray | None:
        """Velocities, float64 [D], to command now; None before the first trajectory. steady_ns: see
        CommandStream."""
        state = self.path.tick(now_ns, steady_ns)
        if state is None or state.velocity is None:
            return None
        tick_ns = now_ns if steady_ns is None else steady_ns
        passed_s = self._longest_s if self._tick_ns is None else (tick_ns - self._tick_ns) * 1e-9
        self._tick_ns = tick_ns
        if passed_s > STOOD_S:
            self._velocity = np.zeros_like(state.velocity)
        wanted = state.velocity + self._pull(state.position, now_ns)
        change = self._limits.acceleration * min(max(passed_s, 0.0), self._longest_s)
        velocity = np.clip(wanted, -self._limits.velocity, self._limits.velocity)
        self._velocity = np.clip(velocity, self._velocity - change, self._velocity + change)
        return self._velocity

    def at_rest(self, now_ns: int) -> bool:
        """Whether nothing moves any more, or ever did."""
        return self.path.at_rest(now_ns) and not self._velocity.any()

    def _pull(self, commanded: np.ndarray, now_ns: int) -> np.ndarray:
        if not self._pulling or self._measured is None or now_ns - self._measured[1] > _FRESH_NS:
            return np.zeros_like(commanded)
        most = _PULL * self._limits.velocity
        return np.clip(self._gain * (commanded - self._measured[0]), -most, most)
