"""A hand that is moved by twists, as the trajectory node has it; time and chunks as a test tells them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from force_arm import MS, START, S, Stepped, make_arm, make_sensor
from motion import make_chunk
from world import Clock, Parameters, Process, StreamLine, TrajectoryLine, make_contract

from vla_accel_ros.contract.parts import Controller
from vla_accel_ros.control.chunking.twist import RAMP_S
from vla_accel_ros.control.force.executed import Retreat
from vla_accel_ros.control.force.guard import Force
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.types import Chunk

LINEAR = 0.5


class Robot(Stepped):
    """A hand on a line, with a gripper or no joint beside it. felt: it has a force sensor, which is asked
    each millisecond.

    force_n: of the hand's position; speed: of the chunks [m/s]; None: none come. silent: the sensor is.
    Attributes: `commands`, of the hand, with their times; `sent`, what the gripper was.
    """

    def __init__(self, grippers: tuple[str, ...], felt: bool = True) -> None:
        super().__init__()
        self.grippers, self._joints, self._felt = grippers, ("arm", *grippers), felt
        limits = JointLimits(*(np.full(len(self._joints), x) for x in (0.0, 1.0, 2.0, 20.0)))
        hand = Controller("servo/twist_commands", ("arm",), "servo_twist", rate_hz=100.0, frame="base")
        contract = make_contract(
            "servo_twist",
            make_arm(self._joints, limits),
            controllers=(*(Controller("gripper/joint_trajectory", (name,)) for name in grippers), hand),
            force=Force((make_sensor(),), Retreat(m=0.03), self._joints) if felt else None,
        )
        self.position = self.velocity = self.furthest = 0.0
        self.force_n: Callable[[float], float] = lambda position: 0.0
        self.speed: float | None = 0.2
        self.commands: list[tuple[int, float]] = []
        self.sent: list[Trajectory] = []
        self.silent, self._request, self.late_ns = False, 0, 30 * MS
        self.begin(Process(contract, Parameters(), Clock(lambda: self.now), self._line))

    def _line(self, controller: Controller) -> StreamLine | TrajectoryLine:
        return StreamLine(self._command) if controller.rate_hz else TrajectoryLine(self._hear)

    def _hear(self, path: Trajectory, start_ns: int, stamped: bool) -> None:
        self.sent.append(path)

    def _command(self, twist: np.ndarray) -> None:
        self.velocity = float(twist[0])
        self.commands.append((self.now, self.velocity))

    def chunk(self, speed: float) -> Chunk:
        """The next, which moves the hand."""
        self._request += 1
        row = [speed, 0, 0, 0, 0, 0] + [0.8] * len(self.grippers)
        return make_chunk([row] * 10, self.now - self.late_ns, 0.05, self._request)

    def step(self) -> None:
        self.now += MS
        k = (self.now - START) // MS
        self.position += 1e-3 * self.velocity
        self.furthest = max(self.furthest, self.position)
        if self._felt:
            force = 1e-3 * (k % 7), 0.0, self.force_n(self.position), 0.0, 0.0, 0.0
            self.feel(None if self.silent else (force, self.now))
        elif k % 10 == 0:
            self.node.tick()
        if k % 10 == 0:
            self.node.joints(self._joints, np.full(len(self._joints), 0.5), self.now)
        if k % 100 == 0 and self.speed is not None:
            self.node.chunk(self.chunk(self.speed))
        if k % 20 == 0:
            self.node.watch()

    def assert_ramps(self) -> None:
        times, velocities = np.array(self.commands).T
        change = np.abs(np.diff(velocities)) / np.diff(times) * S
        assert (change <= LINEAR / RAMP_S * 1.001).all()
