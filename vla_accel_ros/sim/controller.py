"""A trajectory controller that behaves as ros2_controllers' joint_trajectory_controller does on a real arm.

The demo and the tests need a simulated robot that is as strict as a real one. What Jazzy and Kilted refuse by
default is refused here, with the reason; a new trajectory replaces the old one at once, without blending;
after the last point the arm holds. Parameters have the controller's own names and Kilted's defaults; two were
added after Kilted. Asking twice for the same instant gives the same command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.sim.kinematics import JOINTS

GROUPS: Mapping[str, tuple[str, ...]] = {"arm_controller": JOINTS[:5], "gripper_controller": JOINTS[5:]}


class Rejected(ValueError):
    """The controller refuses this trajectory and keeps the one it has. One sentence says why."""


class JointTrajectoryController:
    """One controller over some joints.

    interpolate_from_desired_state: a new trajectory starts from the last command (True) or from the measured
        state.
    allow_nonzero_velocity_at_trajectory_end: accept trajectories that end in motion (the default of Humble
        only).
    positions_upsampling: give points without velocities those of a cubic spline at rest at both ends.
    allow_trajectory_replacement: keep the active trajectory until the new one's stamp; a stamp in the past
        counts as the time of arrival.
    update_s: period of its updates. A real controller stamps the last command, which is meant for now, with
        the time of the update before, so a trajectory that starts from it steps by one update's motion.
    """

    def __init__(
        self,
        joints: Sequence[str],
        *,
        interpolate_from_desired_state: bool = True,
        allow_nonzero_velocity_at_trajectory_end: bool = False,
        positions_upsampling: bool = False,
        allow_trajectory_replacement: bool = False,
        update_s: float = 0.0,
    ) -> None:
        self.joints = tuple(joints)
        self.interpolate_from_desired_state = interpolate_from_desired_state
        self.allow_nonzero_velocity_at_trajectory_end = allow_nonzero_velocity_at_trajectory_end
        self.positions_upsampling = positions_upsampling
        self.allow_trajectory_replacement = allow_trajectory_replacement
        self._update_ns = round(update_s * 1e9)
        self.start(np.zeros(len(self.joints)))

    def start(self, position: np.ndarray, epoch_ns: int = 0) -> None:
        """Forget every trajectory and hold this position.

        position: [D] rad. epoch_ns: the ROS clock at the simulator's time zero, for `commands`.
        """
        self.epoch_ns = self.began_ns = epoch_ns
        self._start: TrajectoryPoint | None = None
        self._active = Trajectory(self.joints, np.array([epoch_ns]), np.asarray(position, float)[None])

    def slip(self, by_ns: int) -> None:
        """The ROS clock was set while simulated time stood still: execution continues where it was."""
        self.epoch_ns += by_ns
        self.began_ns += by_ns
        self._active = replace(self._active, times_ns=self._active.times_ns + by_ns)
        if self._start is not None:
            self._start = replace(self._start, stamp_ns=self._start.stamp_ns + by_ns)

    def receive(
        self,
        joint_names: Sequence[str],
        stamp_ns: int,
        times_from_start_ns: Sequence[int],
        positions: np.ndarray,
        velocities: np.ndarray | None,
        now_ns: int,
        measured: TrajectoryPoint | None = None,
    ) -> None:
        """Take a trajectory_msgs/JointTrajectory as arrays: positions, velocities [N, D] in the order of
        joint_names.

        stamp_ns: the message's header stamp; 0 = now. Raises Rejected; see `accept`.
        """
        offsets = np.asarray(times_from_start_ns, dtype=np.int64)
        start_ns = now_ns if stamp_ns == 0 else stamp_ns
        if not len(offsets):
            raise Rejected("the trajectory has no points: give at least one.")
        if offsets[0] < 0:
            raise Rejected(f"time_from_start of point 0 is {offsets[0]} ns: give a time of zero or more.")
        try:
            trajectory = Trajectory(tuple(joint_names), start_ns + offsets, positions, velocities)
        except (TypeError, ValueError) as error:
            raise Rejected(f"{str(error).rstrip('.')}.") from error
        self.accept(trajectory, now_ns, measured, start_ns)

    def accept(
        self,
        trajectory: Trajectory,
        now_ns: int,
        measured: TrajectoryPoint | None = None,
        stamp_ns: int | None = None,
    ) -> None:
        """Replace the active trajectory by this one at now_ns.

        A trajectory that began in the past is joined at its present point; one that begins later is
        approached from the state at receipt. measured: measured state of the joints, required if
        interpolate_from_desired_state is off. stamp_ns: when it begins; the first point's time by default.
        Raises Rejected for other joints than the controller's, an end in the past, or a last point in motion.
        """
        self._check(trajectory, now_ns)
        if self.interpolate_from_desired_state:
            start = replace(self.desired(now_ns), stamp_ns=now_ns - self._update_ns)
        elif measured is None:
            raise Rejected(
                "interpolate_from_desired_state is false and no measured state was given: give one."
            )
        else:
            start = TrajectoryPoint(now_ns, measured.position, measured.velocity)
        trajectory = trajectory.select(self.joints)
        if self.positions_upsampling and trajectory.velocities is None and len(trajectory) > 1:
            trajectory = replace(trajectory, velocities=spline_velocities(trajectory))
        stamp_ns = trajectory.start_ns if stamp_ns is None else stamp_ns
        if self.allow_trajectory_replacement and len(self._active) > 1:
            trajectory, stamp_ns = self._continued(trajectory, stamp_ns, now_ns), now_ns
        self._active, self._start, self.began_ns = trajectory, start, stamp_ns

    def _continued(self, trajectory: Trajectory, stamp_ns: int, now_ns: int) -> Trajectory:
        """The rest of the active trajectory until stamp_ns, followed by this trajectory."""
        if stamp_ns <= now_ns:
            return replace(trajectory, times_ns=trajectory.times_ns + (now_ns - stamp_ns))
        old = self._active.times_ns
        times_ns = np.unique(np.append(old[(old > now_ns) & (old < stamp_ns)], stamp_ns))
        times_ns = times_ns[times_ns < trajectory.start_ns]
        positions, velocities = self._active.sample(times_ns, self._start)
        return Trajectory(
            self.joints,
            np.append(times_ns, trajectory.times_ns),
            np.concatenate([positions, trajectory.positions]),
            None if trajectory.velocities is None else np.concatenate([velocities, trajectory.velocities]),
        )

    def _check(self, trajectory: Trajectory, now_ns: int) -> None:
        names, expected = trajectory.joints, self.joints
        if len(set(names)) != len(names) or set(names) != set(expected):
            raise Rejected(
                f"joint_names are {', '.join(names)}: name each of {', '.join(expected)} once and no other."
            )
        if trajectory.end_ns < now_ns:
            late_s = (now_ns - trajectory.end_ns) * 1e-9
            raise Rejected(
                f"the trajectory ended {late_s:.3f} s ago: stamp it later, or 0 to start on arrival."
            )
        if trajectory.velocities is not None and not self.allow_nonzero_velocity_at_trajectory_end:
            moving = np.flatnonzero(np.abs(trajectory.velocities[-1]) > np.finfo(np.float32).eps)
            if len(moving):
                name, speed = names[moving[0]], trajectory.velocities[-1][moving[0]]
                raise Rejected(f"the last point moves {name} at {speed:.4g} rad/s: end with zero velocity.")

    @property
    def active(self) -> Trajectory:
        """The trajectory being executed, or held at its end."""
        return self._active

    def desired(self, t_ns: int) -> TrajectoryPoint:
        """The command at t_ns on the ROS clock."""
        position, velocity = self._active.sample(t_ns, self._start)
        return TrajectoryPoint(t_ns, position, velocity)

    def commands(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions [M, D] rad and velocities [M, D] rad/s at M simulation times [s], for
        SimRobot.advance."""
        times_ns = self.epoch_ns + np.round(np.asarray(times_s) * 1e9).astype(np.int64)
        return self._active.sample(times_ns, self._start)


