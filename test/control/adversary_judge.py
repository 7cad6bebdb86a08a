"""The judge of an episode: what controllers execute keeps the limits, the age limit and the holds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from adversary_scene import ANGULAR, LINEAR, MS, S, Scene
from executed import Broken, judge_path, judge_positions, judge_velocities

from vla_accel_ros.control.following.watchdog import HOMING
from vla_accel_ros.control.outputs.on_arrival import ACCELERATION, SPEED
from vla_accel_ros.control.trajectory import Trajectory


class Judged(Scene):
    """With a judge."""

    def _check_length(self, trajectory: Trajectory, on_arrival: bool) -> None:
        """No more motion than the age of chunks allows, and a brake."""
        if trajectory.velocities is None:
            return
        if not trajectory.velocities.any():
            return
        brake_ns = round(self._longest_s * S)
        age_ns = round(self.robot.chunk_age_s * S)
        allowed = max(self.now_ns() + 2 * self.node.robot.kept_ns, self.newest_chunk_ns + age_ns)
        if self.robot.teleop is not None and self.node.motion.holds.human:
            age_ns = round(self.robot.teleop.max_age_s * S)
            allowed = max(self.now_ns() + 2 * self.node.robot.kept_ns, self.newest_command_ns + age_ns)
        if HOMING in self.node.holds:
            most_ns = self.node.motion.homing.most_ns
            allowed = max(allowed, self.now_ns() + most_ns, trajectory.start_ns + most_ns // 2)
        over = self._rests_ns(trajectory) - allowed - brake_ns
        if over > 10 * MS:
            self._break("motion beyond the age limit of chunks", 1.0 + over * 1e-9)

    @staticmethod
    def _rests_ns(trajectory: Trajectory) -> int:
        """When it comes to rest; its end may be held for longer."""
        moving = np.flatnonzero(trajectory.speeds.any(axis=1))
        return int(trajectory.times_ns[min(int(moving.max(initial=-1)) + 1, len(trajectory) - 1)])

    @property
    def _longest_s(self) -> float:
        """The longest brake."""
        limits, share = self.robot.limits, 1.0 if self.robot.stamped else SPEED / ACCELERATION
        return share * float((limits.velocity / limits.acceleration).max())

    def _break(self, what: str, by: float = 2.0) -> None:
        if not any(broken.what == what for broken in self.broken):
            self.broken.append(Broken(what, self.t_ns * 1e-9, by))

    def _judge(self) -> None:
        self._unhold()
        robot, longest_s = self.robot, 2.0 * self.robot.period_s
        if robot.kind in ("joint_trajectory",):
            _, p = self.controller.path(self.end_ns)
            self.moved = float(np.mean(np.abs(np.diff(p, axis=0)).max(axis=1) > 1e-6))
        elif len(self.ticks) > 2:
            p = np.array([p for _, p in self.ticks])
            if robot.kind == "forward_command":
                p = np.diff(p, axis=0)
            self.moved = float(np.mean(np.abs(p).max(axis=1) > 1e-6))
        if robot.takes_trajectories:
            times, positions = self.controller.path(self.end_ns)
            limits, beyond = robot.limits, 0.0 if robot.stamped else 0.01 * robot.limits.span
            limits = replace(limits, lower=limits.lower - beyond, upper=limits.upper + beyond)
            self.broken += judge_path(times, positions, limits, *self.controller.exceptions)
            for begin, end in self.still:
                part = positions[np.searchsorted(times, begin) : np.searchsorted(times, end)]
                if len(part) and np.ptp(part, axis=0).max() > 1e-9:
                    self.broken.append(
                        Broken("moved while held", begin * 1e-9, float(np.ptp(part, axis=0).max()))
                    )
            self.broken += [Broken(f"refused: {why}", 0.0, 2.0) for why in self.controller.rejected[:1]]
        if robot.kind == "forward_command":
            for begin, end in itertools.pairwise([*self.anew, len(self.ticks)]):
                self.broken += judge_positions(self.ticks[begin:end], robot.limits, longest_s)
        elif robot.kind == "servo_joint":
            limits = robot.limits
            self.broken += judge_velocities(self.ticks, limits.velocity, limits.acceleration, longest_s)
        elif robot.kind == "servo_twist":
            for half, speed in ((slice(0, 3), LINEAR), (slice(3, 6), ANGULAR)):
                sizes = [(t, v[half]) for t, v in self.ticks]
                self.broken += judge_velocities(sizes, np.full(3, speed), np.full(3, speed / 0.15), longest_s)
        if robot.kind in ("forward_command", "servo_joint"):
            for begin, end in self.still:
                commands = [p for t, p in self.ticks if begin <= t < end]
                moved = (
                    np.ptp(commands, axis=0).max()
                    if len(commands) and robot.kind == "forward_command"
                    else 0.0
                )
                moved = np.abs(commands).max() if len(commands) and robot.kind == "servo_joint" else moved
                if moved > 1e-9:
                    self.broken.append(Broken("moved while held", begin * 1e-9, float(moved)))

    def _unhold(self) -> None:
        if self.holding is not None and self.holding[0] < self.t_ns:
            self.still.append((self.holding[0], self.t_ns))
        self.holding = None
