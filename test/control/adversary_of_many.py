"""A random adversary of robots that feel contacts and have several controllers.

    python test/control/adversary_of_many.py --events N

It adds to adversary.py: joints that several controllers share, each with a message of its own, which may be
held up before each; contacts, beyond either limit, and sensors that fall silent or are saturated, while all
else goes wrong; joint states that name other joints, or not all, or come again or from before; chunks of
sizes, steps, stamps, versions and horizons that are none; a second policy; controllers that say that they
hold where they do not; a process that is paused for up to 3 s. Options are those of adversary.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from adversary import main
from adversary_faults import FAULTS, Episode
from adversary_scene import Case, Robot, S
from adversary_ways import lasting
from executed import TrajectoryController

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.joint_faults import usual
from vla_accel_ros.control.following.watchdog import HOMING, MotionState
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force, Phase
from vla_accel_ros.control.force.sensor import ForceSensor, Quantity
from vla_accel_ros.control.outputs.reports import ReportedState
from vla_accel_ros.control.trajectory import Trajectory, TrajectoryPoint
from vla_accel_ros.types import Chunk

FORCE_HZ = 250
YIELDS, STOPS, MOST = 10.0, 30.0, 200.0
RETREAT = Retreat(rad=0.2, s=0.6)


class Controllers:
    """Several of them as one, of all joints."""

    def __init__(
        self,
        groups: tuple[tuple[str, ...], ...],
        joints: tuple[str, ...],
        position: np.ndarray,
        desired: bool,
    ) -> None:
        self.joints, self.from_desired = joints, desired
        self._columns = {group: [joints.index(name) for name in group] for group in groups}
        self.ones = {
            group: TrajectoryController(group, position[columns], desired)
            for group, columns in self._columns.items()
        }
        self.spared: list[tuple[int, int]] = []
        self.eased: list[tuple[int, int]] = []
        self.spare = next(iter(self.ones.values())).spare

    def hold(self, position: np.ndarray, t_ns: int) -> None:
        for group, controller in self.ones.items():
            controller.hold(position[self._columns[group]], t_ns)

    @property
    def starts(self) -> list[int]:
        """When the youngest of what they execute began."""
        return [max(controller.starts[-1] for controller in self.ones.values())]

    def shift(self, by_ns: int, t_ns: int) -> None:
        for controller in self.ones.values():
            controller.shift(by_ns, t_ns)

    def accept(self, trajectory: Trajectory, t_ns: int, measured: TrajectoryPoint) -> bool:
        """Of all joints: a motion of others."""
        taken = []
        for group, controller in self.ones.items():
            measured_here = TrajectoryPoint(t_ns, measured.position[self._columns[group]])
            taken.append(controller.accept(trajectory.select(group), t_ns, measured_here))
        return all(taken)

    def state(self, t_ns: int) -> TrajectoryPoint:
        states = {group: controller.state(t_ns) for group, controller in self.ones.items()}
        position, velocity = np.zeros((2, len(self.joints)))
        for group, state in states.items():
            position[self._columns[group]] = state.position
            velocity[self._columns[group]] = 0.0 if state.velocity is None else state.velocity
        return TrajectoryPoint(t_ns, position, velocity)

    def path(self, until_ns: int) -> tuple[np.ndarray, np.ndarray]:
        paths = {group: controller.path(until_ns) for group, controller in self.ones.items()}
        times = next(iter(paths.values()))[0]
        positions = np.zeros((len(times), len(self.joints)))
        for group, (_, path) in paths.items():
            positions[:, self._columns[group]] = path
        return times, positions

    @property
    def exceptions(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        ones = self.ones.values()
        return [s for controller in ones for s in controller.spared], [
            *self.eased,
            *(e for controller in ones for e in controller.eased),
        ]

    @property
    def rejected(self) -> list[str]:
        return [why for controller in self.ones.values() for why in controller.rejected]


class EpisodeOfMany(Episode):
    """With what is above."""

    def __init__(self, case: Case) -> None:
        self._apart = random.Random(f"many {case.seed}")
        self._touches = self._apart.random() < 0.5
        self._sample_ns = 0
        super().__init__(case)
        groups = self.robot.groups
        if groups:
            desired = self.controller.from_desired
            self._many = Controllers(groups, self.robot.joints, self.where.copy(), desired)
            self.controller = self._many  # type: ignore[assignment]

    @property
    def _may_grip(self) -> bool:
        return super()._may_grip and not self._touches

    @property
    def table(self) -> dict[str, Callable[[Any, str], None]]:
        return FAULTS | MORE

    def run(self) -> Episode:
        if self._touches:
            self._every(min(S // FORCE_HZ, round(self.robot.period_s * S)), self._thread)
        return super().run()

    def _robot(self, kind: str) -> Robot:
        robot = super()._robot(kind)
        if kind != "joint_trajectory" or len(robot.joints) < 2:
            return robot
        first = self._apart.randint(1, len(robot.joints) - 1)
        order = self._apart.sample(robot.joints, len(robot.joints))
        return replace(robot, groups=(tuple(order[:first]), tuple(order[first:])))

    def _contract(self) -> Contract:
        contract = super()._contract()
        if not self._touches:
            return contract
        quantity = Quantity("force", "N", ("x", "y", "z"), YIELDS, STOPS, most=MOST)
        sensor = ForceSensor("wrench", (quantity,), rate_hz=FORCE_HZ, max_age_s=0.03, slot="wrist")
        return replace(contract, force=Force((sensor,), RETREAT))

    def _report(self, joints: tuple[str, ...], last_ns: list[int]) -> ReportedState | None:
        report = super()._report(joints, last_ns)
        if report is None or not self.active("lying controllers"):
            self.hidden = self.hidden - ({joints} if report else set())
            return report
        if joints in self.scaled:  # which the lie does not tell
            self.scaled, self.hidden = self.scaled - {joints}, self.hidden | {joints}
        where, rng = self._where(joints), self._apart
        far = usual(self.robot.limits.velocity)[[self.robot.joints.index(name) for name in joints]]
        j = rng.randrange(len(joints))
        off = (rng.choice((-1.0, 1.0)) * rng.uniform(2.0, 10.0) * far[j], 1e9, np.nan, -np.inf)
        where[j] += rng.choice(off)
        stamp_ns = self.now_ns() - round(rng.uniform(0.0, 0.1) * S)
        began_ns = rng.choice((report.began_ns, stamp_ns - S // 10))
        return ReportedState(began_ns, stamp_ns, dict(zip(joints, where.tolist())), rests=True)

    def _controller(self, joints: tuple[str, ...]) -> TrajectoryController:
        return self._many.ones[joints] if self.robot.groups else self.controller

    def _check_length(self, trajectory: Trajectory, on_arrival: bool) -> None:
        guard = self.node.robot.outputs.guard
        rests = trajectory.velocities is None or not trajectory.velocities.any()
        if guard is None or rests or guard.phase is Phase.WATCHING or HOMING in self.node.holds:
            super()._check_length(trajectory, on_arrival)
            return
        most_s = 2e-9 * self.node.robot.kept_ns + RETREAT.s + 3 * self._longest_s
        if self._rests_ns(trajectory) <= self.now_ns() + round(most_s * S):
            return
        if self.node.robot.follower.safety.state is MotionState.RUNNING:
            super()._check_length(trajectory, on_arrival)  # chunks move it from this tick on
        else:
            self._break("a longer way back than it may be")

    def _tick(self) -> None:
        if not self._touches:  # else the thread of the sensor makes the ticks
            super()._tick()

    def _thread(self) -> None:
        """A step of the thread of the sensor, which has a new sample FORCE_HZ times a second."""
        due = self.t_ns >= self._sample_ns + S // FORCE_HZ and not self.active("no force")
        self._sample_ns = self.t_ns if due else self._sample_ns
        sizes = {"touch": 1.5 * YIELDS, "hit": 1.5 * STOPS, "saturated": MOST + 1.0}
        size = max([size for name, size in sizes.items() if self.active(name)], default=0.0)
        sample = (size + self._apart.random() * 0.1, 0.0, 0.0)
        samples = [(self.now_ns(), sample)] if due else []

        def feel() -> None:
            force = self.node.motion.force
            assert force is not None
            if self.node.active:
                force.reflexes.tick(force.reflexes.feel([samples], [""]))

        self._input("force", feel)

    def node_joints(self, position: np.ndarray, stamp_ns: int, follows: bool) -> None:
        if not self.active("odd joints"):
            super().node_joints(position, stamp_ns, follows)
            return
        self._told_wrong_ns = self.t_ns
        names, rng = list(self.robot.joints), self._apart
        how = rng.choice(("other order", "some", "strangers", "none", "too few", "again", "before"))
        values = position.tolist()
        if how == "other order":
            names, values = names[::-1], values[::-1]
        elif how == "some":
            count = rng.randint(0, len(names))
            names, values = names[:count], values[:count]
        elif how == "strangers":
            names, values = ["wheel", *names], [rng.choice((1e9, np.nan)), *values]
        elif how == "none":
            values = []
        elif how == "too few":
            values = values[:-1]
        elif how == "again":
            stamp_ns = getattr(self, "_last_stamp_ns", stamp_ns)
        else:
            stamp_ns -= round(rng.uniform(0.0, 0.7) * S)
        self._last_stamp_ns = stamp_ns
        self.node.joints(names, np.array(values), stamp_ns)

    def _chunks(self) -> None:
        super()._chunks()
        if self.active("second policy"):
            chunk = self._made()
            with np.errstate(invalid="ignore", over="ignore"):
                actions = (2.0 * chunk.actions.mean(axis=0) - chunk.actions).astype(np.float32)
            self._give(
                replace(chunk, actions=actions, kv_version=chunk.kv_version + self._apart.randint(-3, 3))
            )

    def _give(self, chunk: Chunk) -> None:
        super()._give(self._odd(chunk) if self.active("odd chunks") else chunk)

    def _odd(self, chunk: Chunk) -> Chunk:
        rng, actions = self._apart, chunk.actions
        what = rng.choice(("step", "actions", "stamp", "version", "horizon", "number"))
        if what == "step":
            return replace(chunk, step_dt_s=rng.choice((0.0, -0.1, np.nan, np.inf, 1e-9, 1e9, 0.001, 1.0)))
        if what == "actions":
            wide = np.concatenate([actions, actions], axis=1)
            return replace(
                chunk,
                actions=rng.choice(
                    (
                        wide,
                        actions[:, :0],
                        actions[:0],
                        actions[0],
                        np.repeat(actions, 300, axis=0),
                        actions[None],
                    )
                ),
            )
        if what == "stamp":
            return replace(chunk, stamp_ns=rng.choice((0, -1, 2**62, chunk.stamp_ns - 30 * S)))
        if what == "version":
            return replace(chunk, kv_version=rng.choice((-1, 0, 2**62)))
        if what == "number":
            return replace(chunk, request_id=rng.choice((-1, 0, 2**62)))
        return replace(chunk, execution_horizon=rng.choice((0, -1, 1, 10**6)))

    def paused(self, name: str) -> None:
        """The process is stopped and goes on later."""
        if not self.active("stall"):
            self._lasts("stall", 0.2, 3.0)
            self._go_on_later()


MORE: dict[str, Callable[[Any, str], None]] = {
    "touch": lasting(0.8),
    "hit": lasting(0.3),
    "saturated": lasting(0.05),
    "no force": lasting(0.3),
    "odd joints": lasting(1.0),
    "odd chunks": lasting(1.0),
    "second policy": lasting(2.0),
    "lying controllers": lasting(2.0),
    "paused": EpisodeOfMany.paused,
}


if __name__ == "__main__":
    sys.exit(main(EpisodeOfMany, __doc__))