def spline_velocities(trajectory: Trajectory) -> np.ndarray:
    """Velocities, float64 [N, D], of the cubic spline through N >= 2 points that is at rest at both ends.

    Between the ends the acceleration is continuous: with h the time to the next point and p the positions,
    v[i-1] / h[i-1] + 2 v[i] (1 / h[i-1] + 1 / h[i]) + v[i+1] / h[i]
    = 3 (p[i] - p[i-1]) / h[i-1]^2 + 3 (p[i+1] - p[i]) / h[i]^2.
    """
    p, h = trajectory.positions, np.diff(trajectory.times_ns) * 1e-9
    system, right = np.eye(len(p)), np.zeros_like(p)
    inner = np.arange(1, len(p) - 1)
    system[inner, inner - 1], system[inner, inner + 1] = 1 / h[:-1], 1 / h[1:]
    system[inner, inner] = 2 / h[:-1] + 2 / h[1:]
    slope = 3 * np.diff(p, axis=0) / np.square(h)[:, None]
    right[inner] = slope[:-1] + slope[1:]
    return np.linalg.solve(system, right)


class ArmControllers:
    """The controllers of one arm, each over its own joints, which together command all of them.

    groups: controller name -> its joints; every one of kinematics.JOINTS in exactly one group. parameters: as
    JointTrajectoryController's, the same for all. Raises ValueError for other joints.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]] = GROUPS, **parameters: bool) -> None:
        names = [name for joints in groups.values() for name in joints]
        if sorted(names) != sorted(JOINTS):
            raise ValueError(
                f"controllers have joints {', '.join(names)}: give each of {', '.join(JOINTS)} to one."
            )
        self.controllers = {
            name: JointTrajectoryController(joints, **parameters) for name, joints in groups.items()
        }
        self._columns = {name: [JOINTS.index(joint) for joint in joints] for name, joints in groups.items()}

    def __getitem__(self, name: str) -> JointTrajectoryController:
        return self.controllers[name]

    def start(self, position: np.ndarray, epoch_ns: int = 0) -> None:
        """Hold all joints at this position, [6] rad in JOINTS order."""
        for name, controller in self.controllers.items():
            controller.start(np.asarray(position, float)[self._columns[name]], epoch_ns)

    def slip(self, by_ns: int) -> None:
        """See JointTrajectoryController.slip."""
        for controller in self.controllers.values():
            controller.slip(by_ns)

    def accept(self, trajectory: Trajectory, now_ns: int, measured: TrajectoryPoint | None = None) -> None:
        """Give each controller its share of a trajectory over all joints. Raises Rejected; then no controller
        has taken it."""
        shares = {}
        for name, controller in self.controllers.items():
            try:
                shares[name] = trajectory.select(controller.joints)
            except ValueError as error:
                raise Rejected(f"{str(error).rstrip('.')}.") from error
            controller._check(shares[name], now_ns)
        for name, controller in self.controllers.items():
            controller.accept(shares[name], now_ns, measured and self._share(measured, name))

    def _share(self, state: TrajectoryPoint, name: str) -> TrajectoryPoint:
        columns = self._columns[name]
        velocity = None if state.velocity is None else state.velocity[columns]
        return TrajectoryPoint(state.stamp_ns, state.position[columns], velocity)

    def commands(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities [M, 6] at M simulation times [s], in JOINTS order."""
        positions, velocities = np.empty((len(times_s), 6)), np.empty((len(times_s), 6))
        for name, controller in self.controllers.items():
            columns = self._columns[name]
            positions[:, columns], velocities[:, columns] = controller.commands(times_s)
        return positions, velocities
