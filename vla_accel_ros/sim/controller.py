"""A trajectory controller that behaves as ros2_controllers' joint_trajectory_controller does on a real arm.

The demo and the tests need a simulated robot that is as strict as a real one. What Jazzy and Kilted refuse by
default is refused here, with the reason; a new trajectory replaces the old one at once, without blending;
after the last point the arm holds. Parameters have the controller's own names and Kilted's defaults. Asking
twice for the same instant gives the same command.
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
    """One controller over some joints, with the parameters below."""

    interpolate_from_desired_state = True
    """A new trajectory starts from the last command, not from the measured state."""
    allow_nonzero_velocity_at_trajectory_end = False

    def __init__(self, joints: Sequence[str]) -> None:
        self.joints = tuple(joints)
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

    def accept(self, trajectory: Trajectory, now_ns: int) -> None:
        """Replace the active trajectory by this one at now_ns.

        A trajectory that began in the past is joined at its present point; one that begins later is
        approached from the last command. Raises Rejected for other joints than the controller's, an end in
        the past, or a last point in motion.
        """
        self._check(trajectory, now_ns)
        self._start = self.beginning(now_ns)
        self._active, self.began_ns = trajectory.select(self.joints), trajectory.start_ns

    def beginning(self, now_ns: int) -> TrajectoryPoint:
        """The state from which a new trajectory is approached."""
        return replace(self.desired(now_ns), stamp_ns=now_ns)

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
        if trajectory.velocities is not None:
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


class ArmControllers:
    """The controllers of one arm, each over its own joints, which together command all of them."""

    def __init__(self) -> None:
        self.controllers = {name: JointTrajectoryController(joints) for name, joints in GROUPS.items()}
        self._columns = {name: [JOINTS.index(joint) for joint in joints] for name, joints in GROUPS.items()}

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

    def accept(self, trajectory: Trajectory, now_ns: int) -> None:
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
            controller.accept(shares[name], now_ns)

    def commands(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities [M, 6] at M simulation times [s], in JOINTS order."""
        positions, velocities = np.empty((len(times_s), 6)), np.empty((len(times_s), 6))
        for name, controller in self.controllers.items():
            columns = self._columns[name]
            positions[:, columns], velocities[:, columns] = controller.commands(times_s)
        return positions, velocities
