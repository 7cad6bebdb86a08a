"""A joint trajectory, sampled as a joint_trajectory_controller samples it.

All motion that is sent, blended, limited or simulated has this one type and one sampler: it must agree with
the controller's, or the path we blend from is not what the robot does. Times are absolute (nanoseconds of the
ROS clock); a message with stamp 0 gets its times when it is received. Sampling follows ros2_controllers'
Kilted release: linear between points without velocities, cubic Hermite between points with velocities, the
same rule from the state at receipt to the first point, and a hold after the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TrajectoryPoint:
    """The (measured or commanded) state of the joints at one instant.

    stamp_ns: time in nanoseconds of the ROS clock.
    position: float64 [D], radians (metres for prismatic joints).
    velocity: float64 [D], per second; None if unknown, which makes the way to the first point linear.
    """

    stamp_ns: int
    position: np.ndarray
    velocity: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", np.array(self.position, dtype=np.float64))
        if self.velocity is not None:
            object.__setattr__(self, "velocity", np.array(self.velocity, dtype=np.float64))
            if self.velocity.shape != self.position.shape:
                raise ValueError(
                    f"velocity has shape {self.velocity.shape}, position {self.position.shape}: "
                    "give one velocity per joint or None"
                )


@dataclass(frozen=True)
class Trajectory:
    """N points of D joints at absolute times.

    joints: D names; the columns of the arrays are in this order.
    times_ns: int64 [N], strictly increasing, nanoseconds of the ROS clock.
    positions: float64 [N, D].
    velocities: float64 [N, D] or None.

    The arrays are copied in and read-only. Raises ValueError for wrong shapes, times that do not increase, no
    points, or a value that is not finite.
    """

    joints: tuple[str, ...]
    times_ns: np.ndarray
    positions: np.ndarray
    velocities: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "joints", tuple(self.joints))
        times = np.array(self.times_ns, dtype=np.int64)
        _freeze(self, "times_ns", times)
        _freeze(self, "positions", np.array(self.positions, dtype=np.float64))
        shape = (len(times), len(self.joints)) if times.ndim == 1 else None
        if shape is None or shape[0] == 0 or self.positions.shape != shape:
            raise ValueError(
                f"trajectory has times of shape {times.shape} and positions of shape {self.positions.shape} "
                f"for {len(self.joints)} joints: give N >= 1 times and N x {len(self.joints)} positions"
            )
        disordered = np.flatnonzero(np.diff(times) <= 0)
        if len(disordered):
            i = disordered[0]
            raise ValueError(f"trajectory point {i + 1} is not later than point {i}: times must increase")
        check_finite("trajectory positions", self.positions, self.joints)
        if self.velocities is not None:
            _freeze(self, "velocities", np.array(self.velocities, dtype=np.float64))
            if self.velocities.shape != self.positions.shape:
                raise ValueError(
                    f"trajectory velocities have shape {self.velocities.shape}, positions "
                    f"{self.positions.shape}: give a velocity for every position or none at all"
                )
            check_finite("trajectory velocities", self.velocities, self.joints)

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def start_ns(self) -> int:
        """Time of the first point."""
        return int(self.times_ns[0])

    @property
    def end_ns(self) -> int:
        """Time of the last point; the position is held from then on."""
        return int(self.times_ns[-1])

    def sample(
        self, t_ns: int | np.ndarray, start: TrajectoryPoint | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity at a time, as the controller would command them.

        t_ns: one time, or int64 [M].
        start: the state at receipt. Before the first point the motion goes from there to the first point;
            without it, the first point is held. Times before the start's own stamp give the start itself.
        Returns (position, velocity), float64 [D] each, or [M, D] for M times. After the last point the
        velocity is zero; on a linear segment it is the segment's slope.
        """
        if start is None and self.velocities is not None:
            return self._sample_cubic(np.asarray(t_ns)) if np.ndim(t_ns) else self._sample_one(int(t_ns))
        t = np.atleast_1d(np.asarray(t_ns, dtype=np.int64))
        if start is not None and start.stamp_ns >= self.start_ns:
            start = None
        times, positions, velocities = self._knots(start)
        early, inside = t < times[0], (t >= times[0]) & (t < times[-1])
        position = positions[np.where(early, 0, -1)]
        velocity = np.zeros_like(position)
        if start is not None and start.velocity is not None:
            velocity[early] = start.velocity
        i = np.searchsorted(times, t, side="right") - 1
        linear = inside & (i == 0) if start is not None and start.velocity is None else np.zeros_like(inside)
        if velocities is None:
            linear = inside
        else:
            cubic = inside & ~linear
            position[cubic], velocity[cubic] = _cubic(times, positions, velocities, i[cubic], t[cubic])
        position[linear], velocity[linear] = _linear(times, positions, i[linear], t[linear])
        return (position, velocity) if np.ndim(t_ns) else (position[0], velocity[0])

    def _sample_one(self, t_ns: int) -> tuple[np.ndarray, np.ndarray]:
        assert self.velocities is not None
        times = self.times_ns
        if not times[0] <= t_ns < times[-1]:
            return self.positions[-1 if t_ns >= times[0] else 0].copy(), np.zeros(len(self.joints))
        i = int(np.searchsorted(times, t_ns, side="right")) - 1
        duration_s, s = int(times[i + 1] - times[i]) * 1e-9, (t_ns - int(times[i])) * 1e-9
        return _hermite(
            *(self.positions[i], self.velocities[i], self.positions[i + 1], self.velocities[i + 1]),
            *(duration_s, s),
        )

    def _sample_cubic(self, t_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self.velocities is not None
        t, times = t_ns.astype(np.int64), self.times_ns
        if len(times) == 1:
            return np.repeat(self.positions, len(t), axis=0), np.zeros((len(t), len(self.joints)))
        i = np.minimum(np.maximum(np.searchsorted(times, t, side="right") - 1, 0), len(times) - 2)
        position, velocity = _cubic(times, self.positions, self.velocities, i, np.maximum(t, times[0]))
        ended = t >= times[-1]
        if ended.any():
            position[ended] = self.positions[-1]
        velocity[ended | (t < times[0])] = 0.0
        return position, velocity

    def select(self, joints: tuple[str, ...]) -> Trajectory:
        """The same motion of some joints, in the given order (one controller's share). Raises ValueError for
        a joint that the trajectory does not have."""
        missing = [name for name in joints if name not in self.joints]
        if missing:
            raise ValueError(f"trajectory has no joint {missing[0]!r}: it has {', '.join(self.joints)}")
        columns = [self.joints.index(name) for name in joints]
        velocities = None if self.velocities is None else self.velocities[:, columns]
        return trusted(tuple(joints), self.times_ns, self.positions[:, columns], velocities)

    @property
    def speeds(self) -> np.ndarray:
        """The velocities, float64 [N, D]; zeros where there are none."""
        return np.zeros_like(self.positions) if self.velocities is None else self.velocities

    def since(self, t_ns: int) -> Trajectory:
        """The rest of a motion with velocities from a time on, with a point there; all of it if it begins
        later. For a time after the end, the end position at that time."""
        if t_ns <= self.start_ns:
            return self
        segment = int(self.times_ns.searchsorted(t_ns, side="right"))
        position, velocity = self.sample(t_ns)
        return trusted(
            self.joints,
            np.concatenate([[t_ns], self.times_ns[segment:]]),
            np.concatenate([position[None], self.positions[segment:]]),
            np.concatenate([velocity[None], self.speeds[segment:]]),
        )

    def until(self, t_ns: int) -> Trajectory:
        """A motion that ends at rest, with its end held until a time if it ends before."""
        if t_ns <= self.end_ns:
            return self
        standstill = np.zeros_like(self.positions[-1:])
        return self.then(trusted(self.joints, np.array([t_ns]), self.positions[-1:].copy(), standstill))

    def later(self, by_ns: int) -> Trajectory:
        """The same motion, by_ns later."""
        return trusted(self.joints, self.times_ns + by_ns, self.positions, self.velocities)

    def then(self, after: Trajectory) -> Trajectory:
        """This motion up to the start of another motion of the same joints, and then that one."""
        head = int(self.times_ns.searchsorted(after.start_ns))
        return trusted(
            self.joints,
            np.concatenate([self.times_ns[:head], after.times_ns]),
            np.concatenate([self.positions[:head], after.positions]),
            np.concatenate([self.speeds[:head], after.speeds]),
        )

    def _knots(self, start: TrajectoryPoint | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Times, positions and velocities, with the start state before the first point."""
        if start is None:
            return self.times_ns, self.positions, self.velocities
        times = np.concatenate([[start.stamp_ns], self.times_ns])
        positions = np.concatenate([start.position[None], self.positions])
        if self.velocities is None:
            return times, positions, None
        velocity = np.zeros(len(self.joints)) if start.velocity is None else start.velocity
        return times, positions, np.concatenate([velocity[None], self.velocities])


def check_finite(what: str, values: np.ndarray, joints: tuple[str, ...]) -> None:
    """Raises ValueError that names the joint and the point, if float [N, D] values contain NaN or
    infinity."""
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(
            f"{what}: joint {joints[column]!r} is {values[row, column]} at point {row}: give a finite number"
        )


def knot_velocities(
    times_ns: np.ndarray,
    positions: np.ndarray,
    first: np.ndarray | None = None,
    last: np.ndarray | None = None,
) -> np.ndarray:
    """Velocities for knots that have only positions, float64 [N, D].

    Inside: central differences (p[i+1] - p[i-1]) / (t[i+1] - t[i-1]). first, last: float64 [D] velocities of
    the end points. Their defaults are the one-sided difference at the first and zero at the last, because a
    controller refuses a trajectory that ends in motion.
    """
    positions = np.asarray(positions, dtype=np.float64)
    velocities = np.zeros_like(positions)
    if len(positions) > 1:
        t = (np.asarray(times_ns, dtype=np.int64) - times_ns[0]) * 1e-9
        velocities[1:-1] = (positions[2:] - positions[:-2]) / (t[2:] - t[:-2])[:, None]
        velocities[0] = (positions[1] - positions[0]) / (t[1] - t[0])
    if first is not None:
        velocities[0] = first
    velocities[-1] = 0.0 if last is None else last
    return velocities


def _linear(
    times: np.ndarray, positions: np.ndarray, i: np.ndarray, t: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    duration = ((times[i + 1] - times[i]) * 1e-9)[:, None]
    slope = (positions[i + 1] - positions[i]) / duration
    return positions[i] + slope * ((t - times[i]) * 1e-9)[:, None], slope


def _cubic(
    times: np.ndarray, positions: np.ndarray, velocities: np.ndarray, i: np.ndarray, t: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    duration = ((times[i + 1] - times[i]) * 1e-9)[:, None]
    s = ((t - times[i]) * 1e-9)[:, None]
    return _hermite(positions[i], velocities[i], positions[i + 1], velocities[i + 1], duration, s)


def _hermite(
    p0: np.ndarray,
    v0: np.ndarray,
    p1: np.ndarray,
    v1: np.ndarray,
    duration: np.ndarray | float,
    s: np.ndarray | float,
) -> tuple[np.ndarray, np.ndarray]:
    step = (p1 - p0) / duration
    c2 = (3.0 * step - 2.0 * v0 - v1) / duration
    c3 = (v0 + v1 - 2.0 * step) / duration**2
    return p0 + s * (v0 + s * (c2 + s * c3)), v0 + s * (2.0 * c2 + s * 3.0 * c3)


def extremes(
    p0: np.ndarray, v0: np.ndarray, p1: np.ndarray, v1: np.ndarray, duration_s: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lowest and highest position, greatest |velocity| and |acceleration| of cubic Hermite segments, exact.

    All arguments broadcast to [..., D]; so do the four results.
    """
    step = (p1 - p0) / duration_s
    c2 = (3.0 * step - 2.0 * v0 - v1) / duration_s
    c3 = (v0 + v1 - 2.0 * step) / np.square(duration_s)
    acceleration = hardest(p0, v0, p1, v1, duration_s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        crest = -c2 / (3.0 * c3)
        root = np.sqrt(np.maximum(c2 * c2 - 3.0 * c3 * v0, 0.0))
        q = -(c2 + np.copysign(root, c2))
        turns = (q / (3.0 * c3), v0 / q)
    s = _inside(crest, duration_s)
    velocity = np.maximum(np.maximum(np.abs(v0), np.abs(v1)), np.abs(v0 + s * (2.0 * c2 + 3.0 * s * c3)))
    lowest, highest = np.minimum(p0, p1), np.maximum(p0, p1)
    for turn in turns:
        s = _inside(turn, duration_s)
        p = p0 + s * (v0 + s * (c2 + s * c3))
        lowest, highest = np.minimum(lowest, p), np.maximum(highest, p)
    return lowest, highest, velocity, acceleration


def hardest(
    p0: np.ndarray, v0: np.ndarray, p1: np.ndarray, v1: np.ndarray, duration_s: np.ndarray | float
) -> np.ndarray:
    """Greatest |acceleration| [..., D] of cubic Hermite segments, which is at one of their ends."""
    middle = 3.0 * (p1 - p0) / duration_s - v0 - v1
    return np.maximum(np.abs(middle - v0), np.abs(middle - v1)) * 2.0 / duration_s


def _inside(s: np.ndarray, duration_s: np.ndarray | float) -> np.ndarray:
    return np.where((s > 0) & (s < duration_s), s, 0.0)


def trusted(
    joints: tuple[str, ...], times_ns: np.ndarray, positions: np.ndarray, velocities: np.ndarray | None
) -> Trajectory:
    """A trajectory of arrays that were made from checked ones: no copy, no check. The arrays become read-only
    and must not be used elsewhere."""
    trajectory = object.__new__(Trajectory)
    object.__setattr__(trajectory, "joints", joints)
    _freeze(trajectory, "times_ns", times_ns)
    _freeze(trajectory, "positions", positions)
    object.__setattr__(trajectory, "velocities", None)
    if velocities is not None:
        _freeze(trajectory, "velocities", velocities)
    return trajectory


def _freeze(owner: Trajectory, name: str, array: np.ndarray) -> None:
    array.setflags(write=False)
    object.__setattr__(owner, name, array)
